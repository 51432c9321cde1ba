"""An optimiser that does nothing: the counters of the step are right, and the weights stay."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from siirl.gpu_checks import text_model, updates, vla_model
from siirl.gpu_checks.check import CheckFailed, Trial
from siirl.gpu_checks.grpo_step import step, step_with_vllm

UNTRAINED = r"^the optimiser stepped with the gradient norm .* but no trained weight changed"
UNCHANGED = r"^after step 1 the acting weights have the same checksum as before it"


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(torch.device("cpu"), time.monotonic() + 600, tmp_path / "figures.json")


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: None)


@pytest.mark.parametrize(
    "check",
    [
        text_model.update_adapters,
        text_model.update_all,
        vla_model.lora_update,
        vla_model.full_update,
    ],
)
def test_updates_that_change_no_weight_are_a_failure(
    check: Callable[[Trial], None], trial: Trial
) -> None:
    with pytest.raises(CheckFailed, match=UNTRAINED):
        check(trial)


def test_equal_weights_after_two_idle_updates_are_no_determinism(trial: Trial) -> None:
    try:
        with pytest.raises(CheckFailed, match=UNTRAINED):
            updates.twice(trial)
    finally:
        torch.use_deterministic_algorithms(False)


def test_whole_steps_that_change_no_weight_are_a_failure(trial: Trial) -> None:
    with pytest.raises(CheckFailed, match=UNCHANGED):
        step(trial)


@pytest.mark.slow  # starts vLLM
def test_whole_steps_after_which_vllm_has_the_old_weights_are_a_failure(trial: Trial) -> None:
    pytest.importorskip("vllm")
    with pytest.raises(CheckFailed, match=UNCHANGED):
        step_with_vllm(trial)
