"""report.html of a run: success before and after, curves, videos, rollouts, config, plan.

The page is built from the run folder (metrics.jsonl, videos/, rollouts/, config.yaml, plan.txt) and
can be rebuilt at any time. It links the videos and contains everything else, including the newest
rollouts.

Its texts come from environments, models and users. The template (report_page.html) therefore
escapes everything except the diagrams, and its content security policy forbids scripts.
"""

import functools
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from siirl.errors import MissingAssetError
from siirl.reporting.jsonl import read_rows
from siirl.reporting.metric_writers import METRICS_FILE
from siirl.reporting.recorder import VIDEOS_FOLDER, read_video_index
from siirl.reporting.report_curves import Row, curves
from siirl.reporting.rollout_files import ROLLOUTS_FOLDER, read_rollouts, steps_of
from siirl.reporting.rollout_view import chat, footnote, headline, newest_failures_first, outcome
from siirl.reporting.run_folder import CONFIG_FILE, PLAN_FILE
from siirl.reporting.statistics import all_last, evaluations, mean_scores

REPORT_FILE = "report.html"
TEMPLATE = Path(__file__).with_name("report_page.html")

LAST_STEP, LARGEST = (
    2**53,
    1e308,
)  # bounds of a diagram; JSON integers have none
_VIDEOS_SHOWN = 12
_ROLLOUTS_SHOWN = 24  # of the newest step; python -m siirl.report RUN --rollouts prints all

KINDS_OF_EVALUATION = (
    ("", "sampled actions"),
    ("argmax_", "most probable actions"),
    ("any_", "any of trainer.val_samples samples"),
)


class Table(NamedTuple):
    """The first and the last evaluation of every task."""

    actions: str
    first_step: int
    last_step: int
    tasks: Sequence[Sequence[Any]]
    """Per task: name, first and last measurement (empty if missing), and the change.
    """


def write_report(folder: Path) -> Path:
    """Write report.html into the run folder and return its path.

    Raises:
        MissingAssetError: metrics.jsonl is missing or empty: not a run folder, or a run that ended
            before its first step.
        ValueError: A damaged line in metrics.jsonl or in a rollout file.
    """
    rows = [
        _numbers(row)
        for row in read_rows(folder / METRICS_FILE)
        if type(row.get("step")) is int and 0 <= row["step"] <= LAST_STEP
    ]
    if not rows:
        raise MissingAssetError(
            f"{folder} has no {METRICS_FILE} with a step in it: name the folder of a run, "
            "outputs/<name>/<time>."
        )
    index = read_video_index(folder / VIDEOS_FOLDER)
    videos = sorted(index.rows, key=lambda row: (-row["step"], row["outcome"] != "fail"))
    steps = steps_of(folder / ROLLOUTS_FOLDER)
    page = _template().render(
        folder=folder,
        name=folder.resolve().parent.name,
        time=folder.resolve().name,
        notices=list(dict.fromkeys(row["notice"] for row in rows if "notice" in row)),
        success=_tables(rows, evaluations),
        rewards=_tables(rows, mean_scores),
        curves=curves(rows),
        videos=videos,
        damaged_videos=index.damaged,
        videos_shown=videos[:_VIDEOS_SHOWN],
        step_of_rollouts=steps[-1] if steps else None,
        rollouts=newest_failures_first(read_rollouts(folder / ROLLOUTS_FOLDER, step=steps[-1]))[
            :_ROLLOUTS_SHOWN
        ]
        if steps
        else [],
        files=list(_files(folder)),
    )
    report = folder / REPORT_FILE
    report.write_text(
        page, encoding="utf-8", errors="replace"
    )  # model text may hold lone surrogates
    return report


def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATE.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "link": _link,
        "reward": _reward,
        "outcome": outcome,
        "headline": headline,
        "chat": chat,
        "footnote": footnote,
    }
    return environment.get_template(TEMPLATE.name)


def _numbers(row: Row) -> Row:
    """The notice and the numbers of a row that a diagram can show."""
    return {
        name: value
        for name, value in row.items()
        if (isinstance(value, str) if name == "notice" else _is_number(value))
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= LARGEST)


def _tables(rows: Sequence[Row], read: Callable[..., Mapping[str, Any]]) -> list[Table]:
    tables = [
        _table(rows, read=functools.partial(read, kind=kind), actions=actions)
        for kind, actions in KINDS_OF_EVALUATION
    ]
    return [table for table in tables if table is not None]


def _table(
    rows: Sequence[Row], *, read: Callable[[Row], Mapping[str, Any]], actions: str
) -> Table | None:
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
    return Table(actions, first, last, tasks)


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    """Title and text of the plan and the configuration."""
    for name, title in ((PLAN_FILE, "Plan"), (CONFIG_FILE, "Configuration")):
        if (folder / name).is_file():
            yield title, (folder / name).read_text(encoding="utf-8", errors="replace")


def _link(video: Row) -> str:
    """URL of a video, relative to the report."""
    return urllib.parse.quote(f"{VIDEOS_FOLDER}/{video['video']}", errors="replace")


def _reward(video: Row) -> str:
    reward = video["reward"]
    return f"{reward:.3f}" if isinstance(reward, int | float) else str(reward or "")
