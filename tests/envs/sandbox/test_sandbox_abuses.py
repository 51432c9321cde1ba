"""Programs that exhaust resources. Each is ended, nothing of it is left, and the next program is
judged as usual. Every abuse is bounded itself (a number of forks, of mebibytes), so that a failing
isolation would not bring the machine down.
"""

from dataclasses import replace

import pytest
from trials import RIGHT, SMALL, executions, problem, sandboxed_processes, verdict

from envs.archives import MEBIBYTE
from envs.sandbox.limits import Ending
from envs.sandbox.sandbox_env import make_sandbox

FINISHED, CPU, WALL, OUTPUT, FILES, MEMORY, PROCESSES = (
    Ending.FINISHED,
    Ending.CPU_TIME,
    Ending.WALL_TIME,
    Ending.OUTPUT,
    Ending.FILES,
    Ending.MEMORY,
    Ending.PROCESSES,
)
OUT_OF_TIME = {CPU, WALL}  # on a busy machine the clock may be first

# What is done, and how it may end. `print('through')` stands where the abuse would have worked.
ABUSES = {
    # processes; the kernel refuses one too many, and where it does not bind us (root alone in a
    # user namespace), the watch ends all
    "fork bomb": (
        "import os, time\nfor _ in range(40):\n    if os.fork() == 0: time.sleep(3); "
        "os._exit(0)\ntime.sleep(3)\nprint('through')",
        {FINISHED, PROCESSES},
    ),
    "fork bomb that forks from its children": (
        # The first one waits for none of its children, so each keeps its place when it has ended:
        # eight do not fit beside it.
        "import os, time\nfor _ in range(8):\n    try: os.fork()\n    except OSError: "
        "time.sleep(0.2); os._exit(1)\nprint('through')",
        {FINISHED, PROCESSES},
    ),
    "thread bomb": (
        "import threading, time\nfor _ in range(40): threading.Thread(target=time.sleep, "
        "args=(3,), daemon=True).start()\nprint('through')",
        {FINISHED},
    ),
    # memory
    "one large allocation": ("x = bytearray(100 * 2**20)\nprint('through')", {FINISHED}),
    "many small allocations": (
        "x = []\nfor n in range(200): x.append(bytes([n]) * 2**20)\nprint('through')",
        {FINISHED, MEMORY},
    ),
    "memory that is mapped": (
        "import mmap\nx = mmap.mmap(-1, 100 * 2**20)\nprint('through')",
        {FINISHED},
    ),
    "memory in many processes": (
        "import os, time\nfor _ in range(6):\n    if os.fork() == 0:\n"
        "        x = bytearray(b'x' * (20 * 2**20)); time.sleep(6); os._exit(0)\n"
        "time.sleep(6)\nprint('through')",
        {MEMORY},
    ),
    "memory that processes share": (
        "import mmap, os, time\nfor _ in range(6):\n    if os.fork() == 0:\n"
        "        x = mmap.mmap(-1, 20 * 2**20); x[:] = b'x' * len(x); time.sleep(6)\n"
        "        os._exit(0)\ntime.sleep(6)\nprint('through')",
        {MEMORY},
    ),
    "a number without end": ("x = 9 ** 9 ** 9\nprint('through')", OUT_OF_TIME | {FINISHED}),
    # disk
    "fill the disk": (
        "for n in range(20): open(f'/tmp/{n}', 'wb').write(b'x' * 2**20)\nprint('through')",
        {FINISHED},
    ),
    "one large file": ("open('/tmp/x', 'wb').truncate(100 * 2**20)\nprint('through')", {FINISHED}),
    "many files": (
        "import time\nfor n in range(5000): open(f'/tmp/{n}', "
        "'w').close()\ntime.sleep(1)\nprint('through')",
        {FILES},
    ),
    "many folders in each other": (
        "import os, time\nfor n in range(5000): os.mkdir('d'); "
        "os.chdir('d')\ntime.sleep(1)\nprint('through')",
        {FILES},
    ),
    "many descriptors": (
        "import os\nx = [os.pipe() for _ in range(500)]\nprint('through')",
        {FINISHED},
    ),
    # time
    "a loop without end": ("while True: pass", OUT_OF_TIME),
    "a loop that ignores the signal for it": (
        "import signal\n"
        "for s in (signal.SIGXCPU, signal.SIGTERM, signal.SIGINT, signal.SIGALRM): "
        "signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
        OUT_OF_TIME,
    ),
    "a match without end": (
        "import re\nre.match('(a+)+$', 'a' * 40 + 'b')\nprint('through')",
        OUT_OF_TIME,
    ),
    # output
    "gigabytes of output": (
        "import sys\nfor _ in range(10_000): sys.stdout.write('x' * 100_000)\nprint('through')",
        {OUTPUT},
    ),
    "gigabytes of errors": (
        "import sys\nfor _ in range(10_000): sys.stderr.write('x' * 100_000)\nprint('through')",
        {OUTPUT},
    ),
    "output just above the bound": (
        "import os\nos.write(1, b'x' * 60_000)\nos.write(1, b'x' * 60_000)\nprint('through')",
        {OUTPUT},
    ),
    "output by a process that stays": (
        "import os, sys\nif os.fork() == 0:\n    for _ in range(10_000): os.write(1, b'x' * "
        "50_000)\n"
        "    os._exit(0)\nos.wait()\nprint('through')",
        {OUTPUT},
    ),
    # crashes
    "deep recursion": ("def f(n): return f(n + 1)\nf(0)\nprint('through')", {FINISHED}),
    "deep recursion without Python's bound": (
        "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __repr__(self): return "
        "repr(self)\nrepr(A())\nprint('through')",
        {FINISHED} | OUT_OF_TIME,
    ),
    "a program that is nested too deeply": (
        "(" * 5000 + ")" * 5000 + "\nprint('through')",
        {FINISHED},
    ),
    "a crash of the interpreter": (
        "import ctypes\nctypes.string_at(0)\nprint('through')",
        {FINISHED},
    ),
    "abort": ("import os\nos.abort()", {FINISHED}),
    "no program at all": ("\0", {FINISHED}),
    "a program of another encoding": ("# coding: rot13\ncevag('guebhtu')\n1/0", {FINISHED}),
    "a lone surrogate": ("x = '\ud800'\n1/0", {FINISHED}),
    # its own process
    "closing every descriptor": ("import os\nos.closerange(0, 1024)\n1/0", {FINISHED}),
    "killing itself": ("import os\nos.kill(os.getpid(), 9)", {FINISHED}),
    "killing its group": ("import os\nos.killpg(0, 9)", {FINISHED}),
    "reading what is not given": ("input()\nprint('through')", {FINISHED}),
}
ENDLESS = {  # ended by the clock: a shorter one
    "sleep": "import time\ntime.sleep(60)",
    "stopping itself": "import os\nos.kill(os.getpid(), 19)",
    "a thread that goes on after the end": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
    "a function for the end that goes on": "import atexit, time\natexit.register(time.sleep, 60)",
    "an object whose end goes on": "import time\nclass A:\n    def __str__(self): time.sleep(60)\nraise SystemExit(A())",
    "waiting for a lock": "import threading\nthreading.Lock().acquire() and threading.Event().wait()",
}


@pytest.fixture(scope="module")
def hasty():
    """A sandbox that waits for one second only."""
    return make_sandbox("bubblewrap", limits=replace(SMALL, wall_s=1.0))


@pytest.mark.parametrize("name", ABUSES)
def test_abuse_is_ended(small, seven, name):
    program, endings = ABUSES[name]
    (execution,) = executions(small, program)
    assert execution.ending in endings, execution
    assert b"through" not in execution.output or execution.exit_status != 0
    assert (execution.ending, execution.exit_status) != (FINISHED, 0)
    assert verdict(small, seven, RIGHT).success  # the service goes on


@pytest.mark.parametrize("name", ENDLESS)
def test_program_that_never_ends_is_ended(small, hasty, seven, name):
    (execution,) = executions(hasty, ENDLESS[name])
    assert execution.ending is WALL
    assert verdict(small, seven, RIGHT).success


def test_process_that_stays_is_ended_with_its_test(small):
    program = """
import os, sys
if input() == "leave":
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                sys.stdout.flush()
                import time
                while True:
                    time.sleep(0.01)
            os._exit(0)
else:
    others = 0
    for process in range(2, 200):
        try:
            os.kill(process, 0)
            others += process != os.getpid()
        except ProcessLookupError:
            pass
    print("others:", others)
"""
    first, second = executions(small, program, (b"leave\n", b"look\n"))
    assert (first.ending, first.exit_status) == (FINISHED, 0)
    assert second.output == b"others: 0\n"


def test_files_of_a_test_are_gone_in_the_next(small):
    program = (
        "import os\nprint(sorted(os.listdir('/tmp')))\nos.makedirs('/tmp/a/b')\n"
        "open('/tmp/a/b/c', 'w').write('x')\nos.symlink('/dev', '/tmp/d')\n"
    )
    program += "os.chmod('/tmp/a/b', 0)\nos.chmod('/tmp', 0)\n"
    assert [execution.output for execution in executions(small, program, (b"", b"", b""))] == [
        b"[]\n"
    ] * 3


def test_variables_of_a_test_are_gone_in_the_next(small):
    program = "import json\nprint(getattr(json, 'left', None))\njson.left = 1\n"
    assert [execution.output for execution in executions(small, program, (b"", b""))] == [
        b"None\n"
    ] * 2


def test_supervisor_that_cannot_clean_up_fails_the_program_not_the_service(small, seven):
    """Folders whose path is longer than the kernel takes; what follows is not run, and counts as
    not passed.
    """
    program = (
        "import os\nfor n in range(40): os.mkdir('d' * 250); os.chdir('d' * 250)\ndef solve(v): "
        "return v * 7 + 3"
    )
    result = verdict(small, seven, program)
    assert result.passed <= 1 and not result.success
    assert verdict(small, seven, RIGHT).success


def test_time_of_all_tests_is_bounded(seven):
    sandbox = make_sandbox("bubblewrap", limits=replace(SMALL, total_s=1.0))
    result = verdict(
        sandbox,
        problem(inputs=["1"] * 20, outputs=["1"] * 19 + ["2"]),
        "import time\ntime.sleep(0.3)\nprint(1)",
    )
    assert result.passed < 8 and not result.success
    assert "out of time" in result.sentence or "not run" in result.sentence


def test_result_above_the_bound_ends_the_test(small):
    (execution,) = executions(small, "def f(): return 'x' * 200_000", (b"[]",), "f")
    assert (execution.ending, execution.output) == (OUTPUT, b"")


def test_memory_within_the_limit_is_available(small):
    (execution,) = executions(small, f"x = bytearray({24 * MEBIBYTE})\nprint(len(x))")
    assert execution.output == b"25165824\n"


def test_processes_within_the_limit_run(small):
    program = (
        "import os, time\nfor _ in range(5):\n    if os.fork() == 0: time.sleep(0.2); os._exit(0)\n"
        "for _ in range(5): os.wait()\nprint('done')"
    )
    (execution,) = executions(small, program)
    assert execution.output == b"done\n"


def test_nothing_is_left_behind():
    assert sandboxed_processes() == set()
