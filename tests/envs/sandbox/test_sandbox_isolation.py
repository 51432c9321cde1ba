"""Isolation and ordinary programs in it: system calls by number, the test before use, input,
output, packages.
"""

import asyncio
import contextlib
import ctypes
import resource
import struct
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from trials import SMALL, executions, sandboxed_processes

from envs.sandbox import isolation, local, sandbox_env
from envs.sandbox.isolation import Bubblewrap, NoIsolation
from envs.sandbox.limits import Ending, Limits, ProgramRun, SandboxFailed
from envs.sandbox.local import LocalSandbox
from envs.sandbox.probe import check_isolation
from envs.sandbox.sandbox_env import make_sandbox
from envs.sandbox.seccomp import ARCHITECTURES, CHECKED_CALLS, allowed_numbers, syscall_filter

DANGEROUS = [
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "keyctl",
    "add_key",
    "request_key",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "mount",
    "umount2",
    "move_mount",
    "open_tree",
    "fsopen",
    "pivot_root",
    "chroot",
    "unshare",
    "setns",
    "clone3",
    "socket",
    "connect",
    "bind",
    "listen",
    "accept",
    "memfd_create",
    "shmget",
    "shmat",
    "semget",
    "msgget",
    "mq_open",
    "setuid",
    "setgid",
    "setresuid",
    "setgroups",
    "init_module",
    "finit_module",
    "kexec_load",
    "reboot",
    "open_by_handle_at",
    "name_to_handle_at",
    "personality",
    "mknod",
    "mknodat",
    "pidfd_getfd",
    "pidfd_send_signal",
    "kcmp",
    "syslog",
    "swapon",
    "acct",
    "quotactl",
    "settimeofday",
    "clock_settime",
]


@pytest.fixture(scope="module")
def libseccomp():
    """An independent table of numbers."""
    try:
        return ctypes.CDLL("libseccomp.so.2")
    except OSError:
        pytest.skip("libseccomp is not installed")


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_numbers_of_calls_are_those_of_libseccomp(libseccomp, machine):
    _, architecture = ARCHITECTURES[machine]
    numbers = allowed_numbers(machine) | {
        name: entry[ARCHITECTURES[machine][0]] for name, entry in CHECKED_CALLS.items()
    }
    theirs = {
        name: libseccomp.seccomp_syscall_resolve_name_arch(architecture, name.encode())
        for name in numbers
    }
    assert numbers == theirs


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_no_dangerous_call_is_allowed(machine):
    assert not set(DANGEROUS) & set(allowed_numbers(machine))


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_filter_is_a_program_that_the_kernel_takes(machine):
    """Instructions of 8 bytes, at most 4096 (BPF_MAXINSNS), no jump beyond the end, refusal as the
    last word.
    """
    program = list(struct.iter_unpack("=HBBI", syscall_filter(machine)))
    assert 100 < len(program) <= 4096
    assert all(
        place + 1 + max(true, false) < len(program)
        for place, (code, true, false, _) in enumerate(program)
        if code != 0x06
    )
    assert program[-1] == (0x06, 0, 0, 0x00050000 | 38)  # ENOSYS


def test_machine_without_a_table_is_refused():
    with pytest.raises(
        RuntimeError, match="no table of system calls for riscv64; known: x86_64, aarch64"
    ):
        syscall_filter("riscv64")


def test_walls_hold_when_tried(small):
    check_isolation(Bubblewrap(SMALL), SMALL)


def test_missing_walls_are_noticed():
    """The same attempts without isolation, where most get through."""
    with pytest.raises(
        RuntimeError,
        match=r"does not isolate programs on this machine\. A program in it can: .*read /etc/passwd; list /proc",
    ) as refusal:
        check_isolation(NoIsolation(), SMALL)
    assert "open a socket" in str(refusal.value)
    assert "use memory above the limit" not in str(refusal.value)


def test_one_missing_wall_is_noticed(small, monkeypatch):
    """A filter that allows everything: the calls that only it holds back get through."""
    monkeypatch.setattr(
        isolation, "syscall_filter", lambda: struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)
    )
    with pytest.raises(RuntimeError, match="does not isolate programs") as refusal:
        check_isolation(Bubblewrap(SMALL), SMALL)
    assert "open a socket" in str(refusal.value)
    assert "read /etc/passwd" not in str(refusal.value)


def test_machine_without_bubblewrap_is_refused_with_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox_env._tried_bubblewrap.cache_clear()
    with pytest.raises(
        RuntimeError, match=r"not installed\. .*apt-get install bubblewrap.*env\.isolation=none"
    ):
        make_sandbox("bubblewrap", limits=SMALL)
    sandbox_env._tried_bubblewrap.cache_clear()


def test_machine_without_namespaces_is_refused_with_bubblewraps_message(monkeypatch):
    with contextlib.ExitStack() as stack:
        # the user `nobody` cannot enter pytest's folders
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "bwrap").write_text(
            "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
        )
        for path in (folder, folder / "bwrap"):
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin:/usr/sbin:/sbin")
        stack.enter_context(
            pytest.raises(RuntimeError, match="No permissions to create new namespace")
        )
        check_isolation(Bubblewrap(SMALL), SMALL)


def test_without_isolation_programs_run_all_the_same():
    sandbox = make_sandbox("none", limits=SMALL)
    first, second = executions(
        sandbox, "import os\nprint(os.path.exists('/etc/passwd'), input())", (b"1\n", b"2\n")
    )
    assert (first.output, second.output) == (b"True 1\n", b"True 2\n")
    (execution,) = executions(sandbox, "def f(a): return a[::-1]", (b'["abc"]',), "f")
    assert execution.output == b'"cba"'
    assert sandboxed_processes() == set()


def test_without_isolation_a_hanging_program_is_ended():
    sandbox = make_sandbox("none", limits=replace(SMALL, wall_s=0.5))
    (execution,) = executions(sandbox, "import time\ntime.sleep(60)")
    assert execution.ending is Ending.WALL_TIME
    assert sandboxed_processes() == set()


def test_program_runs_as_python_would_run_it(small):
    program = """
import sys, dataclasses, __main__
@dataclasses.dataclass
class Point:
    x: int
print(__name__, __main__.Point(1), sys.argv, sys.stdin.read().strip(), sum(1 for _ in sys.stdin))
import atexit, threading
atexit.register(print, "last")
threading.Thread(target=print, args=("thread",)).start()
"""
    (execution,) = executions(small, program, ("gr\u00fc\u00dfe \U0001f600\n".encode(),))
    assert (
        execution.output.decode()
        == "__main__ Point(x=1) ['program.py'] gr\u00fc\u00dfe \U0001f600 0\nthread\nlast\n"
    )
    assert execution.exit_status == 0


@pytest.mark.parametrize(
    ("program", "status", "errors"),
    [
        ("raise SystemExit", 0, b""),
        ("raise SystemExit(3)", 3, b""),
        ("raise SystemExit('words')", 1, b"words\n"),
        ("1 / 0", 1, b"ZeroDivisionError: division by zero\n"),
        ("x = (", 1, b"SyntaxError: '(' was never closed\n"),
        (
            "import atexit\natexit.register(lambda: 1 / 0)",
            0,
            b"ZeroDivisionError: division by zero\n",
        ),
    ],
)
def test_exit_status_is_that_of_python(small, program, status, errors):
    (execution,) = executions(small, program)
    assert execution.exit_status == status
    assert execution.errors.endswith(errors)
    assert b"runner.py" not in execution.errors


def test_megabytes_go_in_and_come_out(small):
    sandbox = make_sandbox("bubblewrap", limits=replace(SMALL, output_bytes=5_000_000))
    given = bytes(range(256)) * 16_000
    (execution,) = executions(
        sandbox, "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])", (given,)
    )
    assert execution.output == given[::-1]


def test_unread_input_is_not_an_error(small):
    (execution,) = executions(small, "print(1)", (b"x" * 1_000_000,))
    assert (execution.output, execution.exit_status) == (b"1\n", 0)


def test_sets_are_in_the_same_order_at_every_run(small):
    program = "print({'one', 'two', 'three', 'four', 'five'})"
    assert (
        len(
            {
                execution.output
                for _ in range(2)
                for execution in executions(small, program, (b"", b""))
            }
        )
        == 1
    )


def test_requested_packages_are_available():
    limits = Limits()
    (execution,) = executions(make_sandbox("bubblewrap", limits=limits), "import numpy")
    assert execution.errors.endswith(b"ModuleNotFoundError: No module named 'numpy'\n")
    (execution,) = executions(
        make_sandbox("bubblewrap", limits=limits, packages=("numpy",)),
        "import numpy\nprint(numpy.arange(3).sum())",
    )
    assert (execution.output, execution.errors) == (b"3\n", b"")


def test_package_that_is_not_installed_is_refused():
    with pytest.raises(ValueError, match="Package 'no_such_package'"):
        make_sandbox("bubblewrap", limits=SMALL, packages=("no_such_package",))


def test_many_programs_at_once(small):
    async def run(number):
        async with contextlib.aclosing(small.run(ProgramRun(f"print({number})", [b""]))) as found:
            return [execution.output async for execution in found]

    async def all_of_them():
        return await asyncio.gather(*(run(number) for number in range(12)))

    assert asyncio.run(all_of_them()) == [[f"{number}\n".encode()] for number in range(12)]
    assert sandboxed_processes() == set()


@pytest.mark.parametrize("name", ["bubblewrap", "none"])
def test_cancelled_program_is_ended(name, small):
    sandbox = make_sandbox(name, limits=SMALL)

    async def cancel():
        async def run():
            async with contextlib.aclosing(
                sandbox.run(ProgramRun("import time\ntime.sleep(60)", [b""]))
            ) as found:
                return [execution async for execution in found]

        task = asyncio.create_task(run())
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel())
    assert sandboxed_processes() == set()


def test_programs_run_from_a_thread(small):
    outputs = []
    thread = threading.Thread(target=lambda: outputs.extend(executions(small, "print(1)")))
    thread.start()
    thread.join()
    assert outputs[0].output == b"1\n"


def test_a_sandbox_that_does_not_start_gives_no_verdict(small):
    class Broken(NoIsolation):
        @contextlib.contextmanager
        def launch(self):
            with super().launch() as launch:
                yield launch._replace(command=["sh", "-c", "echo no walls today >&2; exit 1"])

    with pytest.raises(SandboxFailed, match=r"^The sandbox did not start: no walls today\.$"):
        executions(LocalSandbox(Broken(), SMALL), "print(1)")


def test_silent_sandbox_is_reported_with_its_deadline(monkeypatch):
    class Silent(NoIsolation):
        @contextlib.contextmanager
        def launch(self):
            with super().launch() as launch:
                yield launch._replace(command=["sh", "-c", "echo building >&2; exec sleep 100"])

    monkeypatch.setattr(local, "START_S", 0.5)
    with pytest.raises(
        SandboxFailed, match=r"^The sandbox did not start within 0\.5 s: building\.$"
    ):
        executions(LocalSandbox(Silent(), SMALL), "print(1)")


def test_processes_above_the_limit_end_a_program_that_the_kernel_does_not_bound():
    """Without isolation the kernel does not count: the limit is 8 processes, and 20 are ended
    within their minute.
    """
    program = "import os, time\nfor _ in range(20):\n    if os.fork() == 0: break\ntime.sleep(60)"
    sandbox = make_sandbox("none", limits=replace(SMALL, wall_s=50.0, total_s=55.0))
    (execution,) = executions(sandbox, program)
    assert execution.ending is Ending.PROCESSES
    assert sandboxed_processes() == set()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"cpu": 1}, "Unknown limit 'cpu'. Did you mean 'cpu_s'"),
        ({"cpu_s": 0}, r"limits\.cpu_s must be at least 1"),
        ({"cpu_s": 1.5}, r"limits\.cpu_s must be a number"),
        ({"wall_s": float("inf")}, "finite"),
        ({"wall_s": "1"}, r"limits\.wall_s must be a number"),
        ({"memory_bytes": 1000}, r"limits\.memory_bytes must be at least 50331648"),
        ({"processes": True}, r"limits\.processes must be a number"),
    ],
)
def test_invalid_limits_are_refused(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        Limits.of(given)


@contextlib.contextmanager
def no_descriptor_left():
    bounds = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, bounds[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, bounds)


@pytest.mark.parametrize("name", ["bubblewrap", "none"])
def test_a_sandbox_that_cannot_be_started_is_no_verdict(name, small, tmp_path, monkeypatch):
    sandbox = make_sandbox(name, limits=SMALL)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def run():
        with no_descriptor_left():
            await anext(sandbox.run(ProgramRun("print(1)", [b""])))

    with pytest.raises(SandboxFailed, match=r"could not be started: .*Too many open files"):
        asyncio.run(run())


def test_a_program_that_can_no_longer_be_watched_is_ended_without_a_verdict(small, monkeypatch):
    async def run():
        with contextlib.ExitStack() as stack:
            begin = local._RunningProcess.begin

            async def begin_and_run_out(running, message):
                await begin(running, message)
                stack.enter_context(no_descriptor_left())

            monkeypatch.setattr(local._RunningProcess, "begin", begin_and_run_out)
            program = ProgramRun("import time\ntime.sleep(2)", [b""])
            async with contextlib.aclosing(small.run(program)) as found:
                return [execution async for execution in found]

    with pytest.raises(SandboxFailed, match=r"could not be watched: .*Too many open files"):
        asyncio.run(run())
    assert sandboxed_processes() == set()


def test_a_machine_without_free_processes_gives_no_verdict(small):
    """A supervisor that may open no more than six files cannot make the pipes to the program."""

    class Exhausted(NoIsolation):
        @contextlib.contextmanager
        def launch(self):
            with super().launch() as launch:
                bound = (
                    "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (6, 6)); "
                )
                bound += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
                yield launch._replace(command=[launch.command[0], "-c", bound, *launch.command[1:]])

    with pytest.raises(SandboxFailed, match="no memory or processes left"):
        executions(LocalSandbox(Exhausted(), SMALL), "print(1)")
