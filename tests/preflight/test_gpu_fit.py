"""Refusals of jobs whose rank does not fit its GPU, and the settings that they name."""

import re
from collections.abc import Collection
from typing import Any

import pytest

from siirl.errors import ConfigError, SiirlError
from siirl.params import SiiRLArguments
from siirl.params.sizes import GIB
from siirl.preflight.config_checks import config_problems
from siirl.preflight.environment_checks import environment_problems
from siirl.preflight.gpu_fit import gpu_problems, table_lines
from siirl.preflight.machine import Gpu
from siirl.preflight.rank_memory import rank_memory
from siirl.preflight.rank_table import ROLLOUT_RANK
from siirl.preflight.unread import unread_problems
from tests.preflight.camera_spec import QUESTIONS
from tests.preflight.published_models import (
    ADAPTERS,
    EIGHTY_GB,
    EXPERTS,
    FEW_TOKENS,
    HF,
    LIBERO_10,
    ONE_GPU,
    OPENVLA,
    QWEN,
    ROLLOUT,
    libero,
    remedies,
    sparse,
    text,
)


@pytest.mark.parametrize(
    ("words", "sends", "held"),
    [
        ((), None, {"acting weights": 2 * 7_615_616_512}),
        (("trainer.max_staleness=1",), None, {"acting weights, twice": 4 * 7_615_616_512}),
        ((), False, {"acting weights, twice": 4 * 7_615_616_512}),  # one of several agents
    ],
)
def test_a_rank_that_only_rolls_out_holds_its_weights_twice_unless_new_ones_overwrite_them(
    folder: Any, words: Any, sends: Any, held: Any
) -> None:
    """bfloat16, 2 bytes, for each of Qwen's 7,615,616,512 weights."""
    settings = (
        *("dag.groups={rollout: 1, train: 7}", "trainer.n_gpus_per_node=8", *words),
        *("actor_rollout_ref.rollout.name=hf", "actor_rollout_ref.actor.micro_batch_tokens=1536"),
    )
    config = text(folder(QWEN), *settings)
    table = rank_memory(config, QUESTIONS, kind=ROLLOUT_RANK, sends=sends)
    assert table
    assert dict(table.held) == held
    [(_, first), *_] = table_lines(table, gpu=EIGHTY_GB)
    assert first.startswith("of a rollout rank, which needs most: about")
    (problem,) = gpu_problems(config, QUESTIONS, gpu=Gpu(20 * GIB), sends=sends)
    assert "rank needs about" in str(problem)


def test_all_weights_on_one_gpu_are_refused_and_the_remedies_fit(folder: Any) -> None:
    path = folder(OPENVLA)
    config = libero(path, "actor_rollout_ref.model.lora.rank=0", trainer="gpu_libero_one")
    (problem,) = gpu_problems(config, LIBERO_10, gpu=EIGHTY_GB)
    told = "These settings fit: trainer.n_gpus_per_node=8; or actor_rollout_ref.model.lora.rank=32"
    assert told in str(problem)
    for remedy in ("trainer.n_gpus_per_node=8", "actor_rollout_ref.model.lora.rank=32"):
        words = ("actor_rollout_ref.model.lora.rank=0", remedy)
        changed = libero(path, *words, trainer="gpu_libero_one")
        assert gpu_problems(changed, LIBERO_10, gpu=EIGHTY_GB) == []


def keys(config: SiiRLArguments, named: Collection[str]) -> list[SiirlError]:
    """What a machine with all packages and devices refuses."""
    return [
        *config_problems(config),
        *unread_problems(config, named=named),
        *environment_problems(config, QUESTIONS),
    ]


FEWER_TOKENS = "actor_rollout_ref.actor.micro_batch_tokens=8192"  # half of the preset's

STREAM = (
    *("dag.groups={rollout: 4, train: 4}", "trainer.max_staleness=1", f"{ROLLOUT}.mode=null"),
    *(ADAPTERS, FEW_TOKENS),
)


@pytest.mark.parametrize(
    ("words", "gib", "told"),
    [
        ((*HF, ADAPTERS), 79, "env.envs_per_server=32"),
        (
            (*HF, ADAPTERS, "env.envs_per_server=1", "env.num_servers=256"),
            40,
            "env.num_servers=64",
        ),
        (
            HF,
            38,
            f"{FEWER_TOKENS} env.envs_per_server=64 trainer.n_gpus_per_node=8 "
            "actor_rollout_ref.actor.offload_optimizer=true",
        ),
        ((), 55, f"{ROLLOUT}.tensor_model_parallel_size=2"),
        (
            (ONE_GPU, ADAPTERS, f"{ROLLOUT}.mode=sync", f"{ROLLOUT}.kv_cache_gib=1", FEW_TOKENS),
            32,
            f"{ROLLOUT}.mode=async {ROLLOUT}.tensor_model_parallel_size=2",
        ),
        ((ONE_GPU, "cluster=local"), 79, "cluster.mode=ray trainer.n_gpus_per_node=8"),
        ((f"{ROLLOUT}.tensor_model_parallel_size=4",), 40, f"{ROLLOUT}.kv_cache_gib=14"),
        (
            ("dag.groups={rollout: 4, train: 4}", *HF[:1], "trainer.max_staleness=1"),
            79,
            "env.envs_per_server=64",
        ),
        (STREAM, 40, f"{ROLLOUT}.tensor_model_parallel_size=2"),
    ],
)
def test_every_remedy_of_a_refusal_is_accepted_and_fits(
    words: tuple[str, ...], gib: float, told: str, folder: Any
) -> None:
    path, gpu = folder(QWEN), Gpu(gib * GIB)
    config = text(path, *words)
    (problem,) = gpu_problems(config, QUESTIONS, gpu=gpu, problems=keys)
    named = remedies(problem)
    assert told in named
    for remedy in named:
        applied = text(path, *words, *remedy.split())
        assert gpu_problems(applied, QUESTIONS, gpu=gpu) == []
        assert set(map(str, keys(applied, ()))) <= set(map(str, keys(config, ())))


def test_a_remedy_that_the_machine_refuses_is_not_named(folder: Any) -> None:
    def one_device(config: SiiRLArguments, named: Collection[str]) -> list[SiirlError]:
        return [ConfigError("one device")] if config.trainer.n_gpus_per_node > 1 else []

    config = text(folder(QWEN), ONE_GPU)
    (problem,) = gpu_problems(config, QUESTIONS, gpu=EIGHTY_GB, problems=one_device)
    assert remedies(problem) == [ADAPTERS]


def test_a_refusal_names_the_gpu_that_the_job_does_not_fit(folder: Any) -> None:
    config = libero(folder(OPENVLA), trainer="gpu_libero_one")
    gpu = Gpu(22.5 * GIB, "this machine's NVIDIA A10")
    (problem,) = gpu_problems(config, LIBERO_10, gpu=gpu)
    assert "but this machine's NVIDIA A10 has 22.5 GiB, of which the plan may use 90%" in str(
        problem
    )


def test_activations_that_do_not_fit_are_recomputed_or_cut(folder: Any) -> None:
    words = (
        "actor_rollout_ref.model.gradient_checkpointing=false",
        "actor_rollout_ref.actor.micro_batch_tokens=32768",
    )
    (problem,) = gpu_problems(text(folder(QWEN), *words), QUESTIONS, gpu=EIGHTY_GB)
    assert "in its update (activations" in str(problem)
    assert "These settings fit: actor_rollout_ref.model.gradient_checkpointing=true" in str(problem)
    assert "; or actor_rollout_ref.actor.micro_batch_tokens=4096" in str(problem)


def test_a_rollout_that_does_not_fit_gets_a_smaller_cache(folder: Any) -> None:
    config = text(folder(QWEN), "actor_rollout_ref.rollout.kv_cache_gib=60")
    (problem,) = gpu_problems(config, QUESTIONS, gpu=EIGHTY_GB)
    assert "in its rollout (keys and values 60.0 GiB" in str(problem)
    assert "These settings fit: actor_rollout_ref.rollout.kv_cache_gib=30." in str(problem)


@pytest.mark.parametrize(("gib", "told"), [(79, 30), (38, 15), (28, 7), (24, 3)])
def test_of_the_halves_of_a_value_the_largest_that_fits_is_named(
    gib: int, told: int, folder: Any
) -> None:
    config = text(folder(QWEN), ADAPTERS, FEW_TOKENS, f"{ROLLOUT}.kv_cache_gib=60")
    (problem,) = gpu_problems(config, QUESTIONS, gpu=Gpu(gib * GIB))
    assert f"{ROLLOUT}.kv_cache_gib={told}" in remedies(problem)


def test_a_model_that_fits_no_number_of_gpus_is_reported(folder: Any) -> None:
    (problem,) = gpu_problems(text(folder(QWEN)), QUESTIONS, gpu=Gpu(4 * GIB))
    assert "use a smaller model" in str(problem)


FEW_ROWS = f"{FEW_TOKENS} actor_rollout_ref.actor.offload_optimizer=true"

HF_STREAM = ("trainer.max_staleness=1", *HF[:1])


@pytest.mark.parametrize(
    ("words", "needing", "told"),
    [
        ((), "training rank", f"{FEW_ROWS} {ADAPTERS} makes a training rank"),
        ((ADAPTERS,), "rollout rank", f"{FEW_ROWS} makes a training rank"),
        (HF_STREAM, "rollout rank", "env.envs_per_server=1 env.num_servers=4 makes a rollout rank"),
    ],
)
def test_settings_that_do_not_help_the_rank_without_room_are_not_named(
    words: tuple[str, ...], needing: str, told: str, folder: Any
) -> None:
    config = text(folder(QWEN), "dag.groups={rollout: 4, train: 4}", *words)
    (problem,) = gpu_problems(config, QUESTIONS, gpu=Gpu(8 * GIB))
    assert str(problem).startswith(f"A {needing} needs about")
    assert f"90%. Not even {told} fit: use a smaller model" in str(problem)


def test_a_model_of_unknown_architecture_without_weights_has_no_table(folder: Any) -> None:
    config = text(folder(EXPERTS))
    assert rank_memory(config, QUESTIONS) is None
    assert gpu_problems(config, QUESTIONS, gpu=Gpu(1.0)) == []


@pytest.mark.parametrize(
    ("words", "kind", "told"),
    [
        ((ONE_GPU,), "rank", "trainer.n_gpus_per_node=8"),
        (HF, "rank", "trainer.n_gpus_per_node=8"),
        ((ONE_GPU, f"{ROLLOUT}.kv_cache_gib=1"), "rank", ADAPTERS),
        (("dag.groups={rollout: 7, train: 1}",), "training rank", ADAPTERS),
        (
            ("dag.groups={rollout: 1, train: 7}", f"{ROLLOUT}.kv_cache_gib=60"),
            "rollout rank",
            f"{ROLLOUT}.kv_cache_gib=30",
        ),
    ],
)
def test_a_lower_bound_above_the_gpu_is_refused_with_settings_that_lower_it(
    words: tuple[str, ...], kind: str, told: str, folder: Any
) -> None:
    path, gpu = sparse(folder(EXPERTS), weight=7), Gpu(64 * GIB)
    (problem,) = gpu_problems(text(path, *words), QUESTIONS, gpu=gpu, problems=keys)
    assert str(problem).startswith(f"A {kind} needs at least ")
    named = re.search(r"These settings may fit: (.*)\.$", str(problem))
    assert named is not None, str(problem)
    assert told in named[1]
    for remedy in named[1].split("; or "):
        applied = text(path, *words, *remedy.split())
        assert gpu_problems(applied, QUESTIONS, gpu=gpu) == []


def test_a_critic_beside_a_policy_that_fits_alone_is_refused(folder: Any) -> None:
    """Qwen's 7.07 billion weights without head take 16 bytes each: 105 GiB beside adapters."""
    words = ("actor_rollout_ref.model.lora.rank=32", "trainer.n_gpus_per_node=1")
    config = text(folder(QWEN), *words)
    assert gpu_problems(config, QUESTIONS, gpu=EIGHTY_GB) == []
    (problem,) = gpu_problems(config, QUESTIONS, gpu=EIGHTY_GB, with_critic=True)
    assert "critic's Adam 52.7 GiB" in str(problem)


def test_a_critics_own_micro_batch_is_a_remedy(folder: Any) -> None:
    words = (
        *("actor_rollout_ref.actor.micro_batch_tokens=null", "critic.micro_batch_size=32"),
        "actor_rollout_ref.actor.micro_batch_size=1",
    )
    config = text(folder(QWEN), *words)
    (problem,) = gpu_problems(config, QUESTIONS, gpu=EIGHTY_GB, with_critic=True)
    assert "critic.micro_batch_size=1" in str(problem)


def test_without_a_gpu_nothing_is_refused(folder: Any) -> None:
    assert gpu_problems(text(folder(QWEN)), QUESTIONS, gpu=None) == []
