"""Processes of this machine from /proc: state, session and parent of each.

A run's processes share a session of the operating system, so that processes whose parent has died
are found too.
"""

from collections.abc import Collection
from pathlib import Path

# After the command was killed, Ray 2.60's two agents wait 60 s for a word of the GCS that died with
# it (publish_error_to_driver in ray/_private/utils.py), 2 s after they found the raylet gone; 62 s
# were measured. They hold no simulator and no port that a run needs.
RAY_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


def living_processes() -> list[tuple[int, str]]:
    """Number and title of every process of this machine that is no zombie.

    A process without a title is left out: the kernel has released its memory at its end, or has not
    yet filled it at its start.
    """
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            state = _after_name(folder)[0]
            title = (
                (folder / "cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode(errors="replace")
                .strip()
            )
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if state != "Z" and title:
            found.append((int(folder.name), title))
    return found


def processes_of_session(session: int) -> dict[int, str]:
    """Title by number of every living process of a session."""
    return {pid: title for pid, title in living_processes() if _entry_of(pid, 3) == session}


def descendants_of(pids: Collection[int]) -> set[int]:
    """Numbers of the living processes that these have started, or that those have started."""
    parents = {pid: _entry_of(pid, 1) for pid, _ in living_processes()}
    found: set[int] = set()
    while new := {pid for pid, parent in parents.items() if parent in {*pids, *found}} - found:
        found |= new
    return found


def _entry_of(pid: int, entry: int) -> int | None:
    try:
        return int(_after_name(Path(f"/proc/{pid}"))[entry])
    except (FileNotFoundError, ProcessLookupError):
        return None


def _after_name(folder: Path) -> list[str]:
    """Fields of /proc/<pid>/stat behind the name, which may hold anything: state, parent, group,
    session, ...
    """
    return (folder / "stat").read_text().rpartition(")")[2].split()
