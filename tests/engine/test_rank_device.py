"""Process settings that must precede the first CUDA call, and limits of collective calls."""

import datetime

import pytest
import torch

from siirl.engine.training import collectives
from siirl.engine.training.rank_device import (
    CUBLAS_WORKSPACE,
    device_of_rank,
    prepare_device,
    set_deterministic,
)
from siirl.errors import InvariantError
from siirl.params import TrainingArguments


@pytest.fixture(autouse=True)
def _as_before():
    rounded = torch.backends.cudnn.allow_tf32
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.allow_tf32 = rounded


def test_a_deterministic_rank_has_a_fixed_cublas_workspace(monkeypatch):
    monkeypatch.setenv(CUBLAS_WORKSPACE, "")
    monkeypatch.delenv(CUBLAS_WORKSPACE)
    set_deterministic(True)
    import os

    assert os.environ[CUBLAS_WORKSPACE] == ":4096:8"
    assert torch.are_deterministic_algorithms_enabled()


def test_a_different_cublas_workspace_is_refused_with_the_required_value(monkeypatch):
    monkeypatch.setenv(CUBLAS_WORKSPACE, ":0:0")
    with pytest.raises(InvariantError, match=r"CUBLAS_WORKSPACE_CONFIG=:4096:8 .* ':0:0'"):
        set_deterministic(True)


@pytest.mark.parametrize("most_bytes", [0, 512])
def test_a_plan_that_asked_for_the_memory_of_a_gpu_does_not_hinder_a_deterministic_run(
    monkeypatch, most_bytes
):
    monkeypatch.setenv(CUBLAS_WORKSPACE, "")
    monkeypatch.delenv(CUBLAS_WORKSPACE)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda number: most_bytes)
    if most_bytes:
        with pytest.raises(InvariantError, match="before CUDA computes, but it is None"):
            set_deterministic(True)
    else:
        set_deterministic(True)
        assert torch.are_deterministic_algorithms_enabled()


def test_a_run_that_need_not_repeat_leaves_the_environment_alone(monkeypatch):
    monkeypatch.delenv(CUBLAS_WORKSPACE, raising=False)
    set_deterministic(False)
    import os

    assert CUBLAS_WORKSPACE not in os.environ


def test_the_device_of_a_rank_is_a_gpu_with_an_index_or_the_cpu():
    on_gpu = torch.cuda.is_available()
    assert device_of_rank() == (torch.device("cuda", 0) if on_gpu else torch.device("cpu"))


def test_float32_convolutions_of_a_gpu_keep_all_bits_of_their_factors_as_products_do():
    assert prepare_device(deterministic=False) == device_of_rank()
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


def test_collective_calls_wait_longer_than_the_longest_watchdog():
    longest = TrainingArguments.__dataclass_fields__["hang_minutes"].metadata["maximum"]
    assert datetime.timedelta(minutes=longest) < collectives.TIMEOUT
