"""Mistyped values on the command line: one message with value and remedy, status 2, no run."""

from pathlib import Path

import numpy as np
import pytest

from siirl.terminal.exit_status import REFUSED
from siirl.train import main

GYM = ("pipeline=grpo", "env=gymnasium", "env.id=CartPole-v1")
SRPO = ("env=custom", "env.name=filmed_env:FilmedEnv")


@pytest.fixture(autouse=True)
def find_filmed_env(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets configurations name the environment beside this file."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    """The message with which these words are refused; nothing else is printed."""
    assert main(words) == REFUSED
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("siirl: ")
    return captured.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("env.image_size=0",), "env.image_size=0 (command line) must be at least 8"),
        (
            ("actor_rollout_ref.actor.optim.lr=1e300",),
            "actor_rollout_ref.actor.optim.lr=1e+300 (command line) must be at most 10",
        ),
        (("dag.pipeline=null",), "dag.pipeline=null, but no custom graph is named: choose"),
        (("dag.pipeline=[grpo]",), "dag.pipeline=[grpo] (command line) must be text or null"),
        (("dag.pipeline=grp",), "Unknown pipeline 'grp'. Did you mean 'grpo'?"),
        (("env.image_size=100000",), "env.image_size=100000 (command line) must be at most 2048"),
        (("env.envs_per_server=0",), "env.envs_per_server=0 (command line) must be at least 1"),
        (
            ("env.envs_per_server=10000000",),
            "env.envs_per_server=10000000 (command line) must be at most 10000",
        ),
        (("env.envs_per_server=1.5",), "env.envs_per_server=1.5 (command line) must be an integer"),
        (
            ("actor_rollout_ref.actor.optim.lr=nan",),
            "actor_rollout_ref.actor.optim.lr=nan (command line) must be a finite number",
        ),
        (
            ("trainer.max_minutes=inf",),
            "trainer.max_minutes=inf (command line) must be a finite number",
        ),
        (
            ("trainer.total_steps=soon",),
            "trainer.total_steps=soon (command line) must be an integer or null",
        ),
        (("trainer.seed=100000000000000000000",), "(command line) must be at most 4294967295"),
        (
            ("data.train_batch_size=1000000000",),
            "data.train_batch_size=1000000000 (command line) must be at most 1000000",
        ),
        (
            ("actor_rollout_ref.rollout.n=1000000",),
            "actor_rollout_ref.rollout.n=1000000 (command line) must be at most 10000",
        ),
        (("actor_rollout_ref.embodied.recorder_size=50000",), "must be at most 2048"),
        (
            ("trainer.output_dir=",),
            "trainer.output_dir is empty: name a folder, or leave it out for outputs/.",
        ),
        (
            ("trainer.experiment_name=",),
            "trainer.experiment_name='' is a folder below trainer.output_dir",
        ),
        (
            ("env.tasks=[]",),
            "env.tasks=[] (command line) names nothing: give one or more, or leave it out.",
        ),
        (
            ("env=math", "env.tasks=[sums-2,sums-3,sums-2]"),
            "env.tasks=[sums-2,sums-3,sums-2] (command line) has sums-2 twice",
        ),
        (("env=libero", "env.tasks=[0,'0']"), "env.tasks=[0,0] (command line) has 0 twice"),
        (
            (
                "env=libero",
                "env.assets=stand_in",
                "env.tasks=[0,pick_up_the_alphabet_soup_and_place_it_in_the_basket]",
            ),
            "tasks has a task twice: 0, pick_up_the_alphabet_soup",
        ),
        (
            ("env=math", "data.train_files=[a.jsonl,a.jsonl]"),
            "data.train_files=[a.jsonl,a.jsonl] (command line) has a.jsonl twice",
        ),
        (
            ("trainer.logger=[console,console]",),
            "trainer.logger=[console,console] (command line) has console twice",
        ),
        (
            ("trainer.hang_minutes=1e-9",),
            "trainer.hang_minutes=1e-09 (command line) must be at least 0.05",
        ),
        (("trainer.grace_s=1e-9",), "trainer.grace_s=1e-09 (command line) must be at least 1"),
        (
            (*GYM, "env.kwargs={id: Pendulum-v1}"),
            "env.id=CartPole-v1 and env.kwargs.id=Pendulum-v1 set the same argument",
        ),
        (
            ("env.max_episode_steps=5", "env.kwargs={max_episode_steps: 3}"),
            "env.max_episode_steps=5 and env.kwargs.max_episode_steps=3 set the same argument of "
            "the environment: set env.max_e",
        ),
        (
            ("env.tasks=[drawer-open]", "env.kwargs={tasks: [push]}"),
            "env.tasks=[drawer-open] and env.kwargs.tasks=[push] set the same argument",
        ),
        (
            ("env=math", "pipeline=grpo", "env.kwargs={num_graders: 1000.0}"),
            "num_graders must be a whole number, got 1000.0",
        ),
        (
            ("env=tools", "pipeline=grpo", "env.kwargs={num_graders: 1.5}"),
            "num_graders must be a whole number, got 1.5",
        ),
        (
            ("env=math", "pipeline=grpo", "reward.name=model"),
            "reward.name=model needs a classifier, but reward_model.path=null",
        ),
        (
            ("env=metaworld", "algorithm.filter.name=zero_variance"),
            "algorithm.filter.name=zero_variance compares the rewards of a group, but "
            "pipeline=embodied_srpo filters before it computes rewards: use success_band or "
            "truncation",
        ),
        (
            ("profiler.enable=true", "profiler.steps=[5,7]", "trainer.total_steps=4"),
            "profiler.steps=[5,7] lie beyond trainer.total_steps=4",
        ),
        (
            (*GYM[1:], "pipeline=ppo", "trainer.critic_warmup=1000", "trainer.total_steps=3"),
            "trainer.critic_warmup=1000 with trainer.total_steps=3 leaves no step that trains the "
            "actor: set it to at most 2",
        ),
        (("env.deadline_s=0.0009",), "env.deadline_s=0.0009 (command line) must be at least 0.001"),
        (
            ("env=math", "reward.timeout_s=1e-6"),
            "reward.timeout_s=1e-06 (command line) must be at least 0.001",
        ),
        (
            ("env=math", "pipeline=grpo", "env.kwargs={grading_cpu_s: 1e-9}"),
            "grading_cpu_s must be at least 0.001 s and finite, got 1e-09",
        ),
        (
            ("env=tools", "pipeline=grpo", "env.kwargs={tool_deadline_s: 16}"),
            "env.deadline_s=60 replaces a server as hung, but a step of env.name=tools may take 64 s",
        ),
        (
            ("env=tools", "pipeline=grpo", "env.kwargs={tool_deadline_s: 1e-9}"),
            "deadline_s must be at least 0.001 s and finite, got 1e-09",
        ),
        (
            (
                "env=sandbox",
                "env.isolation=none",
                "pipeline=grpo",
                "env.kwargs={limits: {wall_s: 1e-9}}",
            ),
            "limits.wall_s must be at least 0.001, and finite, got 1e-09",
        ),
        (
            ("profiler.enable=true", "profiler.steps=[-1]"),
            "profiler.steps[0]=-1 (command line) must be at least 1.",
        ),
        (
            ("profiler.enable=true", "profiler.steps=[2,2]"),
            "profiler.steps=[2,2] (command line) has 2 twice",
        ),
        (
            ("profiler.enable=true", "profiler.steps=[]"),
            "profiler.steps=[] (command line) names nothing",
        ),
        (("env.tasks=[drawer-open,drawer-open-v3]",), "tasks has a task twice"),
        (
            ("actor_rollout_ref.actor.strategy=megatron",),
            "strategy=megatron (command line) is not supported: weights are sharded by FSDP2",
        ),
        (
            ("actor_rollout_ref.rollout.name=sglang",),
            "rollout.name=sglang (command line) is not supported: choose rollout=vllm, rollout=hf or "
            "rollout=server",
        ),
        (("env.camera=table2",), "Unknown camera 'table2'. Did you mean 'table'?"),
        (
            ("env.max_episode_steps=501",),
            "max_episode_steps must lie in [1, 500] (Meta-World's limit), got 501",
        ),
        (("env.render_quality=ultra",), "Unknown env.render_quality (command line) 'ultra'"),
        (
            ("trainer.val_episodes=900001",),
            "a task has 900000 held-out seeds; set at most that many",
        ),
        (("pipeline=my_graph.yaml",), "dag.workflow_file=FILE.yaml"),
        (("pipeline=my_module:graph",), "dag.custom_pipeline_fn=module:function"),
        (("pipeline=grpo", "env=gymnasium", "env.id="), "env=gymnasium needs env.id"),
        (
            ("pipeline=grpo", "env=gymnasium", "env.id=no good id"),
            "Unknown Gymnasium id 'no good id'",
        ),
        (
            ("pipeline=grpo", "env=gymnasium", "env.id=CartPole-v1", "env.kwargs={gravity: 1}"),
            "does not take these arguments",
        ),
        (
            (
                "pipeline=grpo",
                "env=gymnasium",
                "env.id=FrozenLake-v1",
                "env.kwargs={map_name: 9x9}",
            ),
            "env.id=FrozenLake-v1 env.kwargs={map_name: 9x9}: making it and taking one step raised "
            "KeyError: '9x9'",
        ),
    ],
)
def test_an_impossible_value_is_refused_with_its_place(
    words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in refused(words, capsys)


def test_too_many_ranks_are_reported_with_the_sizes_that_do_not_fit_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Otherwise a user would fit the batch to ranks that the machine does not have."""
    first, second = refused((*GYM, "trainer.n_gpus_per_node=4097"), capsys).splitlines()[1:3]
    assert "trainer.n_gpus_per_node=4097 asks for 4097 ranks, but this machine has" in first
    assert "data.train_batch_size=12 is not divisible by ranks" in second


def test_options_that_the_shipped_weights_do_not_have_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    message = refused(
        ("actor_rollout_ref.model.options={bins: 64}", "reward=success", "pipeline=grpo"), capsys
    )
    assert (
        "actor_rollout_ref.model.options has bins=64, but the weights in assets/tiny_vla were made "
        "with bins=16: leave it out" in message
    )


@pytest.mark.parametrize(
    "option", ["bins: 1", "chunk_length: 0", "width: wide", "instruction_length: -1"]
)
def test_an_impossible_size_of_the_policy_is_refused(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused((*SRPO, f"actor_rollout_ref.model.options={{{option}}}"), capsys)
    assert (
        f"model.options={{{option}}} does not fit env=filmed_env:FilmedEnv: {option.split(':')[0]}="
        in message
    )
    assert "must be an integer of at least" in message


def test_pictures_too_large_for_a_policy_are_refused_with_the_size_and_the_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """tiny_vla halves a side three times: 250 x 250 places with 64 numbers each are read by 65,536
    units of float32, which is 1.05 TB.
    """
    words = ("model=tiny_vla", "actor_rollout_ref.model.options={width: 65536}")
    words += ("pipeline=grpo", "reward=success", "env.kwargs={pixels: 2000}")
    message = refused((*SRPO, *words), capsys)
    assert "(1, 2000, 2000, 3), uint8" in message
    assert "its weights take 1" in message
    assert "Make the observations smaller: with env.kwargs, or gymnasium.wrappers" in message
    assert "\n" not in message.rstrip()


def test_far_more_simulators_than_memory_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(
        ("env=metaworld", "pipeline=grpo", "env.num_servers=2", "env.envs_per_server=10000"), capsys
    )
    assert "but this machine has" in message
    assert "lower env.num_servers or env.envs_per_server" in message


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            (
                "actor_rollout_ref.model.lora.rank=8",
                "actor_rollout_ref.model.lora.target_modules=[haed]",
            ),
            "Unknown linear layer (actor_rollout_ref.model.lora.target_modules) 'haed'",
        ),
        (
            ("actor_rollout_ref.model.lora.rank=8",),
            "lora.rank=8 is more than layer proprioception.0 of 256 x 4 allows: lower it to "
            "4, or name wider layers",
        ),
        (
            ("env=math", "actor_rollout_ref.model.lora.rank=200"),
            "lora.rank=200 is more than layer model.layers.0.self_attn.q_proj of 128 x 128",
        ),
    ],
)
def test_adapters_that_the_model_cannot_have_are_refused(
    words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = ("pipeline=grpo",) if "env=math" in words else GYM
    assert expected in refused((*job, *words), capsys)


@pytest.mark.parametrize("content", [b"not numpy", b"PK\x03\x04 cut off"])
def test_demonstrations_that_are_not_clips_are_refused(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "clips.npz"
    file.write_bytes(content)
    message = refused((*SRPO, f"reward.demonstrations={file}"), capsys)
    assert f"reward.demonstrations={file} holds no clips" in message
    assert "siirl warm-start --clips FILE" in message


def test_demonstrations_of_other_tasks_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "clips.npz"
    np.savez(file, **{"push/000": np.zeros((2, 8, 8, 3), np.uint8)})
    message = refused((*SRPO, f"reward.demonstrations={file}"), capsys)
    assert (
        "has clips of push, but this job has the tasks wait: use demonstrations of these" in message
    )


@pytest.mark.parametrize("name", ["folder", "file.md"])
def test_an_encoder_that_cannot_be_loaded_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
        (path / "config.json").write_text('{"width": 3}')
    else:
        path.write_text("an encoder of mine")
    assert f"reward.encoder={path} cannot be loaded: " in refused(
        (*SRPO, f"reward.encoder={path}"), capsys
    )


def test_a_workflow_file_that_is_not_text_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "graph.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    assert f"{file} is not YAML: 'utf-8' codec can't decode" in refused(
        (*GYM, f"dag.workflow_file={file}"), capsys
    )


def test_a_graph_with_a_cycle_is_refused_with_its_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "graph.yaml"
    node = "- {{node_id: {0}, dependencies: [{1}], node_type: COMPUTE, node_role: ADVANTAGE}}\n"
    file.write_text("nodes:\n" + node.format("first", "second") + node.format("second", "first"))
    message = refused((*GYM, f"dag.workflow_file={file}"), capsys)
    assert "first" in message and "second" in message
    assert "cycle" in message


@pytest.mark.parametrize("name", ["sglang", "megatron"])
def test_help_leaves_out_a_name_that_is_always_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("--help",)) == 0
    assert name not in capsys.readouterr().out


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_a_number_that_is_not_finite_is_one_problem(value, capsys) -> None:
    assert refused((f"trainer.grace_s={value}",), capsys) == (
        f"siirl: trainer.grace_s={value} (command line) must be a finite number.\n"
    )


def test_a_workflow_file_that_is_no_regular_file_is_said_to_be_there(tmp_path, capsys) -> None:
    said = refused((f"dag.workflow_file={tmp_path}",), capsys)
    assert f"dag.workflow_file={tmp_path}: is a folder: name a file in it." in said
    said = refused(("dag.workflow_file=/dev/zero",), capsys)
    assert "dag.workflow_file=/dev/zero: is not a regular file." in said
    said = refused((f"dag.workflow_file={tmp_path}/none.yaml",), capsys)
    assert "/none.yaml: there is no such file." in said


def test_a_device_is_no_file_of_keys(capsys) -> None:
    said = refused(("--config", "/dev/zero"), capsys)
    assert "--config /dev/zero: is not a regular file, for example" in said
