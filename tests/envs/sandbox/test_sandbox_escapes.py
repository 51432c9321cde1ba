"""Programs that try to get out. Each says `through` if it did; what it did to the outside is looked at from the outside."""

import os
import socket
import subprocess
import sys
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
    return True
'''
# The last expression of each is what it got; nothing, or an error of the operating system, is a wall that held.
ESCAPES = {
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
    "see installed packages": "[folder for folder in PACKAGES if os.path.isdir(folder) and os.listdir(folder)]",
    "see anything but what is needed": "set(os.listdir('/')) - {'tmp', 'dev', 'usr', 'lib', 'lib64', 'lib32', PREFIX.split('/')[1]}",
    "see a folder of the checkout": "os.path.exists(CHECKOUT)",
    # writing
    "write to the root": "open('/file', 'w')",
    "write to /dev": "open('/dev/file', 'w')",
    "write to shared memory": "open('/dev/shm/file', 'w')",
    "write to the standard library": "open(os.__file__, 'a')",
    "replace the interpreter": "os.rename(sys.executable, '/tmp/python')",
    "make writable": "os.chmod(os.__file__, 0o777)",
    "make a device": "call(133, -1, b'/tmp/device', 0o60600, 0x800)",
    "open a disk or the memory": "[os.open(d, 0) for d in ('/dev/vda', '/dev/sda', '/dev/mem', '/dev/kmsg', '/dev/fuse', '/dev/kvm')]",
    # other processes
    "kill a process outside": "os.kill(VICTIM, 9)",
    "kill the keeper": "os.getppid() == 1 and (os.kill(1, 9) or os.kill(1, 0))",
    "stop the keeper": "os.kill(os.getppid(), 19) and False",
    "kill everybody": "os.getppid() == 1 and os.kill(-1, 15) and False",  # the first term keeps the machine safe, were there a hole
    "trace the keeper": "call(101, 117, 16, os.getppid(), 0, 0)",
    "read the keeper's memory": "call(310, 270, os.getppid(), 0, 0, 0, 0, 0)",
    "write into the keeper's memory": "call(311, 271, os.getppid(), 0, 0, 0, 0, 0)",
    "take a descriptor of the keeper": "call(438, 438, os.pidfd_open(1), 1, 0)",
    "compare processes": "call(312, 272, 1, 1, 0, 0, 0)",
    "change the keeper's limits": "__import__('resource').prlimit(1, 7, (0, 0)) and False",
    # /proc and /sys
    "read the environment of process 1": "open('/proc/1/environ').read()",
    "read its own memory": "open('/proc/self/mem', 'rb')",
    "write a setting of the kernel": "open('/proc/sys/kernel/core_pattern', 'w')",
    "list /sys": "os.listdir('/sys')",
    "find inherited descriptors": "[fd for fd in range(4, 1024) if not os.fstat(fd)] or DESCRIPTORS()",
    "find an environment variable": "set(os.environ) - {'HOME', 'TMPDIR', 'LANG', 'PYTHONHASHSEED', 'PWD', 'LC_CTYPE'}",
    # privileges and namespaces
    "become root": "os.setuid(0) or os.getuid() == 0",
    "be root already": "0 in os.getresuid() + os.getresgid() or os.getgroups()",
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
    "raise the limit on memory": "__import__('resource').setrlimit(9, (2**30, 2**30)) or True",
    "raise the limit on processor time": "__import__('resource').setrlimit(0, (100, 100)) or True",
    # ways to start something else
    "start a shell": "[os.execv(shell, ['sh', '-c', 'echo through']) for shell in ('/bin/sh', '/usr/bin/sh', '/bin/bash')]",
    "type into the terminal": "__import__('fcntl').ioctl(0, 0x5412, b'x')",
    # our own code
    "import the grader": "[n for n in ('envs', 'siirl', 'gymnasium', 'pip') if __import__('importlib.util').util.find_spec(n)]",
}


@pytest.fixture(scope="module")
def outside(tmp_path_factory, repository):
    """Things that a program must not reach: a server, a file, a process."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server.settimeout(0.05)
        folder = tmp_path_factory.mktemp("outside")
        os.chmod(folder, 0o755)
        (folder / "secret").write_text("secret")
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(str(folder / "socket"))
        unix.listen()
        os.chmod(folder / "socket", 0o777)
        victim = stack.enter_context(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        stack.callback(victim.kill)
        names = {
            "PORT": server.getsockname()[1],
            "UNIX_SOCKET": str(folder / "socket"),
            "SECRET": str(folder / "secret"),
            "CHECKOUT": str(repository),
            "VICTIM": victim.pid,
            "PREFIX": sys.base_prefix,
            "PACKAGES": [path for path in (*sys.path, f"{sys.base_prefix}/lib/python3.11/site-packages") if path.endswith("-packages")],
        }
        yield names, server, victim


def attempt(code, names):
    """A program that makes an attempt and says what became of it."""
    given = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    return f"""{PRELUDE}{given}
def DESCRIPTORS():
    found = []
    for descriptor in range(4, 1024):
        try:
            os.fstat(descriptor)
            found.append(descriptor)
        except OSError:
            pass
    return found

try:
    through = {code}
except (OSError, ImportError, MemoryError, ValueError) as error:
    through = False
print("through" if through not in (False, 0, None, set(), [], ()) else "held", flush=True)
"""


@pytest.mark.parametrize("name", ESCAPES)
def test_attempt_to_get_out_is_held(small, seven, outside, name):
    names, server, victim = outside
    (execution,) = executions(small, attempt(ESCAPES[name], names))
    assert (execution.output, execution.exit_status) == (b"held\n", 0), execution
    with pytest.raises(TimeoutError):
        server.accept()
    assert victim.poll() is None
    assert verdict(small, seven, RIGHT).success  # the service goes on


def test_call_of_another_architecture_is_killed(small):
    """x86-64 kernels number their calls a second time (x32)."""
    if os.uname().machine != "x86_64":
        pytest.skip("only x86-64 has a second numbering")
    (execution,) = executions(small, PRELUDE + "call(0x40000000 + 39, 0)\nprint('through')")
    assert (execution.output, execution.exit_status) == (b"", -31)  # SIGSYS


def test_calls_of_32_bit_programs_are_killed(small):
    """`int 0x80` enters the kernel with i386's numbers, which a filter by number would take for others."""
    if os.uname().machine != "x86_64":
        pytest.skip("only x86-64 has this way in")
    code = "code = bytes([0x6A, 20, 0x58, 0xCD, 0x80, 0xC3])\n"  # push 20 (getpid); pop rax; int 0x80; ret
    code += "import mmap\nmemory = mmap.mmap(-1, 4096, prot=7)\nmemory.write(code)\n"
    code += "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()\nprint('through')"
    (execution,) = executions(small, PRELUDE + code)
    assert (execution.output, execution.exit_status) == (b"", -31)


def test_nothing_is_left_behind():
    assert sandboxed_processes() == set()
