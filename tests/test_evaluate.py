"""`python -m siirl.evaluate`: its measurements, the settings that it takes from a run, and
refusals.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envs.registry import env_spec
from siirl.dag_worker.manifest import FORMAT, fingerprint
from siirl.evaluate import main
from siirl.jobs.evaluation import adds_to
from siirl.models.policy_loader import build_policy, save_policy
from siirl.reporting.statistics import success_interval

REFUSED = 2
CARTPOLE = (
    "env=gymnasium",
    "env.id=CartPole-v1",
    "cluster=local",
    "env.num_servers=1",
    "trainer.record_val_episodes=0",
)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A folder with new weights for CartPole; its name has letters that the command line has a use
    for.
    """
    folder = tmp_path / "my, policy (1)"
    save_policy(
        build_policy(
            "tiny_vla",
            path=None,
            spec=env_spec("gymnasium", id="CartPole-v1"),
            seed=0,
            options={"width": 8},
        ),
        folder,
    )
    return folder


def evaluation(folder: Path) -> dict[str, Any]:
    """Result of the only evaluation below `folder`."""
    (file,) = folder.glob("evaluation/*/evaluation.json")
    return json.loads(file.read_text())


def test_returns_are_printed_beside_success_unless_they_are_the_same() -> None:
    success = {"argmax": {"push": success_interval(1, 4)}}
    assert adds_to(success, {"argmax": {"push": 17.5}})
    assert not adds_to(success, {"argmax": {"push": 0.25}})
    assert adds_to({}, {"argmax": {"push": 0.25}})


def test_a_task_with_a_success_flag_shows_its_return(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = env_spec("gymnasium", id="tests.envs.paid_steps:PaidSteps-v0")
    untrained = build_policy("tiny_vla", path=None, spec=spec, seed=0, options={"width": 8})
    save_policy(untrained, tmp_path / "policy")
    words = (
        f"checkpoint={tmp_path / 'policy'}",
        *("env=gymnasium", "env.id=tests.envs.paid_steps:PaidSteps-v0", *CARTPOLE[2:]),
        *("trainer.val_episodes=2", f"trainer.output_dir={tmp_path}", "actions=argmax"),
    )
    assert main(words) == 0
    found, told = evaluation(tmp_path), " ".join(capsys.readouterr().out.split())
    assert found["success"]["argmax"]["all"]["successes"] == 2
    assert "success on held-out episodes" in told
    _, returns = told.split("mean return of 2 held-out episodes of each task, seeds 0 to 1")
    assert "1.5" in returns
    assert found["return"]["argmax"]["all"] == 1.5


def test_returns_are_reported_without_a_success_flag(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pole stands for 8 to 500 steps, each worth 1."""
    words = (
        f"checkpoint={policy}",
        *CARTPOLE,
        "trainer.val_episodes=3",
        f"trainer.output_dir={tmp_path}",
        "actions=both",
    )
    assert main(words) == 0
    found = evaluation(tmp_path)
    assert found["success"] == {"sampled": {}, "argmax": {}}
    assert found["return"]["sampled"].keys() == {"CartPole-v1", "all"}
    assert 8 <= found["return"]["argmax"]["all"] <= 500
    told = capsys.readouterr().out
    assert "mean return of 3 held-out episodes of each task, seeds 0 to 2" in " ".join(told.split())
    assert f"{found['return']['sampled']['all']:.1f}" in told


def test_perturbations_are_evaluated_beside_standard_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "checkpoint=assets/tiny_vla",
        "env=metaworld",
        "env.tasks=[drawer-open]",
        "env.perturb=[camera,instruction]",
        "env.max_episode_steps=10",
        "env.num_servers=1",
        "env.envs_per_server=1",
        "cluster=local",
        "trainer.val_episodes=1",
        "trainer.record_val_episodes=1",
        f"trainer.output_dir={tmp_path}",
        "actions=sampled",
    )
    assert main(words) == 0
    cases = ["standard", "camera", "instruction", "together"]
    assert list(evaluation(tmp_path)["success"]) == [f"sampled/{case}" for case in cases]
    told = capsys.readouterr().out
    assert "perturbed: camera, instruction (strength 1)" in " ".join(told.split())
    options = {
        tuple(json.loads(file.read_text())["options"]["perturb"])
        for file in tmp_path.glob("evaluation/*/videos/**/*.json")
    }
    assert options == {(), ("camera",), ("instruction",), ("camera", "instruction")}


def test_a_run_with_many_ranks_and_demonstrations_is_evaluated_by_one_process_without_them(
    policy: Path, tmp_path: Path
) -> None:
    """Training settings of the run's config.yaml do not matter here: this machine may be
    smaller, the clips may be gone.
    """
    own = {
        "trainer.n_gpus_per_node": 4096,
        "data.train_batch_size": 4096,
        "reward.demonstrations": "gone.npz",
        "actor_rollout_ref.actor.ppo_mini_batch_size": 4096,
    }
    run = run_of(policy, {"pipeline": "grpo", **own}, tmp_path)
    assert main((f"checkpoint={run}", f"trainer.output_dir={tmp_path}", "actions=argmax")) == 0
    assert evaluation(tmp_path)["episodes_per_task"] == 1


def test_a_run_of_segments_is_evaluated_in_an_environment_of_the_command_line(
    policy: Path, tmp_path: Path
) -> None:
    """`env=` brings its own sizes of groups and steps, which do not fit those of the run."""
    own = {
        **{"pipeline": "ppo", "trainer": "classic_control"},
        "actor_rollout_ref.model.options": "{chunk_length: 8}",
    }
    run = run_of(policy, own, tmp_path)
    words = (f"checkpoint={run}", *CARTPOLE, "trainer.val_episodes=1", "actions=argmax")
    assert main((*words, f"trainer.output_dir={tmp_path}")) == 0
    assert evaluation(tmp_path)["episodes_per_task"] == 1


def test_a_run_of_a_control_policy_is_evaluated_in_an_environment_of_the_command_line(
    tmp_path: Path,
) -> None:
    """`env=` brings a default policy, which is not that of the run."""
    options = {"width": 8, "normalize": True}
    spec = env_spec("gymnasium", id="CartPole-v1")
    policy = build_policy("control_policy", path=None, spec=spec, seed=0, options=options)
    save_policy(policy, tmp_path / "policy")
    own = {
        **{"pipeline": "ppo", "actor_rollout_ref.model.policy": "control_policy"},
        "actor_rollout_ref.model.options": "{width: 8, normalize: true}",
    }
    run = run_of(tmp_path / "policy", own, tmp_path)
    words = (f"checkpoint={run}", *CARTPOLE, "trainer.val_episodes=1", "actions=argmax")
    assert main((*words, f"trainer.output_dir={tmp_path}")) == 0
    assert evaluation(tmp_path)["episodes_per_task"] == 1


def run_of(policy: Path, own: Mapping[str, Any], tmp_path: Path) -> Path:
    """A run folder with this policy, which it takes, and these settings of its own."""
    run = tmp_path / "run"
    checkpoint = run / "checkpoints" / "step_00000001"
    checkpoint.mkdir(parents=True)
    (checkpoint.parent / "latest").write_text(checkpoint.name)
    policy.rename(checkpoint / "actor")
    (checkpoint / "state.pt").touch()
    files = {
        name: fingerprint(checkpoint / name) for name in ("state.pt", "actor/model.safetensors")
    }
    manifest = {"format": FORMAT, "step": 1, "engines": ["actor"], "files": files}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    words = {
        **{"env": "gymnasium", "env.id": "CartPole-v1", "env.num_servers": 1, "cluster": "local"},
        **own,
        **{"trainer.record_val_episodes": 0, "trainer.val_episodes": 1},
    }
    (run / "config.yaml").write_text("".join(f"{key}: {value}\n" for key, value in words.items()))
    return run


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "No policy given. Set checkpoint=FOLDER"),
        (("env=math",), "No policy given. Set checkpoint=FOLDER"),
        (("episodes=3",), "Unknown key 'episodes' (command line). Did you mean 'trainer.val_epi"),
        (("checkpoint=assets/tiny_vla", "--plan"), "Unknown flag '--plan'. Known: --help."),
        (("checkpoint=/dev/null",), "siirl: /dev/null: this is a file. Give a policy folder"),
        (
            ("checkpoint=no/such/where",),
            "siirl: no/such/where: the folder does not exist. Give a policy folder, a checkpoint, "
            "or a run folder.",
        ),
        (
            ("checkpoint=docs/examples",),
            "docs/examples is not a checkpoint. Expected: the folder of a run "
            "(outputs/<name>/<time>)",
        ),
        (("checkpoint=assets/tiny_vla", "actions=greedy"), "Unknown value of actions= 'greedy'"),
        (
            ("checkpoint=assets/tiny_vla", "trainer.val_episodes=0"),
            "trainer.val_episodes=0: an evaluation needs at least one episode",
        ),
        (
            ("checkpoint=assets/tiny_vla", "trainer.val_episode=3"),
            "Did you mean 'trainer.val_episodes'?",
        ),
        (
            (
                "checkpoint=assets/tiny_vla",
                "env.envs_per_server=10000",
            ),  # 2 x (230 + 3 x 60) MB, 20,000 x 3 x 25 MB
            "env.num_servers x env.envs_per_server = 2 x 10000 environments with 3 tasks each take "
            "about 1500.8 GB",
        ),
        (
            (
                "checkpoint=assets/tiny_vla_libero",
                "env=libero",
                "env.assets=stand_in",
                "env.suite=90",
                "env.envs_per_server=10000",
            ),
            # 2 x (300 + 90 x 50) MB, 20,000 x 50 MB
            "= 2 x 10000 environments with 90 tasks (1 of them kept) each take about 1009.6 GB",
        ),
        (
            ("checkpoint=assets/tiny_vla", *CARTPOLE),
            "The policy in assets/tiny_vla has image_shape=(1, 64, 64)",
        ),
        (
            ("checkpoint=assets/tiny_vla", "env=math", "cluster=local"),
            "actor_rollout_ref.model.path=assets/tiny_vla holds a tiny_vla, which outputs robot actions",
        ),
        (
            ("checkpoint=assets/tiny_lm", "env=metaworld", "cluster=local"),
            "config.json describes a qwen3 of transformers, not a robot policy",
        ),
        (
            ("checkpoint=assets/tiny_vla", *CARTPOLE, "resume=no/where"),
            "The policy in assets/tiny_vla has image_shape",
        ),
    ],
)
def test_a_job_that_cannot_be_evaluated_is_refused(
    words: tuple[str, ...], expected: str, tmp_path, capsys, monkeypatch, repository
) -> None:
    monkeypatch.chdir(repository)
    assert main((*words, f"trainer.output_dir={tmp_path}")) == REFUSED
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ((), "Found: an empty folder. siirl train writes checkpoints, every trainer.save_freq"),
        (("config.json",), "has config.json, but no weights (*.safetensors): copy the policy"),
    ],
)
def test_a_folder_without_weights_is_refused_with_the_command_that_writes_them(
    files: tuple[str, ...], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in files:
        (tmp_path / file).write_text("{}")
    assert main([f"checkpoint={tmp_path}"]) == REFUSED
    said = capsys.readouterr().err
    assert expected in said and "model.path" not in said
