"""A request to end: the handlers that are called, and the work that is finished first.
tests/main_job tests immediate ends.
"""

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from contextlib import suppress

import pytest

from siirl.interrupts import Stop

FORKED = """
import os, signal, time
from siirl import interrupts
interrupts.listen()
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
time.sleep(0.2)
os.kill(child, {number})
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
time.sleep(0.5)  # in which a signal that was heard would end this process
"""
THREADS_AND_CHILDREN = """
import subprocess, sys, time
from siirl import interrupts
interrupts.listen()
with interrupts.final_message(lambda: "outer"), interrupts.final_message(lambda: "inner"), interrupts.final_message(str):
    child = subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600"])
    print(child.pid, flush=True)
    time.sleep(600)
"""

FAILING_WORDS = """
import os, threading
from siirl import interrupts
def fails():
    raise OSError(39, "Directory not empty")
with interrupts.final_message(lambda: "outer"), interrupts.final_message(fails):
    threads = [
        threading.Thread(target=interrupts.end_at_once, args=(1, "a rank waits")) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""
WHILE_IMPORTING = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "siirl.interrupts":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv[0] = "/usr/bin/siirl"
import siirl
"""
SPAWNING = """
import multiprocessing, signal
import siirl
def handlers():
    print([signal.getsignal(number).name for number in (signal.SIGINT, signal.SIGTERM)])
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=handlers)
    child.start()
    child.join()
"""
FINISHED = """
import atexit, os
from siirl import interrupts
interrupts.listen()
class Module:
    def __del__(self):
        os.write(1, b"taken apart")
module = Module()
atexit.register(print, "called at exit")
print("result", end=", ")
interrupts.leave(3)
"""
WITH_A_THREAD = """
import asyncio, time
from siirl import interrupts
interrupts.listen()
interrupts.THREADS_END_S = 0.2
async def step():
    await asyncio.wait({asyncio.ensure_future(asyncio.to_thread(time.sleep, 1_000_000))}, timeout=0.1)
loop = asyncio.new_event_loop()
loop.run_until_complete(step())
print("result")
interrupts.leave(3)
"""
FAILING_BY_ITS_END = """
import subprocess, time
from siirl import interrupts
interrupts.listen()
with interrupts.final_message(lambda: time.sleep(1) or "cleaned up"):
    child = subprocess.Popen(["sleep", "600"])
    print("waits", flush=True)
    child.wait()
    interrupts.leave(2)
"""
WITHOUT_READER = """
import subprocess, sys
from siirl import interrupts
interrupts.listen()
child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
with interrupts.grace_period(600.0):
    print(child.pid, flush=True)
    interrupts.STOP.arrives(within_s=600.0)
    for _ in range(100):
        print("saving", flush=True)
        print("saving", file=sys.stderr)
interrupts.end_at_once(interrupts.STOP.number, "interrupted")
"""
READER_THAT_LEAVES = """
from siirl import interrupts
interrupts.listen()
try:
    while True:
        print("a line", flush=True)
except BrokenPipeError:
    interrupts.leave(3)
"""


def child_of(output: int) -> int:
    """Number of the child that a program prints first."""
    with os.fdopen(os.dup(output)) as lines:
        return int(lines.readline())


def test_a_command_whose_terminal_is_closed_saves_and_leaves_no_process():
    ours, its = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_READER],
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(its)
    child = os.pidfd_open(child_of(ours))
    os.close(ours)  # the kernel sends SIGHUP to the session of the terminal
    assert program.wait() == signal.SIGHUP
    select.select([child], [], [])  # it has ended
    os.close(child)


def test_ctrl_c_that_also_ends_the_reader_of_the_output_is_handled():
    """As in `siirl train | tee log`."""
    program = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_READER], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert program.stdout is not None
    child = os.pidfd_open(child_of(program.stdout.fileno()))
    program.stdout.close()
    program.send_signal(signal.SIGINT)
    assert program.wait() == signal.SIGINT
    select.select([child], [], [])  # it has ended
    os.close(child)


def test_a_reader_that_leaves_without_a_signal_is_still_an_error():
    program = subprocess.Popen([sys.executable, "-c", READER_THAT_LEAVES], stdout=subprocess.PIPE)
    assert program.stdout is not None
    program.stdout.readline()
    program.stdout.close()
    assert program.wait() == 3


@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&-"])
def test_a_command_without_output_listens(redirection: str):
    program = "from siirl import interrupts; interrupts.listen(); interrupts.leave(3)"
    command = ["sh", "-c", f'exec "$0" -c "$1" {redirection}', sys.executable, program]
    assert subprocess.run(command, check=False).returncode == 3


def test_a_request_that_is_held_waits():
    stop = Stop()
    stop.hold(True)
    stop.request(signal.SIGTERM)
    assert not stop.requested
    stop.hold(False)
    assert stop.requested


def test_a_request_wakes_what_waits_for_it():
    stop, woken = Stop(), []
    with stop.waking(lambda: woken.append("first")):
        stop.request(signal.SIGINT)
    stop.request(signal.SIGINT)
    assert woken == ["first"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_a_forked_child_is_not_its_parents_and_ends_it_without_a_traceback(
    number: signal.Signals,
):
    program = FORKED.format(number=number.value)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{-number}\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_ends_at_once_with_its_last_messages_innermost_first_and_with_its_children(
    number: signal.Signals,
):
    program = subprocess.Popen(
        [sys.executable, "-c", THREADS_AND_CHILDREN],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert program.stdout is not None
    program.stdout.readline()
    program.send_signal(number)
    _, errors = program.communicate()  # the pipe ends when no child holds it any more
    assert (program.returncode, errors) == (128 + number, "siirl: interrupted\ninner\nouter\n")


def test_ctrl_c_before_a_command_listens_ends_it_without_a_traceback():
    done = subprocess.run(
        [sys.executable, "-c", WHILE_IMPORTING], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_a_process_that_a_command_spawns_does_not_listen_like_the_command(tmp_path):
    """It is imported with the command's arguments, and ends as whoever started it wishes."""
    script = tmp_path / "siirl"
    script.write_text(SPAWNING)
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert ended.stdout == "['SIG_DFL', 'SIG_DFL']\n", ended.stderr


def test_a_finished_command_calls_what_is_registered_and_ends_before_its_modules_are_taken_apart():
    done = subprocess.run(
        [sys.executable, "-c", FINISHED], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "result, called at exit\n", "")


def test_a_command_that_fails_because_its_children_were_ended_was_interrupted():
    process = subprocess.Popen(
        [sys.executable, "-c", FAILING_BY_ITS_END],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    process.terminate()
    _, errors = process.communicate()
    assert (process.returncode, errors) == (143, "siirl: interrupted\ncleaned up\n")


def test_a_finished_command_does_not_wait_for_a_thread_that_never_ends():
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_THREAD], capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stdout) == (3, "result\n")
    assert done.stderr == (
        "siirl: threads of an environment or plug-in did not end within 0.2 s (asyncio_0); the "
        "command ends without them\n"
    )


def test_a_command_that_two_threads_end_gives_the_reason_once_though_cleaning_up_fails():
    done = subprocess.run(
        [sys.executable, "-c", FAILING_WORDS], capture_output=True, text=True, check=False
    )
    said = "Cleaning up failed: OSError: [Errno 39] Directory not empty"
    assert (done.returncode, done.stderr) == (1, f"siirl: a rank waits\n{said}\nouter\n")


ANOTHER_USERS = """
import os, subprocess
from siirl import interrupts
foreign, own = (
    subprocess.Popen(["sleep", "600"], user=user, stdout=subprocess.DEVNULL) for user in (0, 65534)
)
print(foreign.pid, flush=True)
os.setresuid(65534, 65534, 65534)
interrupts.end_descendants()
print(own.wait(), foreign.poll(), flush=True)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root has processes of two users")
def test_a_process_of_another_user_protects_none_of_its_siblings():
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER_USERS], stdout=subprocess.PIPE, text=True, check=False
    )
    foreign, *said = done.stdout.splitlines()
    os.kill(int(foreign), signal.SIGKILL)
    assert said == [f"{-signal.SIGKILL} None"]


STARTS_MANY = """
import signal, subprocess, sys
from siirl.interrupts import start_apart
signal.signal(signal.SIGINT, lambda *_: None)  # as a command that finishes what it does
print("starts", flush=True)
ends = {start_apart(["true"]).wait() for _ in range(300)}
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python's own end would take its default
print(ends, flush=True)
"""


def test_ctrl_c_reaches_no_process_that_is_started_apart_not_even_while_it_starts():
    process = subprocess.Popen(
        [sys.executable, "-c", STARTS_MANY],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "starts\n"
    while process.poll() is None:  # a terminal sends it to the whole group of the command
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
    assert (process.stdout.read(), process.returncode) == ("{0}\n", 0)
