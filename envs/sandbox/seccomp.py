"""Seccomp filter for a sandboxed program: hand-written classic BPF for x86-64 and AArch64.

It is an allow list: every other call fails with ENOSYS, as if the kernel lacked it. This excludes
ptrace, the key ring, io_uring, sockets except connected pairs, mounts, namespaces, and calls of
later kernels. It also excludes shared memory and message queues that outlive their process, because
no process limit counts them. Five calls are allowed only for some arguments.

Numbers: the kernel's arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
Format of the filter: the kernel's Documentation/userspace-api/seccomp_filter.rst and struct
sock_filter in linux/filter.h.
"""

import errno
import platform
import struct
from collections.abc import Sequence

ALLOWED_CALLS = (  # name:number on x86-64:number on AArch64, which lacks the older forms
    # files and descriptors
    "read:0:63 write:1:64 close:3:57 open:2:- openat:257:56 creat:85:- readv:19:65 writev:20:66 "
    "pread64:17:67 pwrite64:18:68 preadv:295:69 pwritev:296:70 lseek:8:62 sendfile:40:71 "
    "copy_file_range:326:285 close_range:436:436 dup:32:23 dup2:33:- dup3:292:24 fcntl:72:25 "
    "flock:73:32 pipe:22:- pipe2:293:59 poll:7:- ppoll:271:73 select:23:- pselect6:270:72 "
    "epoll_create:213:- epoll_create1:291:20 epoll_ctl:233:21 epoll_wait:232:- epoll_pwait:281:22 "
    "eventfd:284:- eventfd2:290:19 timerfd_create:283:85 timerfd_settime:286:86 "
    "timerfd_gettime:287:87 "
    # names, attributes and contents of files
    "stat:4:- lstat:6:- fstat:5:80 newfstatat:262:79 statx:332:291 statfs:137:43 fstatfs:138:44 "
    "access:21:- faccessat:269:48 faccessat2:439:439 getdents64:217:61 getcwd:79:17 chdir:80:49 "
    "fchdir:81:50 rename:82:- renameat:264:38 renameat2:316:276 mkdir:83:- mkdirat:258:34 "
    "rmdir:84:- link:86:- linkat:265:37 unlink:87:- unlinkat:263:35 symlink:88:- symlinkat:266:36 "
    "readlink:89:- readlinkat:267:78 chmod:90:- fchmod:91:52 fchmodat:268:53 umask:95:166 "
    "truncate:76:45 ftruncate:77:46 fallocate:285:47 fadvise64:221:223 fsync:74:82 "
    "fdatasync:75:83 utime:132:- utimes:235:- utimensat:280:88 getxattr:191:8 lgetxattr:192:9 "
    "fgetxattr:193:10 listxattr:194:11 llistxattr:195:12 flistxattr:196:13 "
    # a connected pair of sockets, as asyncio makes
    "shutdown:48:210 sendto:44:206 recvfrom:45:207 sendmsg:46:211 recvmsg:47:212 "
    "getsockopt:55:209 getsockname:51:204 getpeername:52:205 "
    # memory
    "mmap:9:222 mprotect:10:226 munmap:11:215 mremap:25:216 madvise:28:233 msync:26:227 "
    "brk:12:214 "
    # processes and threads
    "fork:57:- vfork:58:- execve:59:221 exit:60:93 exit_group:231:94 wait4:61:260 waitid:247:95 "
    "pidfd_open:434:434 futex:202:98 set_tid_address:218:96 set_robust_list:273:99 "
    "get_robust_list:274:100 rseq:334:293 membarrier:324:283 arch_prctl:158:- sched_yield:24:124 "
    "sched_getaffinity:204:123 getcpu:309:168 "
    # signals and timers
    "kill:62:129 tkill:200:130 tgkill:234:131 pause:34:- restart_syscall:219:128 "
    "rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigpending:127:136 "
    "rt_sigtimedwait:128:137 rt_sigsuspend:130:133 sigaltstack:131:132 alarm:37:- "
    "getitimer:36:102 setitimer:38:103 nanosleep:35:101 clock_nanosleep:230:115 "
    # identity, limits and clocks
    "getpid:39:172 gettid:186:178 getppid:110:173 getuid:102:174 getgid:104:176 geteuid:107:175 "
    "getegid:108:177 getresuid:118:148 getresgid:120:150 getgroups:115:158 getpgid:121:155 "
    "setpgid:109:154 getpgrp:111:- getsid:124:156 setsid:112:157 getrlimit:97:163 "
    "setrlimit:160:164 getrusage:98:165 sysinfo:99:179 times:100:153 uname:63:160 "
    "gettimeofday:96:169 clock_gettime:228:113 clock_getres:229:114 time:201:- getrandom:318:278 "
)
CHECKED_CALLS = {
    "clone": (56, 220),
    "socketpair": (53, 199),
    "prctl": (157, 167),
    "ioctl": (16, 29),
    "prlimit64": (302, 261),
}

ARCHITECTURES = {
    "x86_64": (0, 0xC000003E),
    "aarch64": (1, 0xC00000B7),
}  # column above, AUDIT_ARCH_* of linux/audit.h
X32_BIT = 0x40000000  # x86-64 kernels have a second number for each call
NEW_NAMESPACES = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
AF_UNIX = 1
PRCTL_NAMES = (15, 16)  # PR_SET_NAME, PR_GET_NAME, for names of threads
IOCTLS = (
    0x5401,
    0x5413,
    0x541B,
    0x5421,
    0x5450,
    0x5451,
)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX; not TIOCSTI

# struct seccomp_data: nr at 0, arch at 4, then instruction pointer, then six arguments of 8 bytes,
# of which the low half is read
NUMBER = 0
ARCHITECTURE = 4
FIRST_ARGUMENT = 16
SECOND_ARGUMENT = 24
LOAD = 0x20  # BPF_LD|W|ABS
EQUAL = 0x15  # JMP|JEQ|K
AT_LEAST = 0x35  # JMP|JGE|K
ANY_BIT = 0x45  # JMP|JSET|K
RETURN = 0x06  # RET|K
ALLOW, KILL = 0x7FFF0000, 0x80000000  # SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS

# code, instructions to jump over if true, if false, operand
Instruction = tuple[int, int, int, int]


def syscall_filter(machine: str | None = None) -> bytes:
    """Return the filter in the form of `bwrap --seccomp`.

    Args:
        machine: `x86_64` or `aarch64`; this machine's by default.

    Raises:
        RuntimeError: An unsupported machine.
    """
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        raise RuntimeError(
            f"There is no table of system calls for {machine}; known: {', '.join(ARCHITECTURES)}."
        )
    column, architecture = ARCHITECTURES[machine]
    program: list[Instruction] = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
    ]
    if machine == "x86_64":
        program += [(AT_LEAST, 0, 1, X32_BIT), (RETURN, 0, 0, KILL)]
    for number in allowed_numbers(machine).values():
        program += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    checks = {
        "clone": [
            (LOAD, 0, 0, FIRST_ARGUMENT),
            (ANY_BIT, 1, 0, NEW_NAMESPACES),
            (RETURN, 0, 0, ALLOW),
            (RETURN, 0, 0, _refusal(errno.EPERM)),
        ],
        "socketpair": _allow_values(
            (AF_UNIX,), argument=FIRST_ARGUMENT, otherwise=errno.EAFNOSUPPORT
        ),
        "prctl": _allow_values(PRCTL_NAMES, argument=FIRST_ARGUMENT, otherwise=errno.EINVAL),
        # its own limits only
        "prlimit64": _allow_values((0,), argument=FIRST_ARGUMENT, otherwise=errno.EPERM),
        "ioctl": _allow_values(IOCTLS, argument=SECOND_ARGUMENT, otherwise=errno.ENOTTY),
    }
    for name, block in checks.items():
        program += [(EQUAL, 0, len(block), CHECKED_CALLS[name][column]), *block]
    program.append((RETURN, 0, 0, _refusal(errno.ENOSYS)))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def allowed_numbers(machine: str) -> dict[str, int]:
    """Calls allowed with any arguments, with their numbers on `machine`."""
    column, _ = ARCHITECTURES[machine]
    entries = (entry.split(":") for entry in ALLOWED_CALLS.split())
    return {name: int(numbers[column]) for name, *numbers in entries if numbers[column] != "-"}


def _allow_values(values: Sequence[int], *, argument: int, otherwise: int) -> list[Instruction]:
    allowing: list[Instruction] = []
    for value in values:
        allowing += [(EQUAL, 0, 1, value), (RETURN, 0, 0, ALLOW)]
    return [(LOAD, 0, 0, argument), *allowing, (RETURN, 0, 0, _refusal(otherwise))]


def _refusal(error: int) -> int:
    return 0x00050000 | error  # SECCOMP_RET_ERRNO
