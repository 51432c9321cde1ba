"""Programs that try to escape. Each prints `through` on success; effects on the machine are checked
from outside.

The attempts themselves are tested, too: harmless ones run without isolation, and of the others the
form is checked.
"""

import os
import socket
import subprocess
import sys
import textwrap
from contextlib import ExitStack

import pytest
from trials import RIGHT, executions, sandboxed_processes, verdict

PRELUDE = '''
import ctypes, os, socket, sys
kernel = ctypes.CDLL(None, use_errno=True)
machine = os.uname().machine

def call(x86, arm, *arguments):
    """A system call by number; the first column is x86-64's, the second AArch64's."""
    result = kernel.syscall(x86 if machine == "x86_64" else arm, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")

def opened(*paths):
    """Those that can be opened."""
    return [path for path in paths if works(os.open, path, os.O_RDONLY)]

def descriptors():
    """Those that the program did not open: input, output and errors are its own, and the pipe of results."""
    return [number for number in range(4, 1024) if works(os.fstat, number)]

SHELLS = ("/bin/sh", "/usr/bin/sh", "/bin/bash", "/usr/bin/bash", "/bin/busybox")

def works(function, *arguments):
    try:
        function(*arguments)
    except OSError:
        return False
    return True

def within():
    assert (os.getppid(), os.getuid()) == (1, 65534), "not within a sandbox"
    return True
'''
# Each is an expression that a wall makes end in an error of the operating system. One that comes
# back got through, whatever it returned: most calls that change the world return None.
ACTS = {
    # the network and other sockets
    "connect to a server on this machine": "socket.create_connection(('127.0.0.1', PORT), 2)",
    "connect over IPv6": "socket.create_connection(('::1', PORT), 2)",
    "send a datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
    "resolve a name": "socket.getaddrinfo('example.org', 80)",
    "connect to a unix socket": "socket.socket(socket.AF_UNIX).connect(UNIX_SOCKET)",
    "talk to the hypervisor (vsock)": "socket.socket(40)",
    "talk to the kernel (netlink)": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "sniff packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "use the kernel's cryptography sockets": "socket.socket(38, socket.SOCK_SEQPACKET)",
    # files of others
    "read a secret": "open(SECRET).read()",
    "read /etc/passwd": "open('/etc/passwd').read()",
    "read the checkout": "open(CHECKOUT + '/pyproject.toml').read()",
    "follow a symbolic link out": "os.symlink(SECRET, '/tmp/link') or open('/tmp/link').read()",
    "climb out of the root": "open('/tmp/' + '../' * 30 + SECRET).read()",
    "hard-link a file of the system": "os.link(os.__file__, '/tmp/link') or open('/tmp/link', 'r+')",
    "open by handle": "call(304, 265, -100, 0, 0)",
    # writing
    "write to the root": "open('/file', 'w')",
    "write to /dev": "open('/dev/file', 'w')",
    "write to shared memory": "open('/dev/shm/file', 'w')",
    "write to the standard library": "open(os.__file__, 'a')",
    "replace the interpreter": "os.rename(sys.executable, '/tmp/python')",
    "make writable": "os.chmod(os.__file__, 0o777)",
    "make a device": "call(133, -1, b'/tmp/device', 0o60600, 0x800)",
    # other processes
    "kill a process outside": "os.kill(VICTIM, 9)",
    "trace the supervisor": "call(101, 117, 16, os.getppid(), 0, 0)",
    "read the supervisor's memory": "call(310, 270, os.getppid(), 0, 0, 0, 0, 0)",
    "write into the supervisor's memory": "call(311, 271, os.getppid(), 0, 0, 0, 0, 0)",
    "take a descriptor of the supervisor": "call(438, 438, os.pidfd_open(1), 1, 0)",
    "compare processes": "call(312, 272, 1, 1, 0, 0, 0)",
    "change the supervisor's limits": "__import__('resource').prlimit(1, 7, (0, 0))",
    # /proc and /sys
    "read the environment of process 1": "open('/proc/1/environ').read()",
    "read its own memory": "open('/proc/self/mem', 'rb')",
    "write a setting of the kernel": "open('/proc/sys/kernel/core_pattern', 'w')",
    "list /sys": "os.listdir('/sys')",
    # privileges and namespaces
    "become root": "os.setuid(0)",
    "make a user namespace": "call(272, 97, 0x10000000)",
    "clone into a user namespace": "call(56, 220, 0x10000011, 0, 0, 0, 0)",
    "clone into a user namespace the new way": "call(435, 435, ctypes.create_string_buffer((0x10000000).to_bytes(8, 'little'), 88), 88)",
    "enter a namespace": "call(308, 268, 0, 0)",
    "mount": "call(165, 40, b'none', b'/tmp', b'tmpfs', 0, 0)",
    "unmount": "call(166, 39, b'/tmp', 2)",
    "mount the new way": "call(429, 429, 0, 0)",
    "change the root": "os.chroot('/tmp')",
    "pivot the root": "call(155, 41, b'/tmp', b'/tmp')",
    "read a key ring": "call(250, 219, 0, -4, 1)",
    "add a key": "call(248, 217, b'user', b'name', b'x', 1, -4)",
    "request a key": "call(249, 218, b'user', b'name', 0, 0)",
    "load a kernel module": "call(175, 105, 0, 0, b'')",
    "load a BPF program": "call(321, 280, 0, 0, 0)",
    "watch performance counters": "call(298, 241, 0, 0, -1, -1, 0)",
    "set up io_uring": "call(425, 425, 1, ctypes.create_string_buffer(120))",
    "handle page faults": "call(323, 282, 0)",
    "take another personality": "call(135, 92, 0x0040000)",
    "set the clock": "__import__('time').clock_settime(0, 0)",
    "set the host name": "socket.sethostname('x')",
    "reboot": "call(169, 142, 0, 0, 0, 0)",
    "read the kernel's log": "call(103, 116, 3, ctypes.create_string_buffer(100), 100)",
    # memory that no limit of a process counts
    "make a file in memory": "os.memfd_create('x')",
    "make System V shared memory": "call(29, 194, 0, 4096, 0o1600)",
    "make a message queue": "call(240, 180, b'x', 0o102, 0o600, 0)",
    "make System V semaphores": "call(64, 190, 0, 1, 0o1600)",
    # limits
    "raise the limit on memory": "__import__('resource').setrlimit(9, (2**30, 2**30))",
    "raise the limit on processor time": "__import__('resource').setrlimit(0, (100, 100))",
    # ways to start something else
    "type into the terminal": "__import__('fcntl').ioctl(0, 0x5412, b'x')",
}
# Each is an expression that finds something; nothing found is a wall that held.
FINDINGS = {
    "see installed packages": "[folder for folder in PACKAGES if os.path.isdir(folder) and os.listdir(folder)]",
    "see anything but what is needed": "set(os.listdir('/')) - {'tmp', 'dev', 'usr', 'lib', 'lib64', 'lib32', PREFIX.split('/')[1]}",
    "see a folder of the checkout": "[CHECKOUT] if os.path.exists(CHECKOUT) else []",
    "find inherited descriptors": "descriptors()",
    "find an environment variable": "set(os.environ) - {'HOME', 'TMPDIR', 'LANG', 'PYTHONHASHSEED', 'PWD', 'LC_CTYPE'}",
    "be root already": "[number for number in (*os.getresuid(), *os.getresgid()) if number == 0] + os.getgroups()",
    "open a disk or the memory": "opened('/dev/vda', '/dev/sda', '/dev/mem', '/dev/kmsg', '/dev/fuse', '/dev/kvm')",
    "start a shell": "[shell for shell in SHELLS if works(os.execv, shell, ['sh', '-c', 'echo through'])]",
    "import the grader": "[n for n in ('envs', 'siirl', 'gymnasium', 'pip') if __import__('importlib.util').util.find_spec(n)]",
}
# Signals to the first process of a namespace may be sent, and the kernel drops them: that the
# supervisor lives on, and so answers, is the isolation. No other process exists. `within` keeps the
# machine safe if the isolation fails.
BLOWS = {
    "kill the supervisor": "within() and os.kill(1, 9)",
    "stop the supervisor": "within() and os.kill(1, 19)",
    "kill everybody": "within() and os.kill(-1, 15)",
}
ATTEMPTS = {**ACTS, **FINDINGS, **BLOWS}


@pytest.fixture(scope="module")
def outside(tmp_path_factory, repository):
    """Things that a program must not reach: servers on a port and on a socket file, a file, a
    process.
    """
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        folder = tmp_path_factory.mktemp("outside")
        os.chmod(folder, 0o755)
        (folder / "secret").write_text("secret")
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(str(folder / "socket"))
        unix.listen()
        os.chmod(folder / "socket", 0o777)
        victim = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        )
        stack.callback(victim.kill)
        names = {
            "PORT": server.getsockname()[1],
            "UNIX_SOCKET": str(folder / "socket"),
            "SECRET": str(folder / "secret"),
            "CHECKOUT": str(repository),
            "VICTIM": victim.pid,
            "PREFIX": sys.base_prefix,
            "PACKAGES": [
                path
                for path in (*sys.path, f"{sys.base_prefix}/lib/python3.11/site-packages")
                if path.endswith("-packages")
            ],
        }
        yield names, (server, unix), victim


def attempt(name, names):
    """A program that makes an attempt and prints its result."""
    if name in ACTS:
        return program(f"{ACTS[name]}\nthrough = True", names)
    if name in FINDINGS:
        return program(f"through = bool({FINDINGS[name]})", names)
    return program(
        f"""
try:
    {BLOWS[name]}
except ProcessLookupError:
    pass
through = False""",
        names,
    )


def program(statements, names):
    """Code that sets `through`, with the names it may use."""
    given = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    return f"""{PRELUDE}{given}
try:
{textwrap.indent(statements, "    ")}
except (OSError, ImportError, MemoryError, ValueError):
    through = False
print("through" if through else "held", flush=True)
"""


def unvisited(listener):
    """Whether no connection was made since the last call."""
    listener.setblocking(False)
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return True
    return False


@pytest.mark.parametrize("name", ATTEMPTS)
def test_attempt_to_get_out_is_held(small, seven, outside, name):
    names, listeners, victim = outside
    (execution,) = executions(small, attempt(name, names))
    assert (execution.output, execution.exit_status) == (b"held\n", 0), execution
    assert all(unvisited(listener) for listener in listeners)
    assert victim.poll() is None
    assert verdict(small, seven, RIGHT).success  # the service continues


# Without walls the same programs do say `through`. Left out are those that would change this
# machine, and those that a host or a container may forbid by itself (namespaces, counters,
# personalities).
HARMLESS = (
    *(
        "connect to a server on this machine",
        "send a datagram",
        "connect to a unix socket",
        "talk to the kernel (netlink)",
    ),
    *(
        "read a secret",
        "read /etc/passwd",
        "read the checkout",
        "climb out of the root",
        "read its own memory",
        "list /sys",
    ),
    *("raise the limit on memory", "raise the limit on processor time", "make a file in memory"),
    *FINDINGS,
)
NOT_EVERYWHERE = ("be root already", "open a disk or the memory")  # by user and by machine


def said_without_walls(program_text, **options):
    command = [sys.executable, "-c", program_text]
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


@pytest.mark.parametrize("name", [name for name in HARMLESS if name not in NOT_EVERYWHERE])
def test_a_harmless_attempt_gets_through_where_there_are_no_walls(outside, name):
    names, listeners, _ = outside
    reading, writing = os.pipe()
    try:
        assert said_without_walls(attempt(name, names), pass_fds=[writing]) == "through\n"
    finally:
        os.close(reading)
        os.close(writing)
    for listener in listeners:
        unvisited(listener)  # takes the connection away


@pytest.mark.parametrize(
    ("name", "visited"),
    [("connect to a server on this machine", 0), ("connect to a unix socket", 1)],
)
def test_a_connection_that_got_through_is_seen_from_the_outside(outside, name, visited):
    names, listeners, _ = outside
    assert said_without_walls(attempt(name, names)) == "through\n"
    assert [not unvisited(listener) for listener in listeners] == [
        number == visited for number in range(2)
    ]


def test_a_kill_that_got_through_is_seen_from_the_outside():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim:
        assert (
            said_without_walls(attempt("kill a process outside", {"VICTIM": victim.pid}))
            == "through\n"
        )
        assert victim.wait() == -9


@pytest.mark.parametrize("returned", ["None", "False", "0", "[]", "b''"])
def test_a_call_that_comes_back_got_through_whatever_it_returned(returned, monkeypatch):
    """os.rename, os.chmod, os.chroot, clock_settime, sethostname and connect return None on
    success.
    """
    monkeypatch.setitem(ACTS, "act", returned)
    assert said_without_walls(attempt("act", {})) == "through\n"


@pytest.mark.parametrize(
    ("kind", "code", "said"),
    [
        (ACTS, "os.stat('/no/such/file')", "held"),
        (FINDINGS, "[]", "held"),
        (FINDINGS, "[0]", "through"),
        (FINDINGS, "open('/no/such/file')", "held"),
    ],
)
def test_a_wall_is_an_error_of_the_system_or_nothing_found(kind, code, said, monkeypatch):
    monkeypatch.setitem(kind, "attempt", code)
    assert said_without_walls(attempt("attempt", {})) == f"{said}\n"


@pytest.mark.parametrize("name", BLOWS)
def test_a_blow_refuses_to_run_outside_of_a_sandbox(name):
    with pytest.raises(subprocess.CalledProcessError) as ended:
        said_without_walls(attempt(name, {}))
    assert "AssertionError: not within a sandbox" in ended.value.stderr


def test_call_of_another_architecture_is_killed(small):
    """x86-64 kernels number their calls a second time (x32)."""
    if os.uname().machine != "x86_64":
        pytest.skip("only x86-64 has a second numbering")
    (execution,) = executions(small, PRELUDE + "call(0x40000000 + 39, 0)\nprint('through')")
    assert (execution.output, execution.exit_status) == (b"", -31)  # SIGSYS


def test_calls_of_32_bit_programs_are_killed(small):
    """`int 0x80` enters the kernel with i386's numbers, which a filter by number would take for
    others.
    """
    if os.uname().machine != "x86_64":
        pytest.skip("only x86-64 has this way in")
    # push 20 (getpid); pop rax; int 0x80; ret
    code = "code = bytes([0x6A, 20, 0x58, 0xCD, 0x80, 0xC3])\n"
    code += "import mmap\nmemory = mmap.mmap(-1, 4096, prot=7)\nmemory.write(code)\n"
    code += "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()\nprint('through')"
    (execution,) = executions(small, PRELUDE + code)
    assert (execution.output, execution.exit_status) == (b"", -31)


def test_nothing_is_left_behind():
    assert sandboxed_processes() == set()
