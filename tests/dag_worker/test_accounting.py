"""Accounting of a step: throughput over its whole time, and the share of it in which a rank
waits.
"""

import threading
from types import SimpleNamespace

import pytest
import torch
from tiny_training import make_engine

from siirl.dag_worker.accounting import MemoryPeaks, StepAccount, held_bytes, work_of_update
from siirl.engine.actor.actor import Actor
from siirl.host_peak import reset_peak
from siirl.occupation import Occupation
from siirl.params import ActorArguments
from siirl.reporting.metric_reduction import reduce_metrics
from siirl.reporting.metrics import Weighted


class Clock:
    """A clock that a test sets, in seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def account(*, gpus_of_job: int = 1) -> tuple[StepAccount, Occupation, Clock]:
    clock = Clock()
    occupation = Occupation(clock)
    step = StepAccount(
        torch.device("cpu"), gpus_of_job=gpus_of_job, occupation=occupation, clock=clock
    )
    return step, occupation, clock


def test_the_peak_is_reset_in_a_process_that_has_not_used_the_gpu(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "init", lambda: calls.append("init"))
    monkeypatch.setattr(
        torch.cuda, "reset_peak_memory_stats", lambda device: calls.append(str(device))
    )
    StepAccount(torch.device("cuda:0")).begin()
    assert calls == ["init", "cuda:0", "cuda:0"]  # torch's reset raises before init


RECORDS = [
    {"rollout/avg_prompt_length": Weighted(5.0, 8.0), "env/steps": 8.0},
    {"rollout/avg_response_length": Weighted(10.0, 8.0), "env/steps": 4.0},
]


def test_throughput_counts_the_whole_step():
    step, _, clock = account()
    clock.now = 4.0
    found = step.metrics(RECORDS)
    assert found["perf/throughput"] == 30.0  # (40 + 80) tokens in 4 s
    assert found["perf/env_steps_per_s"] == 3.0
    assert found["time/step_s"] == 4.0


def test_throughput_of_the_job_is_that_of_all_ranks_over_all_gpus():
    """Two ranks, of which one has rollouts to report."""
    accounts = [account(gpus_of_job=2) for _ in range(2)]
    for _, _, clock in accounts:
        clock.now = 4.0
    (one, _, _), (other, _, _) = accounts
    found = reduce_metrics([one.metrics(RECORDS), other.metrics([])])
    assert found["perf/throughput"] == 15.0
    assert found["perf/env_steps_per_s"] == 1.5


def test_throughput_is_divided_by_the_gpus_of_the_job():
    step, _, clock = account(gpus_of_job=4)
    clock.now = 4.0
    found = step.metrics(RECORDS)
    assert found["perf/throughput"] == 7.5
    assert found["perf/env_steps_per_s"] == 0.75


def test_the_peak_of_loading_is_that_before_the_first_step(monkeypatch):
    peak = {"bytes": 0}
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peak.update(bytes=1))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak["bytes"])
    clock = Clock()
    step = StepAccount(torch.device("cuda:0"), clock=clock)
    peak["bytes"] = 7
    assert step.loading() == {"memory/gpu_loading_peak_bytes": 7}
    step.begin()
    clock.now = 1.0
    assert step.metrics([])["memory/gpu_peak_bytes"] == 1
    assert account()[0].loading() == {}


def test_the_peak_beyond_what_agents_hold_is_that_of_passes_and_rollouts(monkeypatch):
    """Of a peak of 100 bytes, two agents hold 30 + 20 + 10; gradients are freed after an update."""
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 100)
    records = [
        {"memory/actor_weights_bytes": 30.0, "memory/actor_gradients_bytes": 30.0},
        {"memory/actor_moments_bytes": 20.0},
        {"agent_1/memory/acting_copy_bytes": 10.0},
        {"memory/rollout_weights_bytes": 1000.0},  # on another GPU, whose rank reports to this one
    ]
    clock = Clock()
    steps = [StepAccount(torch.device(kind), clock=clock) for kind in ("cuda:0", "cpu")]
    clock.now = 1.0
    on_gpu, on_cpu = (step.metrics(records) for step in steps)
    assert on_gpu["memory/gpu_beyond_held_bytes"] == 40
    assert "memory/gpu_beyond_held_bytes" not in on_cpu


def test_only_waiting_for_other_ranks_is_idle():
    step, occupation, clock = account()
    with occupation.doing("computes"):
        clock.now = 6.0
        with occupation.doing("waits", waiting=True):
            clock.now = 8.0
    assert step.metrics([])["perf/idle_share"] == 0.25


def test_work_within_a_wait_is_not_idle_and_a_wait_within_it_is_idle_once():
    """Weights are sent while training waits for rows."""
    step, occupation, clock = account()
    with occupation.doing("waits for rows", waiting=True):
        clock.now += 2.0
        with occupation.doing("waits for those that ask", waiting=True):
            clock.now += 1.0
        with occupation.doing("sends weights"):
            clock.now += 5.0
    assert step.metrics([])["perf/idle_share"] == 3.0 / 8.0


def test_work_of_another_thread_does_not_shorten_a_wait():
    step, occupation, clock = account()

    def work():
        with occupation.doing("writes a checkpoint"):
            clock.now += 4.0

    with occupation.doing("waits", waiting=True):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    clock.now += 4.0
    assert step.metrics([])["perf/idle_share"] == 0.5


def test_waiting_in_an_earlier_step_is_not_counted_again():
    step, occupation, clock = account()
    with occupation.doing("waits", waiting=True):
        clock.now = 5.0
    step.begin()
    clock.now = 10.0
    assert step.metrics([])["perf/idle_share"] == 0.0


def test_peak_host_memory_is_that_of_the_step():
    """A block of 300 MB in the first step is in its peak, and not in that of the second."""
    step, _, clock = account()
    clock.now = 1.0
    block = torch.ones(75_000_000)
    first = step.metrics([])["memory/host_peak_bytes"]
    del block
    step.begin()
    clock.now = 2.0
    second = step.metrics([])["memory/host_peak_bytes"]
    assert 50e6 < second < first - 200e6


def test_a_peak_that_the_kernel_does_not_reset_has_the_name_of_one_of_the_run(tmp_path):
    assert not reset_peak(tmp_path)  # a folder takes no text, as a file that is not writable
    clock = Clock()
    step = StepAccount(torch.device("cpu"), clock=clock, reset=lambda: reset_peak(tmp_path))
    clock.now = 1.0
    found = step.metrics([])
    assert "memory/host_peak_bytes" not in found
    assert found["memory/host_peak_of_run_bytes"] > 50e6


def test_a_rollout_rank_holds_its_weights_below_its_peak(monkeypatch):
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 100)
    found = MemoryPeaks(torch.device("cuda:0")).metrics(held=70.0)
    assert found["memory/gpu_peak_bytes"] == 100
    assert found["memory/gpu_beyond_held_bytes"] == 30


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


def test_the_speed_and_mfu_of_an_update_are_per_gpu(monkeypatch):
    monkeypatch.setattr("siirl.dag_worker.accounting.peak_of", lambda device, dtype: 4e12)
    engine, clock = Engine(), Clock()
    with work_of_update(engine, gpus=2, clock=clock) as found:
        engine.flops, clock.now = 7e12, 3.0
    assert found == {"perf/update_tflops_per_s": 1.0, "perf/mfu": 0.25}


@pytest.mark.parametrize("after", [1e12, None])
def test_an_update_without_counted_work_has_no_speed(after):
    engine, clock = Engine(), Clock()
    with work_of_update(engine, clock=clock) as found:
        engine.flops, clock.now = after, 3.0
    assert found == {}


def context_of(*engines, reference=None):
    actor, critic = (*engines, None)[:2]
    return SimpleNamespace(
        actor=SimpleNamespace(engine=actor),
        critic=critic and SimpleNamespace(engine=critic),
        reference=reference,
        weights=SimpleNamespace(acting=None),
    )


def stepped(**options):
    """An engine after one optimiser step, and the bytes of its weights."""
    engine = make_engine(**options)
    for weight in engine.module.parameters():
        weight.grad = torch.ones_like(weight)
    with engine.moments.resident():
        engine.optimizer.step()
    return engine, sum(weight.nbytes for weight in engine.module.parameters())


def test_weights_gradients_and_moments_are_counted_by_owner():
    (actor, actor_bytes), (critic, _) = stepped(), stepped()
    critic.module.requires_grad_(False)
    held = held_bytes(context_of(actor, critic))
    steps = len(list(actor.module.parameters())) * 4  # Adam's count of steps, of each weight
    assert held["memory/actor_weights_bytes"] == actor_bytes
    assert held["memory/actor_gradients_bytes"] == actor_bytes
    assert held["memory/actor_moments_bytes"] == 2 * actor_bytes + steps
    assert held["memory/critic_weights_bytes"] == actor_bytes
    assert held["memory/critic_gradients_bytes"] == 0
    assert "memory/reference_weights_bytes" not in held


def test_moments_in_host_memory_are_not_counted():
    engine, _ = stepped(offload=True)
    steps = len(list(engine.module.parameters())) * 4
    assert held_bytes(context_of(engine))["memory/actor_moments_bytes"] == steps


@pytest.mark.parametrize("offload", [False, True])
def test_a_reference_counts_unless_it_is_in_host_memory(offload):
    engine, size = stepped()
    frozen = make_engine(optim=None, offload=offload)
    reference = Actor(
        engine=frozen, config=ActorArguments(), rollouts_per_prompt=1, seed=0, horizon=1
    )
    held = held_bytes(context_of(engine, reference=reference))
    assert held["memory/reference_weights_bytes"] == (0 if offload else size)
