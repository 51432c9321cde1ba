"""The walls around a program: bubblewrap, or, where it is asked for by name, none.

Inside there are: the interpreter with its standard library and the shared libraries of the system,
read-only; a /tmp of its own; four harmless devices; nothing else. No /proc, no /sys, no /etc, no
shell, no network, no installed packages but those that are asked for. The program is an
unprivileged user of its own namespaces (user, process, network, ipc, mount, host name, control
group), without capabilities, and may make the system calls of `seccomp`.

A service that runs as root starts bubblewrap as the user nobody: limits on processes do not bind
root, and files that only root can read stay closed even if a wall fell. An interpreter that nobody
cannot reach (below /root) is bound, in a mount namespace that only we see, to a place that it can.
In a user namespace with a single user (`unshare -Ur`, some containers) there is no nobody:
bubblewrap runs as that user, as it does for an unprivileged one, and `local` watches the number of
processes.
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

NOBODY = 65534  # user and group id that the kernel itself calls overflow id; owns nothing
DEVICES = ("null", "zero", "random", "urandom")
ENVIRONMENT = {
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
}  # sets are in the same order at every run
# Without site packages, user site, the script's folder on the path; nothing written; text is UTF-8.
INTERPRETER_FLAGS = ("-S", "-s", "-P", "-B", "-X", "utf8")
# covered, in a namespace of ours: nothing that is bound can lie there, and bubblewrap does not need
# it
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
"""  # ends when its input does


class Launch(NamedTuple):
    """How to start an interpreter behind a wall."""

    command: list[str]
    """Program and arguments; the interpreter's own follow."""
    environment: dict[str, str]
    descriptors: tuple[int, ...]
    """To be left open for it."""
    folder: str
    """Where it is started."""


class Isolation(Protocol):
    """A way to start an interpreter."""

    def launch(self) -> contextlib.AbstractContextManager[Launch]:
        """What to start; the context ends when that has ended."""


class NoIsolation:
    """The program runs as what we are, may read and write what we may, and reach whom we reach. For
    trusted programs only.
    """

    @contextlib.contextmanager
    def launch(self) -> Iterator[Launch]:
        """See `Isolation.launch`."""
        with tempfile.TemporaryDirectory(
            prefix="siirl-program-", ignore_cleanup_errors=True
        ) as folder:
            environment = {**ENVIRONMENT, "HOME": folder, "TMPDIR": folder}
            yield Launch([str(_interpreter()), *INTERPRETER_FLAGS], environment, (), folder)


class Bubblewrap:
    """The sandbox of this machine.

    Args:
        limits: Size of /tmp; the other limits are set inside.
        packages: Top-level packages that programs may import, such as `numpy`; each is bound
            read-only, and nothing beside it.

    Raises:
        RuntimeError: Bubblewrap is not installed, or what it needs is not to be had here.
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
            enter, places = (
                stage.enter,
                {path: stage.place(number) for number, path in enumerate(sources)},
            )
        binds = [
            option
            for path, inside in sources.items()
            for option in ("--ro-bind", places[path], str(inside))
        ]
        self._command = [*enter, bubblewrap, *_walls(binds, limits)]

    @contextlib.contextmanager
    def launch(self) -> Iterator[Launch]:
        """See `Isolation.launch`."""
        reading, writing = (
            os.pipe()
        )  # bwrap reads a filter to its end, so each needs its own; it fits into a pipe
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
    """Bubblewrap's options, in the order in which it carries them out."""
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
    ):  # the loader's name is /lib64/…, and most systems keep it below /usr
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
    """Whether this process's user namespace maps the user and group nobody, and lets root become
    them.
    """
    maps = [Path(f"/proc/self/{name}").read_text() for name in ("uid_map", "gid_map")]
    may_leave_groups = Path("/proc/self/setgroups").read_text().strip() == "allow"
    return may_leave_groups and all(map(_maps_nobody, maps))


def _maps_nobody(id_map: str) -> bool:
    ranges = [
        map(int, line.split()) for line in id_map.splitlines()
    ]  # first inside, first outside, count
    return any(first <= NOBODY < first + count for first, _, count in ranges)


def _interpreter() -> Path:
    """The executable itself, not a virtual environment's link to it."""
    return Path(os.path.realpath(sys.executable))


def _system_folders() -> list[Path]:
    """Shared libraries, in folders that are no links."""
    candidates = (Path(root) / name for root in ("/usr", "/") for name in ("lib", "lib64", "lib32"))
    return [path for path in candidates if path.is_dir() and not path.is_symlink()]


def _interpreter_files() -> list[Path]:
    """Executable, standard library and, if there is one, libpython; without those that are in
    system folders.
    """
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
    """Its folders; not those of a virtual environment, which `sysconfig` names if it is not told."""
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
    """Folders of installed packages inside of what is bound: they are covered, for our own may be
    there.
    """
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
    """Folder or file of each package, and the shared libraries that its wheel brought along."""
    found = []
    for name in packages:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise ValueError(
                f"Package {name!r} (env.kwargs.packages) is not installed beside this interpreter."
            )
        origin = Path(spec.origin)
        path = origin.parent if origin.name == "__init__.py" else origin
        libraries = path.with_name(f"{path.name}.libs")
        found += [path, *([libraries] if libraries.is_dir() else [])]
    return found


class _Stage:
    """A mount namespace in which everyone can reach `sources`, at a place that only this namespace
    sees.
    """

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
        ) as keeper:
            assert keeper.stdout is not None and keeper.stderr is not None
            if keeper.stdout.readline() != "ready\n":
                raise RuntimeError(
                    f"A mount namespace could not be made: {keeper.stderr.read().strip()}."
                )
            namespace = os.open(
                f"/proc/{keeper.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC
            )  # keeps it when the process has ended
        # By our process id: an inherited descriptor would be open in the sandbox.
        name = f"/proc/{os.getpid()}/fd/{namespace}"
        self.enter = [
            "nsenter",
            f"--mount={name}",
            f"--setuid={NOBODY}",
            f"--setgid={NOBODY}",
            "--",
        ]

    def place(self, number: int) -> str:
        """Where source `number` is."""
        return f"{STAGE}/{number}"


@functools.cache
def _staged(sources: tuple[str, ...]) -> _Stage:
    """One stage for the same sources; it ends with this process."""
    return _Stage(sources)
