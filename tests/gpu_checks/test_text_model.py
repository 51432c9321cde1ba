"""Updates of the text model: of all weights where they fit, by the plan."""

import sys
import time
from pathlib import Path

import pytest
import torch

from siirl.gpu_checks.check import CheckSkipped, Trial
from siirl.gpu_checks.text_model import update_adapters, update_all

GIGABYTE = 1_000_000_000


class OnGpu(Trial):
    """A check on a GPU with 80 GB."""

    on_gpu = True

    def free_bytes(self) -> float:
        return 80 * GIGABYTE


def trial(kind: type[Trial], folder: Path) -> Trial:
    return kind(torch.device("cpu"), time.monotonic() + 600, folder / "figures.json")


def test_all_weights_of_7_billion_do_not_fit_80_gigabytes(tmp_path: Path) -> None:
    """Weights, gradients and moments in float32 have 16 bytes, of 7.6 billion weights 122 GB, and
    the passes take some more.
    """
    with pytest.raises(CheckSkipped, match=r"needs 1[23]\d GB by the plan, but 80 GB are free"):
        update_all(trial(OnGpu, tmp_path))


def test_all_weights_are_trained_without_peft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    checked = trial(Trial, tmp_path)
    update_all(checked)
    assert checked.figures["tokens_per_s"] > 0
    with pytest.raises(ImportError):
        update_adapters(checked)
