"""Finds the videos and text rollouts added to a run folder since the last check.

Left out: rollouts of simulators, which have no text; their videos show them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from siirl.reporting.recorder import VIDEOS_FOLDER, read_index
from siirl.reporting.rollout_files import KINDS, ROLLOUTS_FOLDER, read_rollouts, steps_of
from siirl.reporting.rollout_groups import messages
from siirl.reporting.rollout_view import chat, question
from siirl.reporting.statistics import evaluations, mean_scores
from siirl.reporting.writer_contract import Cell, Table, Video

MOST_ROLLOUTS = 64
"""Rows of one table; rollouts/ has all rows that `trainer.save_rollouts` keeps."""
ROLLOUT_COLUMNS = ("step", "task", "prompt", "answer", "reward", "success", "truncated")
SUCCESS_COLUMNS = ("task", "when", "successes", "episodes", "rate", "low", "high")
REWARD_COLUMNS = ("task", "when", "episodes", "mean", "low", "high")


class NewRecordings:
    """The recordings of one running job.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.videos_folder = folder / VIDEOS_FOLDER
        self.rollouts_folder = folder / ROLLOUTS_FOLDER
        self._seen_videos: set[str] = set()
        self._rows_seen: dict[tuple[str, int], int] = {}

    def videos(self) -> list[Video]:
        """New videos, by step."""
        rows = [
            row for row in read_index(self.videos_folder) if row["video"] not in self._seen_videos
        ]
        self._seen_videos |= {row["video"] for row in rows}
        return [
            Video(
                file=self.videos_folder / row["video"],
                kind=row["kind"],
                caption=_caption(row),
                frames=row["frames"],
            )
            for row in rows
        ]

    def rollouts(self) -> dict[str, Table]:
        """New text rollouts by kind, `train` or `val`, at most `MOST_ROLLOUTS` each; no key
        without any.
        """
        found = {kind: self._new_rows(kind)[:MOST_ROLLOUTS] for kind in KINDS}
        return {
            kind: Table(ROLLOUT_COLUMNS, [_cells(row) for row in rows])
            for kind, rows in found.items()
            if rows
        }

    def _new_rows(self, kind: str) -> list[dict[str, Any]]:
        """New rows with text in the last two files of a kind, which may be growing."""
        new = []
        for step in steps_of(self.rollouts_folder, kind=kind)[-2:]:
            rows = list(read_rollouts(self.rollouts_folder, kind=kind, step=step))
            new += rows[self._rows_seen.get((kind, step), 0) :]
            self._rows_seen[kind, step] = len(rows)
        return [row for row in new if chat(row)]


def _caption(row: Mapping[str, Any]) -> str:
    reward = "" if row["reward"] is None else f", reward {row['reward']:.3g}"
    return f"{row['task']}: {row['outcome']}{reward}, step {row['step']}, seed {row['seed']}"


def _cells(row: Mapping[str, Any]) -> list[Cell]:
    answer = "\n".join(
        text if role == "assistant" else f"[{role}] {text}" for role, text in messages(row)
    )
    return [
        *(row["step"], row["task"], question(row), answer),
        *(row["reward"], row["success"], row["truncated"]),
    ]


def final_tables(evaluated: Sequence[Mapping[str, Any]]) -> dict[str, Table]:
    """The first and the last evaluation on the same held-out episodes, with 95 % intervals.

    Args:
        evaluated: Metrics of each evaluation.

    Returns:
        `final/success` if the environment reports success, `final/reward` if a reward scores the
        episodes; a single evaluation is `after`.
    """
    ends = {"before": evaluated[0]} if len(evaluated) > 1 else {}
    if evaluated:
        ends["after"] = evaluated[-1]
    success: list[list[Cell]] = []
    reward: list[list[Cell]] = []
    for when, metrics in ends.items():
        for task, one in evaluations(metrics).items():
            success.append([task, when, one.successes, one.episodes, one.rate, one.low, one.high])
        for task, mean in mean_scores(metrics).items():
            reward.append([task, when, mean.episodes, mean.mean, mean.low, mean.high])
    tables = {
        "final/success": Table(SUCCESS_COLUMNS, success),
        "final/reward": Table(REWARD_COLUMNS, reward),
    }
    return {name: table for name, table in tables.items() if table.rows}
