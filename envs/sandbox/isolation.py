"""Isolation of a program: bubblewrap, or none if requested by name.

The inside has only the interpreter with its standard library and the system's shared libraries
(read-only), the requested packages, a private /tmp, and four harmless devices. It has no /proc,
/sys, /etc, shell or network. The program is an unprivileged user in its own namespaces (user,
process, network, ipc, mount, host name, control group). It has no capabilities, and may make only
the system calls of `seccomp`.

A service that runs as root starts bubblewrap as the user `nobody`. Process limits do not bind root,
and root-only files stay closed even if a wall fails. If `nobody` cannot reach the interpreter
(below /root), a private mount namespace binds it to a reachable path. A user namespace with a
single user (`unshare -Ur`, some containers) has no `nobody`. Then bubblewrap runs as that user, as
it does for an unprivileged one, and `local` watches the number of processes.
"""

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Protocol

from envs.sandbox.limits import Limits
from envs.sandbox.seccomp import syscall_filter

NOBODY = 65534  # the kernel's overflow user and group id; owns nothing
DEVICES = ("null", "zero", "random", "urandom")
ENVIRONMENT = {
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
}  # the same order of sets in every run
# No site packages, user site or script folder on the path; no bytecode written; text is UTF-8.
INTERPRETER_FLAGS = ("-S", "-s", "-P", "-B", "-X", "utf8")
# covered in our mount namespace; no bind source lies there, and bubblewrap does not need it
STAGE = "/sys"
STAGING = """
folder=$1; shift
mount -t tmpfs -o size=64k,mode=755 none "$folder"
number=0
for source in "$@"; do
    if [ -d "$source" ]; then mkdir "$folder/$number"; else : > "$folder/$number"; fi
    mount --bind "$source" "$folder/$number"
    number=$((number + 1))
done
echo ready
read -r _ || :
"""  # ends when its input ends


class Launch(NamedTuple):
    """Command that starts an isolated interpreter."""

    command: list[str]
    """Program and arguments; the interpreter's arguments follow."""
    environment: dict[str, str]
    descriptors: tuple[int, ...]
    """File descriptors that it inherits."""
    folder: str
    """Its working folder."""


class Isolation(Protocol):
    """A way to start an interpreter."""

    def launch(self) -> contextlib.AbstractContextManager[Launch]:
        """Return the command to start; the context must outlive it."""


class NoIsolation:
    """The program has this process's user, files and network. For trusted programs only."""

    @contextlib.contextmanager
    def launch(self) -> Iterator[Launch]:
        """See `Isolation.launch`."""
        with tempfile.TemporaryDirectory(
            prefix="siirl-program-", ignore_cleanup_errors=True
        ) as folder:
            environment = {**ENVIRONMENT, "HOME": folder, "TMPDIR": folder}
            yield Launch([str(_interpreter()), *INTERPRETER_FLAGS], environment, (), folder)


class Bubblewrap:
    """Isolation by bubblewrap on this machine.

    Args:
        limits: Size of /tmp; the supervisor inside sets the other limits.
        packages: Top-level packages that programs may import, such as `numpy`; only these are
            bound, read-only.

    Raises:
        RuntimeError: Bubblewrap is not installed, or this machine lacks what it needs.
        ValueError: A package that is not installed.
    """

    def __init__(self, limits: Limits, packages: Sequence[str] = ()) -> None:
        bubblewrap = shutil.which("bwrap")
        if bubblewrap is None:
            raise RuntimeError("Bubblewrap (bwrap) is not installed.")
        self._filter = syscall_filter()
        sources = {path: path for path in (*_system_folders(), *_interpreter_files())}
        sources |= {path: Path("/packages") / path.name for path in _package_files(packages)}
        self._environment = ENVIRONMENT | ({"PYTHONPATH": "/packages"} if packages else {})
        enter, places = [], {path: str(path) for path in sources}
        if os.geteuid() == 0 and _has_nobody():
            stage = _staged(tuple(map(str, sources)))
            enter = stage.enter
            places = {path: stage.place(number) for number, path in enumerate(sources)}
        binds: list[str] = []
        for path, inside in sources.items():
            binds += ["--ro-bind", places[path], str(inside)]
        self._command = [*enter, bubblewrap, *_walls(binds, limits)]

    @contextlib.contextmanager
    def launch(self) -> Iterator[Launch]:
        """See `Isolation.launch`."""
        # bwrap reads the filter to its end, so each launch needs one; it fits into a pipe
        reading, writing = os.pipe()
        try:
            os.write(writing, self._filter)
        finally:
            os.close(writing)
        try:
            command = [
                *self._command,
                "--seccomp",
                str(reading),
                "--",
                str(_interpreter()),
                *INTERPRETER_FLAGS,
            ]
            yield Launch(command, self._environment, (reading,), "/")
        finally:
            os.close(reading)


def _walls(binds: Sequence[str], limits: Limits) -> list[str]:
    """Bubblewrap's options, in the order of application."""
    options = [
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--uid",
        str(NOBODY),
        "--gid",
        str(NOBODY),
        "--cap-drop",
        "ALL",
    ]
    options += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--as-pid-1"]
    options += binds
    for link in (
        "lib",
        "lib64",
        "lib32",
    ):
        # the loader's name is /lib64/…, but most systems store it below /usr
        path = Path("/") / link
        if path.is_symlink():
            options += ["--symlink", os.readlink(path), str(path)]
    for folder in _package_folders():
        options += ["--tmpfs", str(folder), "--remount-ro", str(folder)]
    for device in DEVICES:
        options += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    return [
        *options,
        "--size",
        str(limits.tmp_bytes),
        "--tmpfs",
        "/tmp",
        "--remount-ro",
        "/",
        "--chdir",
        "/tmp",
    ]


def _has_nobody() -> bool:
    """Whether this user namespace maps the user and group nobody, and root may become them."""
    maps = [Path(f"/proc/self/{name}").read_text() for name in ("uid_map", "gid_map")]
    may_leave_groups = Path("/proc/self/setgroups").read_text().strip() == "allow"
    return may_leave_groups and all(map(_maps_nobody, maps))


def _maps_nobody(id_map: str) -> bool:
    # first inside, first outside, count
    ranges = [map(int, line.split()) for line in id_map.splitlines()]
    return any(first <= NOBODY < first + count for first, _, count in ranges)


def _interpreter() -> Path:
    """The executable behind a virtual environment's link."""
    return Path(os.path.realpath(sys.executable))


def _system_folders() -> list[Path]:
    """Folders of shared libraries, without links."""
    candidates = (Path(root) / name for root in ("/usr", "/") for name in ("lib", "lib64", "lib32"))
    return [path for path in candidates if path.is_dir() and not path.is_symlink()]


def _interpreter_files() -> list[Path]:
    """Executable, standard library and any libpython, except those in system folders."""
    paths = [_interpreter(), *_standard_library()]
    library = Path(sysconfig.get_config_var("LIBDIR") or "/") / (
        sysconfig.get_config_var("INSTSONAME") or "none"
    )
    paths += [library] if library.suffix != ".a" and library.is_file() else []
    system = _system_folders()
    return [
        path
        for path in dict.fromkeys(paths)
        if not any(path.is_relative_to(folder) for folder in system)
    ]


def _standard_library() -> list[Path]:
    """Its folders in the base installation; `sysconfig` would default to the virtual
    environment.
    """
    base = {
        "installed_base": sys.base_prefix,
        "platbase": sys.base_exec_prefix,
        "installed_platbase": sys.base_exec_prefix,
    }
    return [
        Path(os.path.realpath(sysconfig.get_path(name, vars=base)))
        for name in ("stdlib", "platstdlib")
    ]


def _package_folders() -> list[Path]:
    """Folders of installed packages within the binds; covered, because they may hold our own."""
    inside = [*_system_folders(), *_interpreter_files()]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = _standard_library()[0].parent
    candidates = [library / version / name for name in ("site-packages", "dist-packages")] + [
        library / "python3" / "dist-packages"
    ]
    candidates += [folder / version / "site-packages" for folder in _system_folders()]
    return [
        path
        for path in dict.fromkeys(candidates)
        if path.is_dir() and any(path.is_relative_to(folder) for folder in inside)
    ]


def _package_files(packages: Sequence[str]) -> list[Path]:
    """Folder or file of each package, and the shared libraries of its wheel."""
    found = []
    for name in packages:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise ValueError(
                f"Package {name!r} (env.kwargs.packages) is not installed for this interpreter."
            )
        origin = Path(spec.origin)
        path = origin.parent if origin.name == "__init__.py" else origin
        libraries = path.with_name(f"{path.name}.libs")
        found += [path, *([libraries] if libraries.is_dir() else [])]
    return found


class _Stage:
    """A private mount namespace in which any user can reach `sources`."""

    def __init__(self, sources: Sequence[str]) -> None:
        command = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-euc",
            STAGING,
            "sh",
            STAGE,
            *sources,
        ]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as holder:
            assert holder.stdout is not None and holder.stderr is not None
            if holder.stdout.readline() != "ready\n":
                raise RuntimeError(
                    f"A mount namespace could not be made: {holder.stderr.read().strip()}."
                )
            # keeps the namespace after the process has ended
            namespace = os.open(f"/proc/{holder.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        # The path has our process id, because an inherited descriptor would be open in the sandbox.
        name = f"/proc/{os.getpid()}/fd/{namespace}"
        self.enter = [
            "nsenter",
            f"--mount={name}",
            f"--setuid={NOBODY}",
            f"--setgid={NOBODY}",
            "--",
        ]

    def place(self, number: int) -> str:
        """Path of source `number`."""
        return f"{STAGE}/{number}"


@functools.cache
def _staged(sources: tuple[str, ...]) -> _Stage:
    """Returns the shared stage of `sources`, which ends with this process."""
    return _Stage(sources)
