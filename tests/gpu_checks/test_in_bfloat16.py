"""The small form of checks in the type of the passes on a GPU and with compiled blocks; on a CPU they
compute in float32, and nothing is compiled.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from siirl.gpu_checks import text_model, vla_model
from siirl.gpu_checks.agreement import log_prob_gap
from siirl.gpu_checks.check import Trial
from siirl.gpu_checks.checkpoints import resumed
from siirl.gpu_checks.device_speed import masked_attention
from siirl.gpu_checks.sharded import sharded_update
from siirl.gpu_checks.sharded_weights import sharded_sync
from siirl.gpu_checks.video import clips


class InBfloat16(Trial):
    """A check as on a GPU, but for its device and sizes."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16

    @property
    def compiler(self) -> str:
        return "eager"  # as inductor, up to the code that it makes


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Other tests compile and compute as if no check had run here."""
    torch.compiler.reset()
    yield
    torch.compiler.set_stance("default")
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "check",
    [
        masked_attention,
        log_prob_gap,
        resumed,
        pytest.param(sharded_update, marks=pytest.mark.slow),  # two ranks
        pytest.param(sharded_sync, marks=pytest.mark.slow),
        clips,
        vla_model.acting,
        vla_model.lora_update,
        vla_model.full_update,
        text_model.generation,
        text_model.update_adapters,
        text_model.update_all,
    ],
)
def test_a_check_computes_in_bfloat16(check: Callable[[Trial], None], tmp_path: Path) -> None:
    trial = InBfloat16(
        torch.device("cpu"), ends_at=time.monotonic() + 1000, file=tmp_path / "figures.json"
    )
    check(trial)
    assert trial.figures
