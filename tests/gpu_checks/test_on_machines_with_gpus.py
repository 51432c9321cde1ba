"""What a check requires of a machine with GPUs, and of vLLM."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from siirl.engine.rollout.generation import GenerationResponse
from siirl.gpu_checks.check import CheckFailed, Trial
from siirl.gpu_checks.pictures import frames
from siirl.gpu_checks.weight_transfer import require_whole, to_vllm

END = 257


class OnGpu(Trial):
    """A check on a machine with a GPU, here without EGL devices, in whose time one process draws."""

    on_gpu = True


def trial(folder: Path) -> Trial:
    return OnGpu(torch.device("cpu"), ends_at=time.monotonic() + 10, file=folder / "figures.json")


def test_pictures_are_measured_without_egl_where_the_cpu_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco")
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    monkeypatch.delenv("PYOPENGL_PLATFORM", raising=False)  # of other tests
    checked = trial(tmp_path)
    frames(checked)
    assert checked.figures["backend"] == "osmesa"
    assert checked.figures["frames_per_s_1"] > 0
    assert "egl_devices" not in checked.figures


def test_a_gpu_without_a_device_of_egl_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(CheckFailed, match="EGL has no device"):
        frames(trial(tmp_path))


@pytest.mark.slow  # starts vLLM
def test_weights_reach_vllm_also_during_an_answer(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    checked = Trial(torch.device("cpu"), ends_at=time.monotonic() + 1000, file=tmp_path / "figures")
    to_vllm(checked)
    assert checked.figures["tokens_of_new_weights"] > 0
    assert checked.figures["gap_after_exchange"] < 1e-4


def answer(*tokens: int) -> GenerationResponse:
    log_probs = np.zeros(len(tokens), np.float32)
    return GenerationResponse(np.array(tokens, np.int64), log_probs, np.zeros(len(tokens)), "stop")


@pytest.mark.parametrize("tokens", [(50,) * 8, (50, END), (END,)])
def test_an_answer_of_vllm_is_whole_if_its_turn_ends(
    tokens: tuple[int, ...], tmp_path: Path
) -> None:
    require_whole(trial(tmp_path), answer(*tokens), {END}, most=8)


@pytest.mark.parametrize("tokens", [(), (50, 51), (END, 50), (50,) * 9])
def test_an_answer_that_is_cut_off_is_a_failure(tokens: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=f"vLLM answered {len(tokens)} tokens of 8"):
        require_whole(trial(tmp_path), answer(*tokens), {END}, most=8)
