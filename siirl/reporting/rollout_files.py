"""Writes rollouts as JSON lines: prompt, turns with tokens and log-probs, verdict, reward.

    # of rank 0; those of rank 1 are in step_000012_rank1.jsonl
    rollouts/train/step_000012.jsonl
    rollouts/val/step_000010.jsonl

There is one file per step, so that a step is found without reading the others, and a repeated step
replaces its file. `read_rollouts` is for reports. Advantages are left out: they belong to the
update, which may see a rollout several times or not at all.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from siirl.engine.rollout.workflow import Trajectory
from siirl.errors import SiirlError
from siirl.reporting.jsonl import JsonlFile, read_rows
from siirl.reporting.rollout_rows import fault_of_rollout

ROLLOUTS_FOLDER = "rollouts"
ALL = -1
KINDS = ("train", "val")
SCALARS = {
    "uid": "uid",
    "task": "task_name",
    "group": "index",
    "seed": "seed",
    "policy_version": "policy_version",
    "turns_taken": "finish_step",
    "success": "complete",
    "truncated": "truncated",
    "env_return": "env_return",
}
"""Entries of a line, and the columns of the row from which they are read."""
OF_A_GRADE = ("success", "env_return")
"""Entries that are null for an ungraded rollout."""
_NAME = re.compile(r"step_(\d+)(?:_rank(\d+))?\.jsonl")


class RolloutFiles:
    """Writes the rollouts of a rank; a Recorder.

    Args:
        folder: The run's folder of rollouts; created if missing.
        count: Rollouts of a step, and of an evaluation, over all ranks; `ALL` writes every one.
            They are the first in the order of the requests, hence whole groups.
        rank: Number of this rank.
        num_ranks: Number of ranks that share them.
        first_step: First step of this process; files of this and later steps from an earlier run
            are removed.
    """

    def __init__(
        self, folder: Path, *, count: int, rank: int = 0, num_ranks: int = 1, first_step: int = 0
    ) -> None:
        self.folder, self.rank = folder, rank
        self.count = None if count == ALL else count // num_ranks + (rank < count % num_ranks)
        self.waiting: list[tuple[Trajectory, str, int]] = []
        self._kept: Counter[tuple[str, int]] = Counter()
        self._file: JsonlFile | None = None
        if rank == 0:  # for all ranks: an earlier run may have had more
            for _, step, file in _files(folder):
                if step >= first_step:
                    file.unlink(missing_ok=True)

    def keep(self, trajectories: Sequence[Trajectory], *, kind: str, step: int) -> None:
        """Keep the first rollouts of a step until their reward is known; `kind` is `train` or
        `val`.
        """
        free = (
            len(trajectories) if self.count is None else max(0, self.count - self._kept[kind, step])
        )
        chosen = trajectories[:free]
        self._kept[kind, step] += len(chosen)
        self.waiting += [(trajectory, kind, step) for trajectory in chosen]

    def write(self, rewards: Mapping[str, float]) -> None:
        """Write the kept rollouts with their rewards by uid; filtered rollouts have none.

        Raises:
            SiirlError: A file cannot be written.
        """
        waiting, self.waiting = self.waiting, []
        for trajectory, kind, step in waiting:
            line = line_of(
                trajectory, kind=kind, step=step, reward=rewards.get(trajectory.row["uid"])
            )
            try:
                self._open(kind, step).append(line)
            except OSError as error:
                raise SiirlError(
                    f"Rollouts could not be written to {self.folder}: {error}. Free some space, "
                    "or write none: trainer.save_rollouts=0."
                ) from error

    def close(self) -> None:
        """Write remaining rollouts and close the file; may be called twice."""
        self.write({})
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, kind: str, step: int) -> JsonlFile:
        path = (
            self.folder / kind / f"step_{step:06d}{f'_rank{self.rank}' if self.rank else ''}.jsonl"
        )
        if self._file is None or self._file.path != path:
            if self._file is not None:
                self._file.close()
            path.parent.mkdir(parents=True, exist_ok=True)
            # continues a step's file after an interruption by an evaluation
            self._file = JsonlFile(path, first_step=step + 1)
        return self._file


def line_of(
    trajectory: Trajectory, *, kind: str, step: int, reward: float | None
) -> dict[str, Any]:
    """A rollout as a JSON row."""
    row = trajectory.row
    scalars = {name: row[column] for name, column in SCALARS.items()}
    if not row.get("graded", True):
        scalars |= dict.fromkeys(OF_A_GRADE)
    return {"step": step, "kind": kind, **scalars, "reward": reward, **trajectory.record}


def read_rollouts(
    folder: Path, *, kind: str | None = None, step: int | None = None, failures_only: bool = False
) -> Iterator[dict[str, Any]]:
    """Rollouts below `folder`, ordered by step, training before evaluation, rank 0 first.

    Args:
        folder: A run's folder of rollouts.
        kind: `train` or `val`; None: both.
        step: Number of a step; None: all steps.
        failures_only: Only rollouts without success.

    Raises:
        ValueError: A row lacks an entry or has one of another type, with file, number and remedy.
    """
    found = [
        (number, KINDS.index(of_kind), file)
        for of_kind, number, file in _files(folder)
        if kind in (None, of_kind)
    ]
    for number, _, file in sorted(found):
        if step in (None, number):
            yield from (
                row for row in _checked(file) if not failures_only or row["success"] is False
            )


def _checked(file: Path) -> Iterator[dict[str, Any]]:
    """Rows of a file; ValueError for one that no report can show."""
    for number, row in enumerate(read_rows(file), start=1):
        fault = fault_of_rollout(row)
        if fault is not None:
            raise ValueError(f"{file}, rollout {number}, {fault}. Correct or delete that line.")
        yield row


def steps_of(folder: Path, *, kind: str | None = None) -> list[int]:
    """Steps with rollouts (of one kind: `train` or `val`), ascending."""
    return sorted({step for of_kind, step, _ in _files(folder) if kind in (None, of_kind)})


def _files(folder: Path) -> list[tuple[str, int, Path]]:
    """Kind, step and path of every file of rollouts."""
    files = []
    for kind in KINDS:
        for file in (folder / kind).glob("*.jsonl"):
            match = _NAME.fullmatch(file.name)
            if match:
                files.append((kind, int(match[1]), file))
    return files
