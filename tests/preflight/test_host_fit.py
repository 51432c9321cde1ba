"""Refusals of jobs that need far more than this machine's memory, and the settings they name."""

import re
from typing import Any

import pytest

from siirl.params import SiiRLArguments
from siirl.preflight.host_fit import host_problems, run_memory
from siirl.preflight.memory import ROUGHLY, total
from tests.preflight.camera_spec import QUESTIONS
from tests.preflight.published_models import (
    ADAPTERS,
    EXPERTS,
    FEW_TOKENS,
    HF,
    QWEN,
    remedies,
    sparse,
    text,
)

ON_CPUS = (*HF, "cluster=local", "trainer.save_freq=1")
ASYNC = "trainer.async_save=false"


def needed(config: SiiRLArguments, *, on_gpu: bool = False) -> float:
    return total(run_memory(config, QUESTIONS, on_gpu=on_gpu, with_critic=False))


@pytest.fixture
def path(folder: Any) -> Any:
    """Qwen2.5-7B without its numbers."""
    return sparse(folder(QWEN), weight=7.6)


@pytest.mark.parametrize(
    ("words", "share", "told"),
    [
        ((), 0.6, "env.envs_per_server=32"),
        ((), 0.2, ADAPTERS),  # with other settings
        ((ADAPTERS,), 0.6, "env.envs_per_server="),
    ],
)
def test_a_job_far_beyond_the_machine_is_refused_and_every_remedy_fits(
    words: tuple[str, ...], share: float, told: str, path: Any
) -> None:
    config = text(path, *ON_CPUS, *words)
    machine = share * needed(config)
    (problem,) = host_problems(config, QUESTIONS, total_memory_bytes=machine, on_gpu=False)
    assert re.match(r"The job needs about \d+\.\d GB of memory \(\w", str(problem))
    named = remedies(problem)
    assert any(told in each for each in named), named
    for remedy in named:
        assert needed(text(path, *ON_CPUS, *words, *remedy.split())) <= machine


def test_a_smaller_excess_is_no_refusal(path: Any) -> None:
    config = text(path, *ON_CPUS)
    size = needed(config)
    for machine in (size, size / (ROUGHLY - 0.01)):
        assert not host_problems(config, QUESTIONS, total_memory_bytes=machine, on_gpu=False)
    assert host_problems(config, QUESTIONS, total_memory_bytes=size / 1.51, on_gpu=False)


def test_a_machine_too_small_for_every_setting_is_reported(path: Any) -> None:
    config = text(path, *ON_CPUS)
    (problem,) = host_problems(config, QUESTIONS, total_memory_bytes=2e9, on_gpu=False)
    assert str(problem).endswith(
        "makes a run fit: use a smaller model, or a machine with more memory."
    )
    assert ADAPTERS in str(problem)


def test_without_the_architecture_the_amount_and_the_settings_are_a_lower_bound(
    folder: Any,
) -> None:
    config = text(sparse(folder(EXPERTS), weight=7), *ON_CPUS)
    machine = 0.6 * needed(config)
    (problem,) = host_problems(config, QUESTIONS, total_memory_bytes=machine, on_gpu=False)
    assert str(problem).startswith("The job needs at least ")
    assert f"These settings may fit: {ADAPTERS}" in str(problem)


def test_with_gpus_what_was_moved_to_the_host_is_left_there(path: Any) -> None:
    offload = "actor_rollout_ref.actor.offload_optimizer=true"
    config = text(path, "trainer.save_freq=1", offload, FEW_TOKENS)
    machine = 0.6 * needed(config, on_gpu=True)
    (problem,) = host_problems(config, QUESTIONS, total_memory_bytes=machine, on_gpu=True)
    named = remedies(problem)
    assert "actor_rollout_ref.rollout.sleep=false" in named[0]
    for remedy in named:
        fitting = text(path, "trainer.save_freq=1", offload, FEW_TOKENS, *remedy.split())
        assert needed(fitting, on_gpu=True) <= machine


def test_memory_of_other_machines_is_not_known(path: Any) -> None:
    config = text(path, "cluster.address=10.0.0.1:6379")
    assert host_problems(config, QUESTIONS, total_memory_bytes=1e9, on_gpu=True) == []
