"""Functions in processes that can be killed: the call ends in every case, and the next one
works.
"""

import asyncio
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.processes import living_processes
from envs.worker_pool import (
    WorkerKilled,
    WorkerPool,
    WorkerRaised,
    WorkerSettings,
    WorkerUnavailable,
    lease,
    release,
)


@pytest.fixture
def workers(tmp_path, monkeypatch):
    """Make pools of one function of `worker_functions`, as a user's module would be found; closed
    at the end.
    """
    shutil.copy(Path(__file__).with_name("worker_functions.py"), tmp_path / "tests_envs_workers.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    pools = []

    def make(name: str, **settings) -> WorkerPool:
        pools.append(
            WorkerPool(
                WorkerSettings(
                    target=f"tests_envs_workers:{name}", **{"num_workers": 1, **settings}
                )
            )
        )
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def call(pool, argument, **arguments):
    return asyncio.run(pool.call(argument, **arguments))


@pytest.mark.parametrize("name", ["double", "double_later", "print_and_double"])
def test_result_comes_back(workers, name):
    assert call(workers(name), 21) == 42


def test_process_survives_between_calls(workers):
    pool = workers("process_id")
    assert call(pool, None) == call(pool, None)


def test_an_exception_of_a_function_is_reported_and_its_process_survives(workers):
    pool = workers("raise_lookup")
    for value in ("bread", "milk"):
        with pytest.raises(WorkerRaised, match=f"LookupError: no {value}"):
            call(pool, value)
    assert pool.killed == 0


def test_sleeper_is_killed_at_its_deadline_and_replaced(workers):
    pool = workers("sleep")
    call(pool, 0)
    with pytest.raises(WorkerKilled, match=r"no answer within 0\.3 s"):
        call(pool, 600, deadline_s=0.3)
    assert pool.killed == 1
    assert call(pool, 0) is None


def test_waits_for_a_core_may_be_excluded_from_a_deadline(workers):
    assert call(workers("wait_for_a_core", deadline_s=4.0, excludes_waits=True), 7.0) is None


def test_a_sleeper_is_killed_although_waits_for_a_core_are_excluded(workers):
    with pytest.raises(WorkerKilled, match=r"no answer within 0\.3 s"):
        call(workers("sleep", deadline_s=0.3, excludes_waits=True), 600)


def test_power_tower_is_ended_by_its_processor_time(workers):
    pool = workers("power_tower", cpu_s=0.5, deadline_s=600.0)
    with pytest.raises(WorkerKilled, match=r"more than 0\.5 s of processor time"):
        call(pool, None)


def test_a_slow_end_keeps_its_reason(workers, monkeypatch):
    """A machine out of memory may take seconds to end a process that has closed its pipes."""
    wait = subprocess.Popen.wait

    def wait_in_vain(process, timeout=None):
        if timeout is not None:
            raise subprocess.TimeoutExpired("worker", timeout)
        return wait(process)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_in_vain)
    with pytest.raises(WorkerKilled, match=r"more than 0\.5 s of processor time"):
        call(workers("power_tower", cpu_s=0.5, deadline_s=600.0), None)


@pytest.mark.parametrize(
    ("status", "sentence"), [(3, "ended with status 3"), (0, "ended with status 0")]
)
def test_death_in_mid_call_is_reported(workers, status, sentence):
    with pytest.raises(WorkerKilled, match=sentence):
        call(workers("die"), status)


def test_memory_is_bounded(workers):
    with pytest.raises(WorkerRaised, match="MemoryError"):
        call(workers("take_memory", memory_mib=512), 4)


def test_result_that_is_not_json_is_reported(workers):
    with pytest.raises(WorkerRaised, match="not JSON"):
        call(workers("no_json"), None)


def test_long_arguments_and_results_travel_whole(workers):
    assert call(workers("much"), 3_000_000) == "x" * 3_000_000


def test_endless_result_is_cut_off(workers):
    with pytest.raises(WorkerKilled, match="more than 16 MiB"):
        call(workers("much"), 17 << 20)


def test_lone_surrogates_travel(workers):
    with pytest.raises(WorkerRaised, match="LookupError: no \ud800"):
        call(workers("raise_lookup"), "\ud800")


def test_unknown_function_is_reported(workers):
    with pytest.raises(
        WorkerUnavailable, match=r"tests_envs_workers:no_such cannot be imported: AttributeError"
    ):
        call(workers("no_such"), None)


def test_a_machine_without_descriptors_left_starts_no_process(workers):
    pool = workers("double")
    bounds = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, bounds[1]))
    try:
        with pytest.raises(WorkerUnavailable, match=r"could be started: .*Too many open files"):
            pool.call_blocking(21)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, bounds)
    assert pool.call_blocking(21) == 42


def test_children_of_a_killed_process_are_killed(workers):
    seconds = f"98765.{os.getpid()}"
    with pytest.raises(WorkerKilled):
        call(workers("start_sleeper"), seconds, deadline_s=1.0)
    while any(seconds in title for _, title in living_processes()):  # it dies when it is scheduled
        time.sleep(0.05)


def test_calls_share_the_processes_and_queue(workers):
    pool = workers("sleep")

    async def three() -> float:
        await pool.call(0)
        began = time.monotonic()
        await asyncio.gather(*(pool.call(0.1) for _ in range(3)))
        return time.monotonic() - began

    assert asyncio.run(three()) >= 0.3


def together(pool, arguments):
    async def all_of_them():
        return await asyncio.gather(*(pool.call(argument) for argument in arguments))

    return asyncio.run(all_of_them())


def test_short_calls_at_once_share_the_first_process(workers):
    pool = workers("process_id", num_workers=4, patience_s=60.0)
    assert len(set(together(pool, [None] * 8))) == 1


def test_long_calls_at_once_have_a_process_each(workers):
    pool = workers("process_id_later", num_workers=2, patience_s=0.1)
    assert len(set(together(pool, [2.0, 2.0]))) == 2


def test_closing_ends_a_running_call(workers):
    pool = workers("sleep")

    async def close_in_mid_call() -> None:
        await pool.call(0)
        running = asyncio.ensure_future(pool.call(600, deadline_s=600.0))
        await asyncio.sleep(0.2)
        pool.close()
        await running

    with pytest.raises(WorkerKilled, match="SIGKILL"):
        asyncio.run(close_in_mid_call())


@pytest.mark.parametrize("patience_s", [0.0, 600.0])
def test_closing_ends_a_call_that_waits_for_a_process(workers, patience_s):
    pool = workers("sleep", num_workers=1 + (patience_s > 0), patience_s=patience_s)

    async def close_with_a_call_waiting() -> list[BaseException]:
        await pool.call(0)
        calls = [asyncio.ensure_future(pool.call(seconds)) for seconds in (600, 0)]
        while pool._idle:
            await asyncio.sleep(0.01)
        pool.close()
        return await asyncio.gather(*calls, return_exceptions=True)

    errors = asyncio.run(close_with_a_call_waiting())
    assert [type(error) for error in errors] == [WorkerKilled, WorkerKilled]
    assert str(errors[1]) == "its pool was closed"


def test_leases_with_the_same_settings_share_a_pool_until_the_last_is_back():
    settings = WorkerSettings(target="operator:neg", num_workers=1)
    first, second = lease(settings), lease(settings)
    assert first is second
    release(first)
    assert call(second, 1) == -1
    release(second)
    third = lease(settings)
    assert third is not first
    release(third)


def test_worker_ends_with_the_process_that_started_it(repository):
    code = (
        "import asyncio, os; from envs.worker_pool import *\n"
        "pool = WorkerPool(WorkerSettings(target='operator:neg', num_workers=1))\n"
        "asyncio.run(pool.call(1)); (worker,) = pool._alive; print(worker._process.pid, "
        "flush=True); os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True
    )
    child = Path("/proc") / done.stdout.strip()
    for _ in range(100):
        if not child.exists() or "Z" in (child / "stat").read_text().rsplit(")")[-1].split()[0]:
            return
        time.sleep(0.05)
    pytest.fail("the worker outlived the process that started it")
