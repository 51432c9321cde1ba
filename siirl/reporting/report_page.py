"""report.html of a run: results before and after, curves, episodes, graph, config, glossary.

The page is built from the run folder (metrics.jsonl, videos/, rollouts/, config.yaml, plan.txt,
graph.json, warnings.txt) and can be rebuilt at any time; a running job rewrites it
(`LiveReport`). The page of a running job links the videos that it shows; any other contains them
up to a total size. Left out: comparisons of runs (siirl.reporting.comparison).
"""

import functools
import math
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from siirl.errors import MissingAssetError
from siirl.params.build import as_text
from siirl.reporting.agent_folders import run_of_recordings
from siirl.reporting.before_after import pairs
from siirl.reporting.chart_svg import draw
from siirl.reporting.charts import (
    KINDS_OF_EVALUATION,
    Row,
    meaning_of,
    own_charts,
    run_charts,
    task_charts,
)
from siirl.reporting.config_difference import from_defaults
from siirl.reporting.console import tasks_below_others
from siirl.reporting.earlier_rows import comparable_rows, earlier_rows, other_episodes
from siirl.reporting.embedded_videos import MOST_BYTES, embedded_videos
from siirl.reporting.graph_drawing import draw_graph, read_graph
from siirl.reporting.jsonl import read_rows
from siirl.reporting.metric_writers import METRICS_FILE, ROW_KEYS, WARNINGS_FILE
from siirl.reporting.numbers import number
from siirl.reporting.origin import read_given
from siirl.reporting.page import render_page, write_page
from siirl.reporting.progress import duration
from siirl.reporting.recorder import VIDEOS_FOLDER, read_video_index
from siirl.reporting.rollout_files import ROLLOUTS_FOLDER, read_rollouts, steps_of
from siirl.reporting.rollout_groups import groups, messages
from siirl.reporting.rollout_view import chat, footnote, outcome, question, verdict
from siirl.reporting.run_folder import CONFIG_FILE, PLAN_FILE, require_folder
from siirl.reporting.statistics import all_last, evaluations, mean_scores

REPORT_FILE = "report.html"

LAST_STEP, LARGEST = 2**53, 1e300
"""Bounds of a diagram's values, because JSON integers are unbounded."""
_VIDEOS_SHOWN = 12
_PAIRS_SHOWN = 12
_GROUPS_SHOWN = 16  # only the newest step's; siirl report RUN --rollouts prints all
_WARNINGS_SHOWN = 8
RELOAD_S = 10
"""Seconds between two reloads of the page: about a step of the small jobs."""
_PAUSE = 50
"""Pause after a page, in multiples of the time to make it: 50 limits pages to 2 % of the time."""


class TaskTable(NamedTuple):
    """The first and the last evaluation of every task."""

    actions: str
    first_step: int
    last_step: int
    tasks: Sequence[Sequence[Any]]
    """Per task: name, first and last measurement (empty if missing), and the change."""

    @property
    def repeated(self) -> bool:
        """Whether there is a second evaluation to compare with."""
        return self.last_step > self.first_step


class LastValue(NamedTuple):
    """A metric with its last value."""

    name: str
    step: int
    value: str
    meaning: str


def write_report(folder: Path, *, live_s: int | None = None) -> Path:
    """Write report.html into the run folder and return its path.

    Args:
        folder: The run folder.
        live_s: Seconds after which the page reloads; None for a finished run.

    Raises:
        MissingAssetError: metrics.jsonl is missing or empty: not a run folder, or a run that ended
            before its first step.
        ValueError: A damaged line in metrics.jsonl or in a rollout file.
    """
    rows = read_run(folder)
    whole = with_earlier(rows, folder)
    earlier, changed = comparable_rows(folder, before=_first_step(rows))
    compared = [*map(_numbers, earlier), *rows]
    index = read_video_index(folder / VIDEOS_FOLDER)
    videos, sources = _videos(folder, index.rows, embed=live_s is None)
    given = read_given(folder)
    rollouts = folder / ROLLOUTS_FOLDER
    kind = "train" if steps_of(rollouts, kind="train") else "val"
    steps = steps_of(rollouts, kind=kind)
    contents = {
        "success": _tables(compared, evaluations),
        "rewards": _tables(compared, mean_scores),
        **videos,
        "answer_pairs": pairs(_evaluated(folder), most=_PAIRS_SHOWN),
        "curves": [draw(chart) for chart in run_charts(whole)],
        "own_curves": [draw(chart) for chart in own_charts(whole)],
        "task_curves": [draw(chart) for chart in task_charts(whole)],
        "groups": groups(read_rollouts(rollouts, kind=kind, step=steps[-1]), most=_GROUPS_SHOWN)
        if steps
        else [],
        "graph": draw_graph(read_graph(folder)),
        "differences": from_defaults(folder / CONFIG_FILE, given),
        "chosen_groups": [f"{group}={as_text(option)}" for group, option in given.groups.items()],
    }
    page = render_page(
        "report_page.html",
        filters={
            **_filters(),
            "source": lambda video: sources.get(video["video"]) or _link(video),
        },
        live_s=live_s,
        folder=folder,
        name=folder.resolve().parent.name,
        time=folder.resolve().name,
        written=datetime.now().strftime("%Y-%m-%d %H:%M:%S"),
        length=_length(rows),
        notices=list(dict.fromkeys(row["notice"] for row in rows if "notice" in row)),
        warnings=[
            *_warnings(folder),
            *([other_episodes(changed)] if changed else []),
            *_tasks_below_others(rows),
        ],
        key_figures=list(_key_figures(compared)),
        sections=_sections(contents),
        damaged_videos=index.damaged,
        most_embedded_mb=round(MOST_BYTES / 1e6),
        step_of_rollouts=steps[-1] if steps else None,
        files=list(_files(folder)),
        glossary=_glossary(rows),
        **contents,
    )
    return write_page(folder / REPORT_FILE, page)


def _filters() -> dict[str, Callable[..., Any]]:
    """Filters of the template."""
    return {
        "link": _link,
        "reward": _reward,
        "number": number,
        "outcome": outcome,
        "verdict": verdict,
        "question": question,
        "prompt": _prompt,
        "messages": messages,
        "footnote": footnote,
    }


def with_earlier(rows: Sequence[Row], folder: Path) -> list[Row]:
    """Rows of the runs that the run in `folder` continues, and its own `rows`.

    Raises:
        ValueError: A damaged line of an earlier run.
    """
    earlier = earlier_rows(folder, before=_first_step(rows))
    return [*map(_numbers, earlier), *rows]


def _first_step(rows: Sequence[Row]) -> int:
    return min(row["step"] for row in rows)


def read_run(folder: Path) -> list[Row]:
    """Rows of metrics.jsonl with the numbers and notices that a page can show.

    Raises:
        MissingAssetError: The folder does not exist, or holds no metrics.
        ValueError: A damaged line.
    """
    require_folder(folder)
    rows = [
        _numbers(row)
        for row in read_rows(folder / METRICS_FILE)
        if type(row.get("step")) is int and 0 <= row["step"] <= LAST_STEP
    ]
    if not rows:
        raise MissingAssetError(
            f"{folder} has no {METRICS_FILE} with a step in it: name the folder of a run, "
            f"outputs/<name>/<time>.{_of_agent(folder)}"
        )
    return rows


def _videos(
    folder: Path, rows: Sequence[Row], *, embed: bool
) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Template data of the videos, and the data: URIs of embedded ones."""
    videos = sorted(rows, key=lambda row: (-row["step"], row["outcome"] != "fail"))
    video_pairs = pairs(rows, most=_PAIRS_SHOWN)
    paired = [video for pair in video_pairs for video in pair]
    unpaired = [video for video in videos if video not in paired][:_VIDEOS_SHOWN]
    shown = [*paired, *unpaired]
    embedded = embedded_videos(shown, folder=folder / VIDEOS_FOLDER) if embed else {}
    contents = {
        "video_pairs": video_pairs,
        "videos": videos,
        "videos_shown": unpaired,
        "linked_videos": sum(video["video"] not in embedded for video in shown),
    }
    return contents, embedded


def _of_agent(folder: Path) -> str:
    """The remedy if `folder` belongs to an agent group."""
    run, group = run_of_recordings(folder)
    return "" if group is None else f" {run} has the metrics of all its agents: name it."


def _numbers(row: Row) -> Row:
    """The notice of a row, and its numbers that a diagram can show."""
    return {
        name: value
        for name, value in row.items()
        if (isinstance(value, str) if name == "notice" else _is_number(value))
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= LARGEST and math.isfinite(value)


def _tables(rows: Sequence[Row], read: Callable[..., Mapping[str, Any]]) -> list[TaskTable]:
    tables = [
        _table(rows, read=functools.partial(read, kind=kind), actions=actions)
        for kind, actions in KINDS_OF_EVALUATION
    ]
    return [table for table in tables if table is not None]


def _table(
    rows: Sequence[Row], *, read: Callable[[Row], Mapping[str, Any]], actions: str
) -> TaskTable | None:
    evaluated = [(row["step"], measured) for row in rows if (measured := read(row))]
    if not evaluated:
        return None
    (first, before), (last, after) = evaluated[0], evaluated[-1]
    tasks = [
        (
            *(task, before.get(task, ""), after.get(task, "")),
            after[task].change_since(before[task]) if task in before and task in after else "",
        )
        for task in sorted({**before, **after}, key=all_last)
    ]
    return TaskTable(actions, first, last, tasks)


def _key_figures(rows: Sequence[Row]) -> Iterator[tuple[str, str, str]]:
    """Title, value and meaning of the numbers at the top."""
    rated = [found for row in rows if (found := evaluations(row))]
    if rated:
        first, last = (list(found.values())[-1] for found in (rated[0], rated[-1]))
        change = f"{100 * first.rate:.1f} → " if len(rated) > 1 else ""
        yield "held-out success", f"{change}{100 * last.rate:.1f} %", f"{first}\nthen {last}"
    for title, metric, form in (
        ("training success", "rollout/success_rate", lambda value: f"{100 * value:.1f} %"),
        ("reward", "reward/mean_score", number),
        ("seconds per step", "time/step_s", number),
    ):
        values = [row[metric] for row in rows if metric in row]
        if values:
            yield title, form(values[-1]), meaning_of(metric)


def _length(rows: Sequence[Row]) -> str:
    times = [row["time"] for row in rows if "time" in row]
    spent = f", {duration(times[-1] - times[0])} from first to last row" if len(times) > 1 else ""
    return f"step {rows[-1]['step']}{spent}"


def _tasks_below_others(rows: Sequence[Row]) -> list[str]:
    """Tasks that the last evaluation leaves below the others."""
    rated = [found for row in rows if (found := evaluations(row))]
    return tasks_below_others(rated[-1]) if rated else []


def _warnings(folder: Path) -> list[str]:
    file = folder / WARNINGS_FILE
    lines = (
        file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
    )
    return list(dict.fromkeys(filter(None, lines)))[-_WARNINGS_SHOWN:]


def _evaluated(folder: Path) -> Iterator[Row]:
    """Text rollouts of the first and of the last evaluation that recorded any."""
    rollouts = folder / ROLLOUTS_FOLDER
    steps = steps_of(rollouts, kind="val")
    for step in dict.fromkeys([*steps[:1], *steps[-1:]]):
        yield from read_rollouts(rollouts, kind="val", step=step)


def _sections(contents: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Anchor and title of the sections that the page has."""
    known = (
        ("results", "Results", True),
        ("curves", "Curves", True),
        ("own", "Own metrics", contents["own_curves"]),
        ("tasks", "Tasks", contents["task_curves"]),
        ("videos", "Videos", contents["videos"]),
        ("rollouts", "Rollouts", contents["groups"]),
        ("graph", "Graph", contents["graph"]),
        ("config", "Config", contents["differences"]),
        ("glossary", "Glossary", True),
    )
    return [(place, title) for place, title, there in known if there]


def _glossary(rows: Sequence[Row]) -> list[LastValue]:
    """Every metric of the run, by name."""
    last = {}
    for row in rows:
        for name in row.keys() - ROW_KEYS:
            last[name] = (row["step"], row[name])
    return [
        LastValue(name, step, number(value), meaning_of(name))
        for name, (step, value) in sorted(last.items())
    ]


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    """Title and text of the plan and the configuration."""
    for name, title in ((PLAN_FILE, "Plan"), (CONFIG_FILE, "Configuration")):
        if (folder / name).is_file():
            yield title, (folder / name).read_text(encoding="utf-8", errors="replace")


def _prompt(row: Row) -> str:
    return "\n\n".join(f"{role}: {text}" for role, text in chat({"prompt": row.get("prompt", ())}))


def _link(video: Row) -> str:
    """URL of a video, relative to the report."""
    return urllib.parse.quote(f"{VIDEOS_FOLDER}/{video['video']}", errors="replace")


def _reward(video: Row) -> str:
    reward = video["reward"]
    return f"{reward:.3f}" if isinstance(reward, int | float) else str(reward or "")


class LiveReport:
    """Rewrites the report of a running job after its steps, and once more when it ends.

    The longer the run, the longer it takes to make a page. A page is therefore made after a step
    only if all pages together stay below 2 % of the run's time.

    Args:
        folder: The run folder.
        clock: Monotonic clock in seconds.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._clock = folder, clock
        self._due = clock()

    @property
    def file(self) -> Path:
        """Path of the page."""
        return self.folder / REPORT_FILE

    def after_step(self) -> None:
        """Rewrite the page if its pause is over; the page then reloads itself."""
        begin = self._clock()
        if begin < self._due:
            return
        write_report(self.folder, live_s=RELOAD_S)
        end = self._clock()
        self._due = end + _PAUSE * (end - begin)

    def finish(self) -> None:
        """Write the page of a run that has ended, if it recorded a step."""
        metrics = self.folder / METRICS_FILE
        if metrics.is_file() and metrics.stat().st_size:
            write_report(self.folder)
