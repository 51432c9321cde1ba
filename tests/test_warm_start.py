"""The warm start's command: a folder that can be loaded, with the command that made it; and
messages for unsupported jobs.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

from siirl.engine.reward_manager.demonstration_clips import load_demonstration_clips
from siirl.errors import ConfigError
from siirl.files.paths import find
from siirl.imitation.scripted_experts import check_noise
from siirl.imitation.warm_start_flags import DEMONSTRATIONS, DIFFERENT_DEFAULTS
from siirl.imitation.warm_starts import demonstrations_of_each
from siirl.jobs.start_groups import TaskGroups, describe_groups
from siirl.models import load_policy
from siirl.models.chat import load_chat_tokenizer
from siirl.models.language_model import load_language_model
from siirl.models.tiny_checkpoint import load_tiny
from siirl.models.tiny_flow_vla import TinyFlowVLA
from siirl.warm_start import main

SMALL = "actor_rollout_ref.model.options={width: 32, layers: 1, heads: 1, feed_forward: 32}"
SHORT = ("--updates", "2", "--batch-rows", "4")


ROBOT = (
    "env.tasks=[handle-press]",
    "env.image_size=16",
    "actor_rollout_ref.model.options={width: 16}",
    "--demonstrations=1",
    "--groups=0",
    *SHORT,
)


def test_a_robots_policy_is_cloned_alike_from_the_same_seed_and_otherwise_from_another(
    tmp_path, capsys
):
    """One episode of the expert, which presses the handle within 43 steps, and two updates."""
    clips = tmp_path / "clips" / "demonstrations.npz"
    for folder, words in (
        ("one", ["--clips", str(clips)]),
        ("again", []),
        ("other", ["trainer.seed=1"]),
    ):
        assert main(["--output", str(tmp_path / folder), *ROBOT, *words]) == 0
    one, again, other = (
        load_policy(tmp_path / folder).state_dict() for folder in ("one", "again", "other")
    )
    torch.testing.assert_close(one, again, rtol=0, atol=0)
    assert not all(torch.equal(one[name], other[name]) for name in one)
    notes = json.loads((tmp_path / "one" / "config.json").read_text())["notes"]
    assert notes["command"].startswith("siirl warm-start --output ")
    assert (notes["tasks"], notes["demonstrations"]) == (["handle-press"], 1)
    assert 12 <= notes["observations"] <= 120
    (demonstrations,) = load_demonstration_clips(str(clips)).items()
    assert demonstrations[0] == "handle-press"
    assert demonstrations[1][0].shape[1:] == (16, 16, 3)
    assert (
        f"Measure it: siirl evaluate checkpoint={tmp_path / 'one'}"
        in capsys.readouterr().out.replace("\n", "")
    )


def test_groups_of_rollouts_are_played_with_the_result(tmp_path, capsys):
    words = [word for word in ROBOT if word != "--groups=0"]
    sizes = ["--groups=2", "actor_rollout_ref.rollout.n=3", "env.max_episode_steps=50"]
    assert main(["--output", str(tmp_path), *words, *sizes]) == 0
    found = json.loads((tmp_path / "config.json").read_text())["notes"]["groups"]["handle-press"]
    assert (found["groups"], found["episodes"]) == (2, 6)
    assert found["mixed"] <= min(found["successes"], 2)
    assert (
        f"handle-press: {found['successes']} of 6 rollouts succeed; {found['mixed']} of 2 groups "
        "have a success and a failure\n" in capsys.readouterr().out
    )
    load_policy(tmp_path)


def test_a_task_whose_expert_needs_almost_all_steps_is_named(tmp_path, capsys):
    """The expert presses the handle in 39 steps."""
    assert main(["--output", str(tmp_path / "short"), *ROBOT, "env.max_episode_steps=42"]) == 0
    assert (
        "handle-press: half of the demonstrations take 39 of 42 steps or more, so a policy that "
        "acts a little more slowly fails: raise env.max_episode_steps.\n" in capsys.readouterr().out
    )
    assert main(["--output", str(tmp_path / "usual"), *ROBOT]) == 0
    assert "half of the demonstrations" not in capsys.readouterr().out


def test_tasks_without_mixed_groups_are_named_with_the_remedy():
    found = {
        "reach": TaskGroups(mixed=1, groups=4, successes=30, episodes=32),
        "push": TaskGroups(mixed=0, groups=4, successes=16, episodes=32),
        "hammer": TaskGroups(mixed=0, groups=4, successes=0, episodes=32),
    }
    assert describe_groups(found) == [
        "reach: 30 of 32 rollouts succeed; 1 of 4 groups have a success and a failure",
        "push: 16 of 32 rollouts succeed; 0 of 4 groups have a success and a failure",
        "hammer: 0 of 32 rollouts succeed; 0 of 4 groups have a success and a failure",
        "No success: hammer. Reinforcement learning has little to learn from there: give more "
        "--demonstrations and --updates (docs/learning.md, step 1).",
        "No group with both: push. A 0/1 reward learns only from such groups (docs/learning.md, "
        "step 2).",
    ]


OWN_WORLD = """
import dataclasses
from envs.metaworld.metaworld_env import MetaWorldEnv, expert as metaworld_expert

class World(MetaWorldEnv):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.spec = dataclasses.replace(self.spec, expert={expert!r}, expert_seed=950_000)

def expert(task):
    act = metaworld_expert(task)
    def acting(environment):
        print("the world's own expert")
        return act(environment)
    return acting
"""


def test_a_users_environment_brings_its_own_expert_and_seeds(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "expert_world.py").write_text(OWN_WORLD.format(expert="expert_world:expert"))
    words = [*ROBOT, "env=custom", "env.name=expert_world:World"]
    assert main(["--output", str(tmp_path / "out"), *words]) == 0
    assert "the world's own expert" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("module", "expert", "refusal"),
    [
        ("world_without_expert", "", "has no scripted experts: give --expert module:function"),
        (
            "world_of_strings",
            "builtins:str",
            "expert of world_of_strings:World=builtins:str made a str for 'handle-press'",
        ),
    ],
)
def test_a_users_environment_whose_spec_has_no_usable_expert_is_refused(
    tmp_path, capsys, monkeypatch, module, expert, refusal
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{module}.py").write_text(OWN_WORLD.format(expert=expert))
    words = [*ROBOT, "env=custom", f"env.name={module}:World"]
    assert main(["--output", str(tmp_path / "out"), *words]) == 2
    assert refusal in capsys.readouterr().err.replace("\n", " ")


def test_noise_of_the_targets_makes_a_policy_that_acts_around_the_demonstrated_actions(
    tmp_path, capsys
):
    fits = {}
    for noise in ("0", "0.25"):
        words = ["--output", str(tmp_path / noise), *ROBOT, "--updates", "40"]
        assert main([*words, "--target-noise", noise]) == 0
        fits[noise] = json.loads((tmp_path / noise / "config.json").read_text())["notes"]
    assert fits["0.25"]["loss"] > fits["0"]["loss"] + 0.3


def test_integers_are_cloned_without_noise():
    check_noise("--target-noise", 0.0, discrete=True)
    check_noise("--noise", None, discrete=True)
    with pytest.raises(ConfigError, match=r"--target-noise 0\.1: the actions are integers"):
        check_noise("--target-noise", 0.1, discrete=True)


def test_a_flow_is_cloned_by_flow_matching(tmp_path, capsys):
    assert main(["--output", str(tmp_path), *ROBOT, "model=tiny_flow_vla"]) == 0
    assert load_tiny(tmp_path, TinyFlowVLA).config.width == 16
    notes = json.loads((tmp_path / "config.json").read_text())["notes"]
    assert 0 < notes["action_error"] < 2
    told = capsys.readouterr().out.replace("\n", " ")
    assert "demonstrated actions within" in told


def test_one_command_makes_a_model_for_the_users_tasks(tmp_path, capsys):
    command = ["--output", str(tmp_path), *SHORT, "env=math", "env.tasks=[sums-1]", SMALL]
    assert main(command) == 0
    notes = json.loads((tmp_path / "warm_start.json").read_text())
    assert notes["command"].startswith("siirl warm-start --output ")
    assert notes["updates"] == 2
    assert load_language_model(tmp_path).config.hidden_size == 32
    assert load_chat_tokenizer(tmp_path).vocab_size == 264
    assert "held-out questions" in capsys.readouterr().out
    assert (tmp_path / "model.safetensors").stat().st_mode == (
        tmp_path / "config.json"
    ).stat().st_mode


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("env=tools", "env.kwargs.announce=true"), "set env.kwargs.announce=false"),
        (("env=math", "env.tasks=[countdown-7]"), "must end in a size from 2 to 6"),
        (
            ("env=math", "model=tiny_vla"),
            "policy=tiny_vla outputs robot actions, but env.name=math",
        ),
        (("env=math", "actor_rollout_ref.model.options={bins: 3}"), "fits no TinyLMShape"),
    ],
)
def test_a_task_that_cannot_be_taught_is_refused_with_a_message(tmp_path, capsys, overrides, told):
    assert main(["--output", str(tmp_path / "out"), *SHORT, *overrides]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("env.tasks=[drawer-opn]",), "Did you mean 'drawer-open'?"),
        (
            ("env=gymnasium", "env.id=CartPole-v1"),
            "env.name=gymnasium has no 'images' and no 'instruction' and no flag of success",
        ),
        (
            ("env.tasks=[reach]", "actor_rollout_ref.model.path=assets/tiny_vla"),
            "behaviour cloning starts from new weights; leave it out",
        ),
        (
            ("env.tasks=[reach]", "actor_rollout_ref.model.options={depth: 3}"),
            "Unknown option (actor_rollout_ref.model.options) 'depth'",
        ),
        (
            (
                "env.tasks=[reach]",
                "--fit-proprioception",
                "actor_rollout_ref.model.policy=own_policy:make_policy",
            ),
            "--fit-proprioception: TwoLayers has no proprioception_layer to fit",
        ),
        (
            ("env.tasks=[reach]", "--expert", "no_such_module:expert"),
            "there is no module 'no_such_module'",
        ),
        (
            ("env.tasks=[reach]", "--expert", "json:loads"),
            "--expert=json:loads: making the expert of 'reach' raised JSONDecodeError",
        ),
        (
            ("env.tasks=[reach]", "--expert", "builtins:str"),
            "made a str for 'reach': it must be called with the environment",
        ),
    ],
)
def test_a_policy_that_cannot_be_cloned_is_refused_before_a_demonstration_is_collected(
    tmp_path, capsys, words, told
):
    assert main(["--output", str(tmp_path / "out"), *words]) == 2
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.err.startswith("siirl: ")
    assert not (tmp_path / "out").exists()


def test_simulators_that_need_far_more_memory_than_there_is_are_refused(
    tmp_path, capsys, monkeypatch
):
    """Two tasks, each at 60 MB for pictures and 25 MB for physics, and 30 MB more, whatever a
    training run would have.
    """
    monkeypatch.setattr("siirl.preflight.machine.total_memory_bytes", lambda: 100_000_000)
    assert (
        main(
            [
                "--output",
                str(tmp_path / "out"),
                "env.tasks=[reach,handle-press]",
                "env.num_servers=64",
            ]
        )
        == 2
    )
    told = capsys.readouterr().err
    assert "= 1 x 1 environments with 2 tasks each take about 200 MB" in told
    assert told.endswith("this machine has 100 MB of memory: name fewer env.tasks.\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--output", "/proc/policy"), "--output /proc/policy cannot be written"),
        (("--output", "/dev/null"), "--output /dev/null is a file: name a folder"),
        (
            ("--output", "{here}/out", "--clips", "/proc/clips.npz"),
            "--clips /proc cannot be written",
        ),
        (("--output", "{here}/out", "--clips", "{here}"), "is a folder: name a file in it"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path, capsys, flags, told):
    assert main([flag.format(here=tmp_path) for flag in flags]) == 2
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", [".", "checkpoints/step_00000003/actor"])
def test_a_training_run_is_not_written_into(tmp_path, capsys, below):
    (tmp_path / "origin.json").write_text("{}")
    assert main(["--output", str(tmp_path / below), *ROBOT]) == 2
    assert f"is in the folder of a run, {tmp_path}, whose files" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("--learning-rate", "0", "0 must be a number above 0, and at most 10"),
        ("--learning-rate", "1e300", "1e300 must be a number above 0, and at most 10"),
        ("--updates", "1e3", "'1e3' must be a whole number, for example 3"),
        ("--noise", "loud", "'loud' must be a number, for example 0.5"),
        ("--demonstrations", "reach=", "'' must be a whole number, for example 3"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_with_its_bounds(flag, value, told, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--output", "out", flag, value])
    assert f"argument {flag}: {told}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "counts"),
    [
        ([], {"a": 2, "b": 2}),
        ([(None, 5)], {"a": 5, "b": 5}),
        ([("b", 4)], {"a": 2, "b": 4}),
        ([("b", 4), (None, 3), (None, 1)], {"a": 1, "b": 4}),  # what is said last counts
    ],
)
def test_each_task_gets_the_demonstrations_that_were_asked_for_it(flags, counts):
    assert demonstrations_of_each(flags, ["a", "b"]) == counts


def test_without_a_flag_the_environment_has_its_number_of_demonstrations():
    assert demonstrations_of_each([("b", 4)], ["a", "b"], default=12) == {"a": 12, "b": 4}


def test_defaults_of_libero_are_those_that_made_the_shipped_weights():
    """Weights of the general defaults, unscaled and from few demonstrations, hardly succeed."""
    words = load_notes("tiny_vla_libero")["command"].split()
    given = {word: words[words.index(word) + 1] for word in words if word.startswith("--")}
    chosen = DIFFERENT_DEFAULTS["libero"]
    assert given["--demonstrations"] == str(DEMONSTRATIONS["libero"])
    assert (given["--updates"], given["--noise"]) == (str(chosen["updates"]), str(chosen["noise"]))
    assert ("--fit-proprioception" in words) == chosen["fit_proprioception"]


def load_notes(weights):
    return json.loads((find(f"assets/{weights}") / "config.json").read_text())["notes"]


def test_demonstrations_of_a_task_that_is_not_learned_are_refused(tmp_path, capsys):
    assert main(["--output", str(tmp_path / "out"), *ROBOT, "--demonstrations", "door-open=3"]) == 2
    assert (
        "--demonstrations door-open=3: unknown task 'door-open'; the tasks (env.tasks) are "
        "handle-press." in capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "flag",
    [
        "--demonstrations=0",
        "--demonstrations=a=0",
        "--updates=-1",
        "--batch-rows=0",
        "--noise=nan",
        "--learning-rate=-1",
        "--stop-at=x",
    ],
)
def test_a_number_out_of_range_is_refused(tmp_path, capsys, flag):
    with pytest.raises(SystemExit, match="2"):
        main(["--output", str(tmp_path), flag])
    assert f"error: argument {flag.partition('=')[0]}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("env=math", "--noise", "0.1"), "--noise is read by warm starts of robots, but env.name"),
        (("env=math", "--clips", "c.npz"), "--clips is read by warm starts of robots"),
        (("env=math", "--groups", "0"), "--groups is read by warm starts of robots"),
        (
            ("env=math", "--demonstrations", "3"),
            "--demonstrations is read by warm starts of robots",
        ),
        (("--stop-at", "0.5"), "--stop-at is read by warm starts of language models"),
        (("--lerobot-cameras", "front"), "--lerobot-cameras front names cameras of a data set"),
        (
            ("--lerobot", "d", "--noise", "0"),
            "--noise is read if an expert gives the demonstration",
        ),
        (("--lerobot", "d", "--expert", "a:b"), "--expert is read if an expert gives the demonst"),
    ],
)
def test_a_flag_that_nothing_reads_is_refused(tmp_path, capsys, words, told):
    assert main(["--output", str(tmp_path / "out"), *words]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


LEROBOT = Path(__file__).parent / "lerobot" / "v21"
TWICE = "--lerobot-cameras=observation.images.front,observation.images.front"
RECORDED = (
    *("env.tasks=[drawer-open,button-press]", *ROBOT[2:3], "--groups=0", *SHORT),
    *("--lerobot", str(LEROBOT)),
)


def test_a_policy_is_cloned_from_a_lerobot_data_set(tmp_path):
    assert main(["--output", str(tmp_path / "policy"), *RECORDED]) == 0
    notes = json.loads((tmp_path / "policy" / "config.json").read_text())["notes"]
    assert (notes["tasks"], notes["demonstrations"]) == (["drawer-open"], 1)
    assert notes["observations"] == 12
    load_policy(tmp_path / "policy")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["env.tasks=[button-press]"], "button-press. Its instructions are drawer"),
        (
            ["--lerobot-cameras=top"],
            "has the cameras observation.images.front, but 'metaworld' needs 1",
        ),
        (
            ["--demonstrations=door-open=1"],
            "door-open=1: unknown task 'door-open'; the tasks (env.tasks)",
        ),
        (["--expert=mine:expert"], "leave one of the two out"),
        (["--lerobot=assets"], "cannot be read"),
        (["env=libero", TWICE], "has 4 numbers of observation.state, but environment 'libero"),
        (["env=math"], "--lerobot is read by warm starts of robots, but env.name=math has"),
    ],
)
def test_a_data_set_that_does_not_fit_is_refused(tmp_path, capsys, words, told):
    of_metaworld = not any(word.startswith("env=") for word in words)
    line = [*(RECORDED if of_metaworld else RECORDED[3:]), *words]
    assert main(["--output", str(tmp_path / "policy"), *line]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "policy").exists()


def test_a_damaged_row_of_a_file_is_refused_with_its_place(tmp_path, capsys):
    """The damaged one is the only row of its kind."""
    good = {"question": "What is 1 + 1?", "answer": "#### 2"}
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [good] * 9 + [{"question": 3}]))
    task = "env.tasks=[openai/gsm8k]"
    words = (task, f"env.kwargs.files=[{file}]", "env.kwargs.heldout_share=0.5", SMALL, *SHORT)
    assert main(["--output", str(tmp_path / "model"), "env=math", *words]) == 2
    assert f"{file}, line 10: 'question' must be text" in capsys.readouterr().err


def test_damaged_notes_of_the_initial_model_are_refused_with_their_file(tmp_path, capsys):
    model = shutil.copytree("assets/tiny_lm", tmp_path / "initial")
    (model / "warm_start.json").write_text("{")
    words = ("env=math", f"actor_rollout_ref.model.path={model}", *SHORT)
    assert main(["--output", str(tmp_path / "model"), *words]) == 2
    assert f"{model / 'warm_start.json'} is damaged" in capsys.readouterr().err
