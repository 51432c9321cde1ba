"""The faults of `benchmarks.fault_fuzz`: how a running job is disturbed, and the exit statuses that
are then right.

Finishing as if nothing had happened is always right. A fault that must not end a run allows no
other status.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fault_jobs import Command

KILLED, FAILED, REFUSED = -signal.SIGKILL, 1, 2
DRIVER = ""
RANK, SERVER, RAYLET, GCS = "ray::_Rank", "ray::EnvServerActor", "raylet/raylet ", "gcs/gcs_server "
ROLLOUT_RANK = "ray::_ReplaceableRank"
LOCAL_OR_RAY, ON_RAY = ("local", "ray"), ("ray",)
MEGABYTE, BLOCK = 1 << 20, 4096
LOOK_EVERY_S = 0.002


class CannotBeMade(Exception):
    """This machine does not let this fault be made, for example because mounting needs root."""


@contextmanager
def plain_folder(folder: Path) -> Iterator[Path]:
    """Results on the disk that is there."""
    yield folder


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Results on a disk of 256 MB in memory, more than the plan asks for."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        raise CannotBeMade("mounting a tmpfs needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@dataclass(frozen=True)
class Moment:
    """Time of a fault."""

    seconds: float
    """After the command was started, at the earliest."""
    rng: random.Random

    def wait(self, run: Command) -> None:
        """Until it has come, or the run has ended."""
        while run.running and time.monotonic() - run.begun < self.seconds:
            time.sleep(LOOK_EVERY_S)


Strike = Callable[[Command, Path, Moment], None]
"""Does something to a run with results below a folder, at a moment."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    strike: Strike
    statuses: frozenset[int]
    """With which the command may end beside 0."""
    clusters: Sequence[str] = LOCAL_OR_RAY
    least_ranks: int = 1
    separate: bool = False
    """Whether the job's rollouts and its training have separate ranks."""
    words: tuple[str, ...] = ()
    """Further words of the job's command line."""
    disk: Callable[[Path], AbstractContextManager[Path]] = plain_folder
    mend: Callable[[Path], None] = field(default=lambda outputs: None)
    """Action before the run is resumed, such as to free the disk."""
    damage: Callable[[Path, random.Random], None] | None = None
    """What becomes of the newest checkpoint before the run is resumed; the resumed run may refuse
    it.
    """
    read_only: bool = False
    """Whether the run's folder can only be read when the run is resumed."""


def send(number: int, title: str = DRIVER, *, again_after_s: float | None = None) -> Strike:
    """A signal to the command itself, or to one of its processes with `title`, as soon as one is
    there; perhaps a second time.
    """

    def strike(run: Command, outputs: Path, moment: Moment) -> None:
        moment.wait(run)
        pids: list[int] = []
        while run.running and not pids:
            pids = run.find(title) if title else [run.process.pid]
        for pause in (0.0, *(() if again_after_s is None else (again_after_s,))):
            time.sleep(pause)
            if pids and run.running:
                with suppress(ProcessLookupError):
                    os.kill(moment.rng.choice(pids), number)

    return strike


def interrupt_terminal(run: Command, outputs: Path, moment: Moment) -> None:
    """Ctrl-C in a terminal: every process of the foreground group hears it."""
    moment.wait(run)
    if run.running:
        os.killpg(run.process.pid, signal.SIGINT)


def pause_driver(run: Command, outputs: Path, moment: Moment) -> None:
    """Ctrl-Z and fg."""
    moment.wait(run)
    if run.running:
        run.process.send_signal(signal.SIGSTOP)
        time.sleep(moment.rng.uniform(1, 4))
        run.process.send_signal(signal.SIGCONT)


def kill_at_birth(run: Command, outputs: Path, moment: Moment) -> None:
    """One of the ranks, when the first of them is there: they have not met yet."""
    while run.running:
        ranks = run.find(RANK)
        if ranks:
            time.sleep(moment.rng.uniform(0, 1))
            with suppress(ProcessLookupError):
                os.kill(moment.rng.choice(ranks), signal.SIGKILL)
            return


def kill_while_writing(run: Command, outputs: Path, moment: Moment) -> None:
    """The process that writes checkpoints, during a write."""
    moment.wait(run)
    ranks = run.find(
        RANK
    )  # before there is something to be seen: looking takes longer than writing
    while run.running and not any(outputs.glob("*/*/checkpoints/.unfinished-*")):
        ranks = ranks or run.find(RANK)
    for pid in ranks or [run.process.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_after_two_checkpoints(run: Command, outputs: Path, moment: Moment) -> None:
    """The command, when there is a checkpoint before the newest."""
    while run.running and len(checkpoints_below(outputs)) < 2:
        time.sleep(LOOK_EVERY_S)
    if run.running:
        run.process.kill()


def fill_disk(run: Command, outputs: Path, moment: Moment) -> None:
    """Until the run ends: when it writes a checkpoint, it may make room by deleting its oldest."""
    moment.wait(run)
    leave = moment.rng.choice([0, 10 * BLOCK, MEGABYTE])
    while run.running:
        with suppress(OSError), (outputs / "filler").open("ab", buffering=0) as stream:
            while (free := shutil.disk_usage(outputs).free) > leave + BLOCK:
                stream.write(b"\0" * min(MEGABYTE, (free - leave) // BLOCK * BLOCK))
        time.sleep(0.05)


def free_disk(outputs: Path) -> None:
    """The opposite of `fill_disk`."""
    (outputs / "filler").unlink(missing_ok=True)


def checkpoints_below(outputs: Path) -> list[Path]:
    """Checkpoints that have their names, of all runs, the newest last."""
    return sorted(outputs.glob("*/*/checkpoints/step_*"), key=lambda folder: folder.name)


def truncate(outputs: Path, rng: random.Random) -> None:
    """Cut off one file of the newest checkpoint, or the pointer to it."""
    file = _one_file(outputs, rng)
    os.truncate(file, rng.randrange(file.stat().st_size))


def overwrite(outputs: Path, rng: random.Random) -> None:
    """Change bytes in one file of the newest checkpoint, or in the pointer to it."""
    file = _one_file(outputs, rng)
    content = bytearray(file.read_bytes())
    begin = rng.randrange(len(content))
    content[begin : begin + 16] = rng.randbytes(len(content[begin : begin + 16]))
    file.write_bytes(content)


def _one_file(outputs: Path, rng: random.Random) -> Path:
    newest = checkpoints_below(outputs)[-1]
    return rng.choice(
        sorted([*(path for path in newest.rglob("*") if path.is_file()), newest.parent / "latest"])
    )


FAULTS: dict[str, Fault] = {
    "driver killed": Fault(send(signal.SIGKILL), frozenset({KILLED})),
    "driver stopped for a while": Fault(pause_driver, frozenset()),
    "rank killed": Fault(send(signal.SIGKILL, RANK), frozenset({FAILED}), ON_RAY),
    "rank killed before ranks meet": Fault(
        kill_at_birth, frozenset({FAILED}), ON_RAY, least_ranks=2
    ),
    "rollout rank of a group killed": Fault(
        send(signal.SIGKILL, ROLLOUT_RANK), frozenset(), ON_RAY, least_ranks=2, separate=True
    ),
    "training rank of a group killed": Fault(
        send(signal.SIGKILL, RANK), frozenset({FAILED}), ON_RAY, least_ranks=2, separate=True
    ),
    "rank stopped": Fault(
        send(signal.SIGSTOP, RANK), frozenset({FAILED}), ON_RAY, words=("trainer.hang_minutes=0.3",)
    ),
    "server killed": Fault(send(signal.SIGKILL, SERVER), frozenset({FAILED}), ON_RAY),
    "server stopped": Fault(
        send(signal.SIGSTOP, SERVER), frozenset({FAILED}), ON_RAY, words=("env.deadline_s=15",)
    ),
    "raylet killed": Fault(send(signal.SIGKILL, RAYLET), frozenset({FAILED}), ON_RAY),
    "raylet stopped": Fault(send(signal.SIGSTOP, RAYLET), frozenset({FAILED}), ON_RAY),
    "GCS killed": Fault(send(signal.SIGKILL, GCS), frozenset({FAILED}), ON_RAY),
    "SIGINT": Fault(send(signal.SIGINT), frozenset({128 + signal.SIGINT})),
    "SIGINT twice": Fault(send(signal.SIGINT, again_after_s=0.3), frozenset({128 + signal.SIGINT})),
    "Ctrl-C in a terminal": Fault(interrupt_terminal, frozenset({128 + signal.SIGINT})),
    "SIGTERM": Fault(send(signal.SIGTERM), frozenset({128 + signal.SIGTERM})),
    "SIGHUP": Fault(send(signal.SIGHUP), frozenset({128 + signal.SIGHUP})),
    "disk full": Fault(fill_disk, frozenset({FAILED, REFUSED}), disk=small_disk, mend=free_disk),
    "killed while writing": Fault(kill_while_writing, frozenset({KILLED, FAILED})),
    "checkpoint truncated": Fault(kill_after_two_checkpoints, frozenset({KILLED}), damage=truncate),
    "checkpoint damaged": Fault(kill_after_two_checkpoints, frozenset({KILLED}), damage=overwrite),
    "checkpoint read-only": Fault(kill_after_two_checkpoints, frozenset({KILLED}), read_only=True),
}
