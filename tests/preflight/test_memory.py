"""Memory: its parts, and the refusal of jobs far beyond a machine's memory."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from envs.base import EnvSpec
from envs.libero.libero_env import STAND_IN_MEMORY
from siirl.params import SiiRLArguments, sizes
from siirl.params.parser import parse_config
from siirl.preflight.cpu_ranks import cpu_ranks_memory
from siirl.preflight.memory import (
    episodes_at_once,
    episodes_of_training,
    evaluation_memory,
    image_bytes_per_trajectory,
    shortage,
    simulation_problems,
    training_memory,
)
from tests.preflight.camera_spec import SPEC

STAND_INS = dataclasses.replace(SPEC, memory=STAND_IN_MEMORY, tasks=tuple(map(str, range(90))))
JOB = (
    "actor_rollout_ref.model.path=null",
    "data.train_batch_size=12",
    "actor_rollout_ref.rollout.n=8",
    "env.num_servers=2",
    "env.envs_per_server=4",
    "trainer.val_episodes=30",
)
WITHOUT_COPY = "trainer.async_save=false"
IMAGE_BYTES = 13 * 64 * 64 * 3  # of a trajectory: 100 steps in chunks of 8


def job(*overrides: str) -> SiiRLArguments:
    return parse_config([*JOB, *overrides])


def refusals(overrides: Sequence[str], spec: EnvSpec, *, total_memory_bytes: float) -> list[str]:
    """The refusal or warning of training."""
    config = job(*overrides)
    found = simulation_problems(
        config, spec, episodes_of_training(config), total_memory_bytes=total_memory_bytes
    )
    return [str(problem) for problem in found]


def test_environments_in_the_process_of_a_rank_need_no_interpreter() -> None:
    """Two servers at 230 MB with two scenes at 60 MB and 8 simulators at 25 MB; an interpreter is
    200 MB.
    """
    apart, inside = (
        dict(evaluation_memory(job(f"cluster={mode}"), SPEC))["environments"]
        for mode in ("ray", "local")
    )
    assert apart == 2 * (230e6 + 2 * 60e6 + 8 * 25e6)
    assert apart - inside == 2 * 200e6


def test_a_worker_that_compiles_holds_the_compiler() -> None:
    plain, compiled = (
        dict(training_memory(job(*words), SPEC, models=1))["workers"]
        for words in ((), ("actor_rollout_ref.actor.use_torch_compile=true",))
    )
    assert compiled - plain == 90e6


def test_a_trajectory_keeps_one_image_per_chunk() -> None:
    assert image_bytes_per_trajectory(job().actor_rollout_ref.model, SPEC) == IMAGE_BYTES


def test_an_openvla_of_the_first_form_keeps_one_image_an_action() -> None:
    model = job("actor_rollout_ref.model.policy=openvla").actor_rollout_ref.model
    assert image_bytes_per_trajectory(model, SPEC) == 100 * 64 * 64 * 3


def test_environments_and_images_that_take_far_more_than_all_memory_are_refused() -> None:
    """2 servers at 230 MB with 2 scenes at 60 MB, and 8 environments of 2 tasks at 25 MB, are 1.1
    GB; half as much again is given.
    """
    needed = 2 * (230e6 + 2 * 60e6) + 8 * 2 * 25e6 + 96 * IMAGE_BYTES
    assert refusals([], SPEC, total_memory_bytes=needed / 1.4) == []
    (problem,) = refusals([], SPEC, total_memory_bytes=needed / 1.6)
    assert "= 2 x 4 environments with 2 tasks each take about 1.1 GB" in problem
    assert (
        "12 x 8 trajectories 15 MB, but this machine has 697 MB of memory: lower env.num_servers "
        "or env.envs_per_server, " in problem
    )
    assert refusals(["cluster.address=10.0.0.1:6379"], SPEC, total_memory_bytes=1.0) == []


@pytest.mark.parametrize(
    ("overrides", "held", "told"),
    [
        ((), 96, "12 x 8 trajectories"),
        (("trainer.val_episodes=4900", "trainer.val_samples=2"), 96, "12 x 8 trajectories"),
        (("env.envs_per_server=50",), 100, "100 episodes at the same time"),
    ],
)
def test_training_holds_the_images_of_a_step_or_of_the_episodes_of_an_evaluation_that_run(
    overrides: tuple[str, ...], held: int, told: str
) -> None:
    found = episodes_of_training(job(*overrides))
    assert found.count == held
    assert told in found.in_keys


def test_an_evaluation_holds_the_episodes_that_run_however_many_there_are() -> None:
    config = job("trainer.val_episodes=1000")
    assert episodes_at_once(sizes.slots(config.env, ranks=1)).count == 8


@pytest.mark.parametrize(
    ("overrides", "spec", "remedy"),
    [
        (
            (),
            SPEC,
            ": lower env.num_servers or env.envs_per_server, name fewer env.tasks, or give "
            "cluster.address=",
        ),
        (
            (),
            STAND_INS,
            "name fewer env.tasks, keep fewer simulators ('env.kwargs={kept_simulators: 1}'), or",
        ),
        (
            ("env.kwargs={kept_simulators: 1}",),
            STAND_INS,
            ": lower env.num_servers or env.envs_per_server, or give cluster.address=",
        ),
        (
            ("env.num_servers=1", "actor_rollout_ref.rollout.n=10000"),
            SPEC,
            ": lower one of these two, or give cluster.address=",
        ),
        (
            ("env.num_servers=1", "env.envs_per_server=1", "cluster=local"),
            SPEC,
            "of memory: name fewer env.tasks.",
        ),
    ],
)
def test_the_remedy_is_for_the_largest_part(
    overrides: tuple[str, ...], spec: EnvSpec, remedy: str
) -> None:
    (problem,) = refusals(overrides, spec, total_memory_bytes=1e8)
    assert remedy in problem


def test_the_ninety_tasks_of_a_suite_are_refused_on_a_laptop_and_fit_where_one_simulator_is_kept() -> (
    None
):
    """Two servers at 300 MB, scenes of 50 MB, and simulators of 50 MB in four environments each, of
    90 tasks: 45.6 GB.
    """
    (problem,) = refusals([], STAND_INS, total_memory_bytes=16e9)
    assert "2 x 4 environments with 90 tasks each take about 45.6 GB" in problem
    assert refusals(["env.kwargs={kept_simulators: 1}"], STAND_INS, total_memory_bytes=16e9) == []


@pytest.mark.parametrize(("expert_only", "expected"), [(True, 3 * 16 + 10 * 4), (False, 13 * 16)])
def test_frozen_weights_have_neither_gradients_nor_moments(
    tmp_path: Path, expert_only: bool, expected: int
) -> None:
    frozen = {"paligemma_with_expert.paligemma.lm_head.weight": torch.zeros(10)}
    save_file(frozen | {"action_in_proj.bias": torch.zeros(3)}, tmp_path / "model.safetensors")
    asked = () if expert_only else ("actor_rollout_ref.model.options={train_expert_only: false}",)
    words = (f"actor_rollout_ref.model.path={tmp_path}", "actor_rollout_ref.model.policy=pi0")
    parts = dict(cpu_ranks_memory(job(*words, *asked, WITHOUT_COPY), SPEC))
    assert parts["weights"] + parts["Adam"] + parts["gradients"] == expected


@pytest.mark.parametrize(
    ("words", "bytes_per_parameter"),
    [
        ((), {"a checkpoint in writing": 4 + 8}),
        (("actor_rollout_ref.model.lora.rank=4",), {"a checkpoint in writing": 4}),
        (
            ("actor_rollout_ref.model.lora.rank=4", "actor_rollout_ref.model.dtype=bfloat16"),
            {"a checkpoint in writing": 2},
        ),
        (("trainer.save_freq=-1",), {}),
        (
            ("trainer.save_freq=-1", "actor_rollout_ref.actor.offload_optimizer=true"),
            {"offloaded": 8},
        ),
        (
            (
                "trainer.save_freq=-1",
                "trainer.n_gpus_per_node=1",
                "actor_rollout_ref.rollout.name=vllm",
            ),
            {"vLLM asleep": 2 * 4},
        ),
        (
            (
                "trainer.save_freq=-1",
                "actor_rollout_ref.rollout.name=vllm",
                "trainer.n_gpus_per_node=8",
                "actor_rollout_ref.model.dtype=bfloat16",
            ),
            {"vLLM asleep": 8 * 2 * 2},
        ),
        (
            (
                "trainer.save_freq=-1",
                "actor_rollout_ref.rollout.name=vllm",
                "actor_rollout_ref.rollout.sleep=false",
            ),
            {},
        ),
    ],
)
def test_beside_gpus_the_host_holds_copies_and_what_is_offloaded(
    words: tuple[str, ...], bytes_per_parameter: dict[str, int]
) -> None:
    parts = dict(training_memory(job(*words), SPEC, models=1))
    assert "gradients" not in parts
    expected = {name: number * 2_200_000 for name, number in bytes_per_parameter.items()}
    left = ("a checkpoint in writing", "offloaded", "vLLM asleep")
    assert {name: parts[name] for name in left if name in parts} == expected
    assert len(parts) == len(training_memory(job(*words), SPEC, models=1, ranks=())) + len(expected)


def test_the_moments_of_a_critic_are_offloaded_with_those_of_the_policy() -> None:
    offloading = job("actor_rollout_ref.actor.offload_optimizer=true")
    alone, beside = (dict(training_memory(offloading, SPEC, models=models)) for models in (1, 2))
    assert beside["offloaded"] == 2 * alone["offloaded"]


def test_vllm_on_a_cpu_holds_weights_keys_and_values_in_host_memory() -> None:
    """A sleeping vLLM has no other place for them; 600 MB are its imports."""
    words = ("rollout=vllm", "model=causal_lm", "actor_rollout_ref.rollout.kv_cache_gib=2")
    config = job(*words, WITHOUT_COPY)
    ranks = cpu_ranks_memory(config, SPEC)
    parts = dict(training_memory(config, SPEC, models=1, ranks=ranks))
    assert parts["vLLM"] == 600e6
    assert parts["vLLM's weights"] == 2 * 2_200_000
    assert parts["keys and values"] == 2 * 2**30
    assert parts["gradients"] == 4 * 2_200_000
    sentence = shortage((("keys and values", 2e9),), free_memory_bytes=1e9)
    assert sentence is not None
    assert "or actor_rollout_ref.rollout.kv_cache_gib of vLLM" in sentence


PAIR = ("dag.groups={rollout: 1, train: 1}", "trainer.n_gpus_per_node=2")
LORA, HALF = "actor_rollout_ref.model.lora.rank=4", "actor_rollout_ref.model.dtype=bfloat16"


@pytest.mark.parametrize(
    ("words", "bytes_per_parameter"),
    [
        ((), 3 * 4),
        (("trainer.max_staleness=2", "actor_rollout_ref.rollout.mode=sync"), 5 * 4),
        (("trainer.max_staleness=2",), 3 * 4),
        ((LORA,), 4),
        ((LORA, HALF), 2),
        ((HALF,), 3 * 4),
        ((HALF, "trainer.force_process_group=true"), 3 * 2),
    ],
)
def test_stored_weights_of_all_steps_that_may_act_are_in_host_memory(
    words: tuple[str, ...], bytes_per_parameter: int
) -> None:
    """Of the newest step, the next and one to be freed; in blocks also of max_staleness before."""
    parts = dict(training_memory(job(*PAIR, *words), SPEC, models=1, sends=False))
    assert parts["weights for rollout ranks"] == bytes_per_parameter * 2_200_000


SCHEDULE = ("trainer.max_staleness=2", "actor_rollout_ref.rollout.mode=sync")


@pytest.mark.parametrize(
    ("words", "bytes_per_parameter"),
    [
        (("trainer.max_staleness=0",), 2 * 4),  # a bucket on each side
        (("trainer.max_staleness=2",), 2 * 4),
        (("trainer.max_staleness=2", "rollout=vllm", "env=math"), 3 * 4),
        (SCHEDULE, None),
    ],
)
def test_weights_that_training_ranks_send_need_a_bucket_and_in_a_stream_of_vllm_a_copy(
    words: tuple[str, ...], bytes_per_parameter: int | None
) -> None:
    """The 2.2 million weights of the shipped policy fit in a bucket."""
    parts = dict(training_memory(job(*PAIR, *words), SPEC, models=1))
    number = None if bytes_per_parameter is None else bytes_per_parameter * 2_200_000
    assert parts.get("weights in transfer") == number
    assert ("weights for rollout ranks" in parts) == (number is None)


def test_an_evaluation_holds_weights_once() -> None:
    """2.2 million parameters in float32 without gradient and moments."""
    parts = dict(evaluation_memory(job(), SPEC))
    assert parts["policy"] == 4 * 2_200_000
    assert parts["images"] == 8 * IMAGE_BYTES


def test_a_need_beyond_the_free_memory_is_reported() -> None:
    parts = (("environments", 2e9), ("workers", 1e9))
    assert shortage(parts, free_memory_bytes=3e9) is None
    sentence = shortage(parts, free_memory_bytes=2.9e9)
    assert sentence is not None
    assert sentence.startswith(
        "3.0 GB is more than the free 2.9 GB of memory. The largest part is environments: lower "
        "env.num_servers"
    )


@pytest.mark.parametrize(
    ("largest", "remedy"),
    [
        ("workers", "lower trainer.n_gpus_per_node"),
        ("agent 1's Adam", "use a smaller model"),
        ("a checkpoint in writing", "write checkpoints before training continues"),
        ("keys and values", "lower env.envs_per_server"),
        ("activations", "recompute them"),
        ("images", "lower data.train_batch_size"),
        ("environments of agent 1", "lower env.num_servers"),
        ("vLLM asleep", "leave vLLM's weights on the GPU, actor_rollout_ref.rollout.sleep=false"),
    ],
)
def test_the_remedy_of_a_shortage_lowers_its_largest_part(largest: str, remedy: str) -> None:
    sentence = shortage((("environments", 1e9), (largest, 2e9)), free_memory_bytes=1e9)
    assert sentence is not None and f"is {largest}: {remedy}" in sentence
