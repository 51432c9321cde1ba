"""A stopped process of the command's own Ray ends the command after half a minute, and a shorter
stop does not.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from siirl.execution.scheduler.cluster_watch import (
    END_AFTER_S,
    LOOK_EVERY_S,
    WARN_AFTER_S,
    RayProcess,
    StoppedWatch,
    stopped_processes,
)

RAYLET = RayProcess(7, "/somewhere/ray/core/src/ray/raylet/raylet --raylet_socket_name=x ")
SERVER = RayProcess(8, "ray::EnvServerActor.serve ")
LOOKS = round(END_AFTER_S / LOOK_EVERY_S)


class Machine:
    """The test sets which processes are stopped."""

    def __init__(self) -> None:
        self.stopped: list[RayProcess] = []

    def __call__(self) -> list[RayProcess]:
        return self.stopped


def sentences(watch: StoppedWatch, looks: int) -> list[str]:
    return [sentence for _ in range(looks) if (sentence := watch.check()) is not None]


def test_a_raylet_that_stays_stopped_ends_the_run_after_half_a_minute() -> None:
    machine = Machine()
    watch = StoppedWatch(look=machine)
    machine.stopped = [RAYLET]
    assert sentences(watch, LOOKS - 1) == []
    (sentence,) = sentences(watch, 1)
    assert (
        sentence
        == "Ray's raylet on this machine (process 7) was stopped (SIGSTOP) for 30 s. The run cannot continue without it."
    )


def test_a_stop_that_ends_before_does_not_count_for_the_next() -> None:
    machine = Machine()
    watch = StoppedWatch(look=machine)
    machine.stopped = [RAYLET]
    assert sentences(watch, LOOKS - 1) == []
    machine.stopped = []
    assert sentences(watch, 1) == []
    machine.stopped = [RAYLET]
    assert sentences(watch, LOOKS - 1) == []


def test_a_warning_comes_once_and_names_the_command_that_continues_the_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine()
    watch = StoppedWatch(look=machine)
    machine.stopped = [RAYLET]
    with caplog.at_level(logging.WARNING):
        assert sentences(watch, round(WARN_AFTER_S / LOOK_EVERY_S) - 1) == []
        assert caplog.messages == []
        sentences(watch, 3)
    assert caplog.messages == [
        "Ray's raylet on this machine (process 7) is stopped (SIGSTOP): `kill -CONT 7` continues "
        "it; otherwise the run ends after 30 s."
    ]


def test_a_stopped_environment_server_is_left_to_its_pool(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    watch = StoppedWatch(look=machine)
    machine.stopped = [SERVER]
    with caplog.at_level(logging.WARNING):
        assert sentences(watch, 2 * LOOKS) == []
    (message,) = caplog.messages
    assert message.startswith("An environment server (process 8) is stopped (SIGSTOP)")
    assert message.endswith(
        "`kill -CONT 8` continues it; otherwise it is replaced after env.deadline_s."
    )


def test_the_thread_ends_the_command_with_the_sentence() -> None:
    machine, ended, happened = Machine(), [], threading.Event()
    machine.stopped = [RAYLET]

    def end(status: int, sentence: str) -> None:
        ended.append((status, sentence))
        happened.set()

    with StoppedWatch(look=machine, end=end, every_s=0.01, end_after_s=0.05):
        happened.wait()
    ((status, sentence),) = ended
    assert status == 1 and sentence.startswith(
        "the run failed: Ray's raylet on this machine (process 7)"
    )


# A process that starts another of its kind, and so on; each prints its number and then does
# nothing.
FAMILY = """
import os, subprocess, sys, time
print(os.getpid(), flush=True)
if int(sys.argv[2]) > 1:
    subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[1], str(int(sys.argv[2]) - 1)])
time.sleep(3600)
"""


@pytest.fixture
def family() -> Iterator[list[int]]:
    """Numbers of a child, its child and its child's child."""
    process = subprocess.Popen(
        [sys.executable, "-c", FAMILY, FAMILY, "3"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pids = [int(process.stdout.readline()) for _ in range(3)]
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    process.communicate()


def test_children_and_their_children_are_looked_at_and_the_programs_below_are_not(
    family: list[int],
) -> None:
    def seen() -> set[int]:
        return {process.pid for process in stopped_processes()}

    child, grandchild, program = family
    for pid in (program, grandchild, child):
        os.kill(pid, signal.SIGSTOP)
    while not {child, grandchild} <= seen():
        time.sleep(0.01)
    assert program not in seen()
    (title,) = [process.title for process in stopped_processes() if process.pid == child]
    assert "import os, subprocess" in title
    for pid in family:
        os.kill(pid, signal.SIGCONT)
    while seen():
        time.sleep(0.01)
