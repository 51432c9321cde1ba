"""Accounting of a step: throughput over its whole time, and the share of it in which a rank
waits.
"""

import pytest
import torch

from siirl.dag_worker.accounting import StepAccount, work_of_update
from siirl.occupation import Occupation
from siirl.reporting.metrics import Weighted


class Clock:
    """A clock that a test sets, in seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def account() -> tuple[StepAccount, Occupation, Clock]:
    clock = Clock()
    occupation = Occupation(clock)
    return StepAccount(torch.device("cpu"), occupation=occupation, clock=clock), occupation, clock


def test_the_peak_is_reset_in_a_process_that_has_not_used_the_gpu(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "init", lambda: calls.append("init"))
    monkeypatch.setattr(
        torch.cuda, "reset_peak_memory_stats", lambda device: calls.append(str(device))
    )
    StepAccount(torch.device("cuda:0")).begin()
    assert calls == ["init", "cuda:0", "cuda:0"]  # torch's reset raises before init


def test_throughput_counts_the_whole_step():
    step, _, clock = account()
    clock.now = 4.0
    records = [
        {"rollout/avg_prompt_length": Weighted(5.0, 8.0), "env/steps": 8.0},
        {"rollout/avg_response_length": Weighted(10.0, 8.0), "env/steps": 4.0},
    ]
    found = step.metrics(records)
    assert found["perf/throughput"] == 30.0  # (40 + 80) tokens in 4 s
    assert found["perf/env_steps_per_s"] == 3.0
    assert found["time/step_s"] == 4.0


def test_only_waiting_for_other_ranks_is_idle():
    step, occupation, clock = account()
    with occupation.doing("computes"):
        clock.now = 6.0
        with occupation.doing("waits", waiting=True):
            clock.now = 8.0
    assert step.metrics([])["perf/idle_share"] == 0.25


def test_waiting_in_an_earlier_step_is_not_counted_again():
    step, occupation, clock = account()
    with occupation.doing("waits", waiting=True):
        clock.now = 5.0
    step.begin()
    clock.now = 10.0
    assert step.metrics([])["perf/idle_share"] == 0.0


def test_peak_host_memory_is_that_of_a_process_with_torch():
    step, _, clock = account()
    clock.now = 1.0
    assert 50e6 < step.metrics([])["memory/host_peak_bytes"] < 100e9


def test_robots_have_no_token_throughput():
    step, _, clock = account()
    clock.now = 1.0
    assert "perf/throughput" not in step.metrics([{"env/steps": 3.0}])


class Engine:
    """An engine on a CPU that has counted some work."""

    device = torch.device("cpu")
    compute_dtype = None
    flops: float | None = 1e12


def test_the_speed_of_an_update_is_its_work_over_its_time():
    engine, clock = Engine(), Clock()
    with work_of_update(engine, clock=clock) as found:
        engine.flops, clock.now = 7e12, 3.0
    assert found == {"perf/update_tflops_per_s": 2.0}  # and no MFU: a CPU has no stated peak


@pytest.mark.parametrize("after", [1e12, None])
def test_an_update_without_counted_work_has_no_speed(after):
    engine, clock = Engine(), Clock()
    with work_of_update(engine, clock=clock) as found:
        engine.flops, clock.now = after, 3.0
    assert found == {}
