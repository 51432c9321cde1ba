"""`python -m siirl.train` as a user types it: a refusal has a message and status 2, and
leaves nothing behind.
"""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envs.registry import env_spec
from siirl.dag_worker.manifest import FORMAT, fingerprint
from siirl.dag_worker.plain_state import write_state
from siirl.data_coordinator.task_stream import TaskLoader
from siirl.models.adapters import Adaptable
from siirl.models.policy_loader import build_policy, save_policy
from siirl.params.model_args import LoraArguments
from siirl.params.parser import parse_config, to_yaml
from siirl.terminal.exit_status import REFUSED
from siirl.train import cluster_in_words, main
from tests.envs.openenv.echo_server import Echo
from tests.envs.openenv.scripted_server import ScriptedServer

EXAMPLES = str(Path(__file__).parents[2] / "docs" / "examples")
NO_TORCH = """
import sys
from siirl.train import main
status = main(sys.argv[1:])
loaded = [name for name in ("torch", "ray", "transformers", "tensordict", "mujoco") if name in sys.modules]
sys.exit(f"imported {loaded}" if loaded else status)
"""


def train(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "siirl.train", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["trainer.total_step=3"], "Did you mean 'trainer.total_steps'?"),
        (["data.train_batch_size=-1", "env.tasks=[1.5]"], "2 problems"),
        (
            ["pipeline=grpo", "env.tasks=[drawer-opne]", "actor_rollout_ref.model.path=null"],
            "Did you mean 'drawer-open'?",
        ),
    ],
)
def test_a_refusal_prints_a_sentence_exits_with_2_and_leaves_no_files(
    tmp_path: Path, words: list[str], expected: str
) -> None:
    done = train(*words, cwd=tmp_path)
    assert done.returncode == REFUSED
    assert done.stderr.startswith("siirl: ")
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_the_plan_comes_before_any_process_and_any_file(tmp_path: Path) -> None:
    done = train("--plan", "pipeline=grpo", "env=gymnasium", "env.id=CartPole-v1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Plan\n")
    assert "12 prompts x 8 rollouts = 96 trajectories" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--help"], 0),
        (["--cfg", "job"], 0),
        (["env=metaworldd"], REFUSED),
        (["env.tasks=[drawer-opne]"], REFUSED),
    ],
)
def test_help_and_early_refusals_do_not_wait_for_torch(
    tmp_path: Path, words: list[str], status: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_TORCH, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr if status == 0 else "") == (status, "")


def test_cfg_job_prints_what_config_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--cfg", "job", "trainer.seed=11", "reward=success"]) == 0
    printed = capsys.readouterr().out
    file = tmp_path / "job.yaml"
    file.write_text(printed)
    assert main(["--config", str(file), "--cfg", "job"]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--frobnicate"], "Unknown flag '--frobnicate'"),
        (["pipeline=embodied_spro"], "Did you mean 'embodied_srpo'?"),
        (
            ["env=gymnasium", "env.id=CartPole-v1"],
            "pipeline=embodied_srpo needs the environment's own success flag",
        ),
        (["pipeline=grpo", "env=gymnasium", "env.id=CartPoel-v1"], "CartPole"),
        (["actor_rollout_ref.model.path=no/where"], "there is no folder no/where"),
        (["pipeline=grpo", "actor_rollout_ref.model.path=null", "env.camera=corner9"], "corner"),
        (["pipeline=grpo", "env=custom", "env.name=no_such_module:Env"], "no_such_module"),
        (["pipeline=grpo", "env=gymnasium", "env.id=CartPole-v1", "env.camera=top"], "camera"),
    ],
)
def test_other_invalid_words_are_refused(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == REFUSED
    assert expected in capsys.readouterr().err


def test_an_old_name_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cfg", "job", "algorithm.workflow_type=EMBODIED"]) == 0
    assert "is read as pipeline=embodied_srpo" in capsys.readouterr().err


GYM = ["pipeline=grpo", "env=gymnasium", "env.id=CartPole-v1"]


def test_weights_for_another_environment_are_refused_before_a_process_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = env_spec("gymnasium", id="Acrobot-v1")
    save_policy(
        build_policy("tiny_vla", path=None, spec=spec, seed=0, options={}), tmp_path / "policy"
    )
    assert (
        main(
            [
                *GYM,
                f"actor_rollout_ref.model.path={tmp_path / 'policy'}",
                f"trainer.output_dir={tmp_path / 'out'}",
            ]
        )
        == REFUSED
    )
    assert (
        "proprioception_size=6, but environment 'gymnasium' has 4: choose another "
        "actor_rollout_ref.model.path.\n" in capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


def test_options_that_the_policy_does_not_take_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--plan", *GYM, "actor_rollout_ref.model.options={depth: 3}"]) == REFUSED
    message = capsys.readouterr().err
    assert "Unknown option (actor_rollout_ref.model.options) 'depth'" in message


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("algorithm.adv_estimator=gpro", "Did you mean 'grpo'?"),
        ("actor_rollout_ref.actor.loss=vanila", "Did you mean 'vanilla'?"),
        ("dag.custom_pipeline_fn=no_such_module:graph", "no_such_module"),
        ("trainer.n_gpus_per_node=4096", "asks for 4096 ranks"),
    ],
)
def test_values_that_graph_registries_or_machine_rule_out_are_refused(
    override: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = (
        ["data.train_batch_size=4096", "actor_rollout_ref.actor.ppo_mini_batch_size=4096"]
        if "4096" in override
        else []
    )
    assert main(["--plan", *GYM, override, *sizes]) == REFUSED
    assert expected in capsys.readouterr().err


def test_a_folder_that_is_not_a_checkpoint_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--plan", *GYM, f"trainer.resume={tmp_path}"]) == REFUSED
    assert f"{tmp_path} is not a checkpoint" in capsys.readouterr().err


def run_of_three_steps(
    folder: Path, state: dict[str, Any], engines: tuple[str, ...] = ("actor",)
) -> Path:
    """A run with a checkpoint after three steps, which has this state and empty files of weights."""
    checkpoint = folder / "checkpoints" / "step_00000003"
    weights = [f"{engine}/model.safetensors" for engine in engines]
    for name in weights:
        (checkpoint / name).parent.mkdir(parents=True)
        (checkpoint / name).touch()
    (folder / "checkpoints" / "latest").write_text("step_00000003\n")
    names = ("state.pt", *weights)
    write_state(checkpoint / "state.pt", state)
    files = {name: fingerprint(checkpoint / name) for name in names}
    manifest = {"format": FORMAT, "step": 3, "engines": engines, "files": files}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture
def three_steps(tmp_path: Path) -> Path:
    return run_of_three_steps(tmp_path / "run", {})


@pytest.mark.parametrize(("name", "status"), [("Echo", 0), ("Chess", REFUSED)])
def test_a_resumed_run_whose_server_has_another_environment_is_refused_and_not_started(
    name: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = TaskLoader(tasks=["Echo"], prompts_per_step=4, seed=1)
    run = run_of_three_steps(tmp_path / "run", {"loader": stream.state_dict()})
    with ScriptedServer(Echo(), metadata={"name": name}) as server:
        words = ["pipeline=grpo", "env=openenv", f"env.url={server.url}", "data.seed=1"]
        resumed = [f"trainer.resume={run}", "trainer.total_steps=4"]
        assert main(["--plan", *words, *resumed]) == status
    said = capsys.readouterr().err
    assert (
        "has tasks [Echo], but this run has [Chess] (the environment of the server at "
        f"env.url={server.url}). Resume with the same, or start" in said
    ) == (status == REFUSED)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("trainer.seed=2",), "seed 1, but this run has 2 (data.seed, by default trainer.seed). "),
        (("env.id=Acrobot-v1",), "tasks [CartPole-v1], but this run has [Acrobot-v1] (env.id). "),
    ],
)
def test_a_resumed_run_of_other_episodes_is_refused_with_the_key(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = TaskLoader(tasks=["CartPole-v1"], prompts_per_step=4, seed=1)
    run = run_of_three_steps(tmp_path / "run", {"loader": stream.state_dict()})
    assert main(["--plan", *GYM, "trainer.seed=1", f"trainer.resume={run}", *words]) == REFUSED
    assert (
        f"The checkpoint's run has {said}Resume with the same, or start a new run from the "
        "checkpoint's weights (actor_rollout_ref.model.path=CHECKPOINT/actor)."
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (None, "a private Ray cluster"),
        ("auto", "processes on the running Ray cluster"),
        ("10.0.0.1:6379", "processes on Ray at 10.0.0.1:6379"),
    ],
)
def test_a_run_says_on_which_cluster_its_processes_start(address: str | None, words: str) -> None:
    assert cluster_in_words(address) == words


def test_a_run_with_no_step_left_is_refused_and_not_started(
    three_steps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["--plan", *GYM, f"trainer.resume={three_steps}", "trainer.total_steps=3"]) == REFUSED
    )
    message = capsys.readouterr().err
    assert (
        f"trainer.resume={three_steps}: {three_steps} has finished step 3 of trainer.total_steps=3"
        in message
    )
    assert f"siirl evaluate checkpoint={three_steps}" in message


def test_a_run_without_the_critic_that_the_job_trains_is_refused_before_it_starts(
    three_steps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pipeline=ppo", "env=math", "trainer.total_steps=9", f"trainer.resume={three_steps}"]
    outputs = tmp_path / "outputs"
    assert main([*words, f"trainer.output_dir={outputs}"]) == REFUSED
    assert (
        "step_00000003 is of another job. It holds actor; this job trains actor and critic. "
        "Choose the pipeline of that run, or start a new one from its policy: "
        f"trainer.resume=null actor_rollout_ref.model.path={three_steps}/checkpoints/step_00000003"
        "/actor" in capsys.readouterr().err
    )
    assert not outputs.exists()


def test_a_run_of_another_model_is_refused_with_its_own_configuration(
    three_steps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (three_steps / "config.yaml").write_text("actor_rollout_ref: {model: {policy: causal_lm}}")
    assert main(["--plan", *GYM, f"trainer.resume={three_steps}"]) == REFUSED
    assert (
        f"trainer.resume={three_steps}: that run has actor_rollout_ref.model.policy=causal_lm, "
        "but this job has tiny_vla. Repeat the words of its command, or replace them all by "
        f"trainer.resume={three_steps} --config {three_steps}/config.yaml."
        in capsys.readouterr().err
    )


def test_a_run_whose_reward_remembers_another_encoders_embeddings_is_refused(
    three_steps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (three_steps / "config.yaml").write_text("reward: {name: video_value, encoder: tiny}")
    job = ("--plan", "env=metaworld", "reward=video_value", f"trainer.resume={three_steps}")
    assert main([*job]) == REFUSED
    assert (
        f"trainer.resume={three_steps}: that run has reward.encoder=tiny, but this job has pixels, "
        "and the reward remembers embeddings. Repeat the words" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("its", "own"),
    [
        ("env.max_episode_steps=null", "env.max_episode_steps=40"),
        ("data.train_batch_size=4", "data.train_batch_size=8"),
        ("env.id=Acrobot-v1", "env.id=CartPole-v1"),
    ],
)
def test_a_run_of_segments_is_not_continued_where_its_episodes_would_differ(
    three_steps: Path, capsys: pytest.CaptureFixture[str], its: str, own: str
) -> None:
    key, value = its.split("=")
    group, name = key.split(".")
    (three_steps / "config.yaml").write_text(f"{group}: {{{name}: {value}}}")
    segments = ("pipeline=ppo", "trainer=classic_control", "cluster=local")
    assert main(["--plan", *GYM[1:], *segments, f"trainer.resume={three_steps}", own]) == REFUSED
    assert (
        f"trainer.resume={three_steps}: that run has {its}, but this job has {own}, and its "
        "running episodes are continued" in capsys.readouterr().err
    )


def test_all_changes_of_running_episodes_are_named_and_equal_arguments_are_not(
    three_steps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (three_steps / "config.yaml").write_text(
        "env: {max_episode_steps: 90, kwargs: {g: 9.8, render_mode: null}}"
    )
    job = ("env=gymnasium", "env.id=Pendulum-v1", "pipeline=ppo", "trainer=classic_control")
    own = ("env.max_episode_steps=80", "env.kwargs={g: 5.0, render_mode: null}")
    assert main(["--plan", *job, "cluster=local", f"trainer.resume={three_steps}", *own]) == REFUSED
    assert (
        "that run has env.max_episode_steps=90 and env.kwargs.g=9.8, but this job has "
        "env.max_episode_steps=80 and env.kwargs.g=5.0, and its running episodes"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("its", "own", "said"),
    [
        ("{}", "{g: 9.8}", "that run has no env.kwargs.g, but this job has env.kwargs.g=9.8"),
        ("{g: null}", "{}", "that run has env.kwargs.g=null, but this job has no env.kwargs.g"),
        ("{g: '5'}", "{g: 5}", "that run has env.kwargs.g='5', but this job has env.kwargs.g=5"),
    ],
)
def test_an_environment_argument_that_differs_is_named_as_each_run_has_it(
    three_steps: Path, capsys: pytest.CaptureFixture[str], its: str, own: str, said: str
) -> None:
    (three_steps / "config.yaml").write_text(f"env: {{kwargs: {its}}}")
    job = ("env=gymnasium", "env.id=Pendulum-v1", "pipeline=ppo", "trainer=classic_control")
    words = ("cluster=local", f"trainer.resume={three_steps}", f"env.kwargs={own}")
    assert main(["--plan", *job, *words]) == REFUSED
    assert f"{said}, and its running episodes" in capsys.readouterr().err


def test_the_remedy_of_a_refused_resume_is_not_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Groups beside --config would override the run's keys."""
    run = run_of_three_steps(tmp_path / "run", {}, engines=("actor", "critic"))
    job = [*GYM[1:], "pipeline=ppo", "trainer=classic_control", "cluster=local"]
    assert main([*job, "env.kwargs.sutton_barto_reward=true", "--cfg", "job"]) == 0
    (run / "config.yaml").write_text(capsys.readouterr().out)
    assert main(["--plan", *job, f"trainer.resume={run}"]) == REFUSED
    said = capsys.readouterr().err.strip()
    words = said.partition("or replace them all by ")[2].removesuffix(".").split()
    assert words[0] == f"trainer.resume={run}"
    assert main(["--plan", *words]) == 0


def test_a_run_of_other_options_is_refused_and_not_started(
    three_steps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = env_spec("gymnasium", id="CartPole-v1")
    policy = build_policy("tiny_vla", path=None, spec=spec, seed=0, options={"width": 8})
    policy.describe(three_steps / "checkpoints" / "step_00000003" / "actor", notes={})
    resume = f"trainer.resume={three_steps}"
    assert main(["--plan", *GYM, resume]) == REFUSED
    assert "were made with width=8: repeat the words of that" in capsys.readouterr().err
    assert main(["--plan", *GYM, resume, "actor_rollout_ref.model.options={width: 8}"]) == 0


def test_an_own_policy_does_not_continue_with_other_options(
    three_steps: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    (three_steps / "config.yaml").write_text("actor_rollout_ref: {model: {options: {width: 8}}}")
    own = "actor_rollout_ref.model.policy=own_policy:make_policy"
    words = ["--plan", *GYM, own, f"trainer.resume={three_steps}"]
    options = "actor_rollout_ref.model.options"
    assert main([*words, f"{options}={{width: 16}}"]) == REFUSED
    assert f"trainer.resume: width in {options} differ" in capsys.readouterr().err
    assert main([*words, f"{options}={{width: 8}}"]) == 0


@pytest.mark.parametrize(
    ("stored", "own", "told"),
    [
        ({"rank": 4}, ("rank=4", "alpha=512"), "lora.alpha=512.0, but .* made with 32.0"),
        ({"rank": 4}, (), "lora.rank=0, but .* made with 4"),
        ({}, ("rank=4",), "lora.rank=4, but .* made with 0"),
        ({"rank": 4}, ("rank=4", "target_modules=[head]"), r"target_modules=\[head\], .* null"),
    ],
    ids=str,
)
def test_a_run_does_not_continue_with_other_adapters(
    three_steps: Path,
    capsys: pytest.CaptureFixture[str],
    stored: dict[str, int],
    own: tuple[str, ...],
    told: str,
) -> None:
    """With another alpha the weights have the same shapes and would load."""
    adapted = Adaptable()
    adapted.lora = LoraArguments(**stored) if stored else None
    actor = three_steps / "checkpoints" / "step_00000003" / "actor"
    adapted.describe_adapters(actor)
    words = [f"actor_rollout_ref.model.lora.{word}" for word in own]
    assert main(["--plan", *GYM, f"trainer.resume={three_steps}", *words]) == REFUSED
    assert re.search(told, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("content", "warned"),
    [
        (b"{", "damaged"),
        (b"", "damaged"),
        (b"\x00\xff", "damaged"),
        (b"- a\n", "damaged"),
        (b"trainer: {seed: 1}\n", None),
        (None, "missing"),
    ],
)
def test_a_damaged_or_missing_configuration_of_the_resumed_run_is_a_warning(
    content: bytes | None, warned: str | None, three_steps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (three_steps / "config.yaml").write_bytes(content)
    words = [f"trainer.resume={three_steps}", "trainer.total_steps=4"]
    assert main(["--plan", *GYM, *words]) == 0
    captured = capsys.readouterr()
    said = one_line(captured.out + captured.err)
    assert said.count("so this job's configuration was not compared") == (warned is not None)
    assert warned is None or f"config.yaml is {warned}, " in said


def one_line(text: str) -> str:
    """A plan without its line breaks and indents."""
    return " ".join(text.split())


def test_the_plan_of_a_resumed_run_names_the_keys_that_differ_from_its_own(
    three_steps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pipeline=grpo", "env=math", "trainer.total_steps=9", "trainer.seed=5"]
    (three_steps / "config.yaml").write_text(to_yaml(parse_config(words)))
    assert main(["--plan", *words, f"trainer.resume={three_steps}"]) == 0
    assert " changed " not in one_line(capsys.readouterr().out)
    other = ["pipeline=dapo", "trainer.total_steps=4", f"trainer.resume={three_steps}"]
    assert main(["--plan", "--config", f"{three_steps}/config.yaml", *other]) == 0
    changed = one_line(capsys.readouterr().out).split(" changed ")[1].split(" length ")[0]
    assert "trainer.total_steps 9 -> 4" in changed
    assert "dag.pipeline grpo -> dapo" in changed
    assert "trainer.seed" not in changed


def test_a_value_whose_type_alone_differs_is_shown_in_quotes_where_it_is_text(
    three_steps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = to_yaml(parse_config([*GYM, "env.kwargs={sutton_barto_reward: 'true'}"]))
    (three_steps / "config.yaml").write_text(config)
    own = ["env.kwargs={sutton_barto_reward: true}", "trainer.total_steps=9"]
    assert main(["--plan", *GYM, *own, f"trainer.resume={three_steps}"]) == 0
    assert "env.kwargs {sutton_barto_reward: 'true'} -> {sutton_barto_reward: true}" in one_line(
        capsys.readouterr().out
    )


def test_the_plan_names_the_step_at_which_a_resumed_run_begins(
    three_steps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--plan", *GYM, f"trainer.resume={three_steps}", "trainer.total_steps=4"]) == 0
    plan = one_line(capsys.readouterr().out)
    assert f"begins after step 3 of {three_steps} length 1 of 4 steps" in plan
    assert (
        main(["--plan", *GYM, "trainer.resume=auto", f"trainer.output_dir={tmp_path / 'other'}"])
        == 0
    )
    assert "begins new run: trainer.resume=auto found no checkpoint of grpo " in one_line(
        capsys.readouterr().out
    )


def test_a_read_only_output_folder_is_refused_after_the_plan(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*GYM, "cluster=local", "trainer.output_dir=/proc/out"]) == REFUSED
    assert "trainer.output_dir=/proc/out cannot be written" in capsys.readouterr().err


def test_missing_rendering_is_reported_with_the_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--plan", *GYM, "env.kwargs={render_mode: null}"]) == 0
    told = capsys.readouterr().err
    assert told.startswith(
        "Warning: CartPole-v1 cannot be rendered here, so no videos are recorded "
        "(trainer.record_episodes"
    )
    assert ("pip install pygame" in told) == (importlib.util.find_spec("pygame") is None)


def test_defaults_alone_are_the_demo_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plan"]) == 0
    plan = one_line(capsys.readouterr().out)
    assert (
        "pipeline embodied_srpo: rollout_actor -> embodied_sampling -> data_rebalance -> "
        "compute_reward" in plan
    )
    assert "tasks metaworld: " in plan
    assert "12 prompts x 8 rollouts = 96 trajectories" in plan


def test_a_reader_who_leaves_early_gets_no_traceback(tmp_path: Path) -> None:
    command = f"{sys.executable} -m siirl.train --help | head -1"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")
