"""comparison.html of several runs: held-out success side by side with intervals, curves, keys.

Runs whose configurations differ only in the seed are also summarised together, with Student's
interval over seeds. Left out: tests of significance beyond intervals, because non-overlap of two 95
% intervals is the stricter criterion.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from siirl.errors import ConfigError
from siirl.reporting.chart_svg import draw
from siirl.reporting.charts import KINDS_OF_EVALUATION, Row, compared_charts
from siirl.reporting.config_difference import between
from siirl.reporting.page import render_page, write_page
from siirl.reporting.report_page import read_run, with_earlier
from siirl.reporting.run_folder import CONFIG_FILE
from siirl.reporting.statistics import SuccessInterval, all_last, evaluations, mean_interval

COMPARISON_FILE = "comparison.html"
SEED = "trainer.seed"


class Comparison(NamedTuple):
    """The last evaluation of every run, of one kind of actions."""

    actions: str
    steps: Sequence[str]
    """Step of each run's last evaluation, such as `step 60`; `-` for a run without evaluations."""
    tasks: Sequence[tuple[str, Sequence[str], str]]
    """Per task: name, the result of each run, and the difference of the last run from the first."""


def write_comparison(folders: Sequence[Path], file: Path) -> Path:
    """Write a page that compares runs and return its path.

    Args:
        folders: Two or more run folders.
        file: Path of the page.

    Raises:
        ConfigError: A folder is named twice, or `file` is a folder.
        MissingAssetError: A folder is not a run.
        ValueError: A damaged line in a run's metrics.jsonl.
    """
    if file.is_dir():
        raise ConfigError(f"--output {file} is a folder: name a file in it.")
    named = names_of(folders)
    runs = {name: with_earlier(read_run(folder), folder) for name, folder in named.items()}
    configs = {name: folder / CONFIG_FILE for name, folder in named.items()}
    differences = between(configs)
    page = render_page(
        "comparison.html",
        filters={},
        names=list(named),
        folders=named,
        tables=list(_tables(runs)),
        seeds=over_seeds(runs) if {place for place, _ in differences} <= {SEED} else "",
        curves=[draw(chart) for chart in compared_charts(runs)],
        differences=differences,
    )
    return write_page(file, page)


def names_of(folders: Sequence[Path]) -> dict[str, Path]:
    """Folders by the shortest names that distinguish them: `<name>` or `<name>/<time>`.

    Raises:
        ConfigError: A folder is named twice.
    """
    whole = [folder.resolve() for folder in folders]
    if len(set(whole)) < len(whole):
        raise ConfigError(f"A run is named twice: {', '.join(map(str, folders))}. Name each once.")
    short = [folder.parent.name for folder in whole]
    if len(set(short)) < len(short):
        short = [f"{folder.parent.name}/{folder.name}" for folder in whole]
    if len(set(short)) < len(short):
        short = [str(folder) for folder in whole]
    return dict(zip(short, folders, strict=True))


def over_seeds(runs: Mapping[str, Sequence[Row]]) -> str:
    """Mean of the runs' last held-out success with Student's interval; empty if a run has none."""
    last = [_last(rows, kind="")[1] for rows in runs.values()]
    rates = [list(found.values())[-1].rate for found in last if found]
    if len(rates) < len(runs) or len(rates) < 2:
        return ""
    spread = mean_interval(
        mean=statistics.fmean(rates), std=statistics.stdev(rates), episodes=len(rates)
    )
    interval = (
        ""
        if spread.low is None or spread.high is None
        else f" [{100 * max(0.0, spread.low):.1f}, {100 * min(1.0, spread.high):.1f}]"
    )
    return f"{100 * spread.mean:.1f} %{interval} over {len(rates)} seeds"


def _tables(runs: Mapping[str, Sequence[Row]]) -> Iterator[Comparison]:
    for kind, actions in KINDS_OF_EVALUATION:
        found = [_last(rows, kind=kind) for rows in runs.values()]
        last = [results for _, results in found]
        tasks = sorted({task for results in last for task in results}, key=all_last)
        rows = []
        for task in tasks:
            cells = [str(results.get(task, "-")) for results in last]
            rows.append((task, cells, _change(last, task)))
        if rows:
            yield Comparison(actions, [step for step, _ in found], rows)


def _change(last: Sequence[Mapping[str, SuccessInterval]], task: str) -> str:
    first, newest = last[0], last[-1]
    if task not in first or task not in newest:
        return ""
    if task == "all" and first.keys() != newest.keys():
        return "other tasks"
    return newest[task].change_since(first[task])


def _last(rows: Sequence[Row], *, kind: str) -> tuple[str, Mapping[str, SuccessInterval]]:
    """Step and results of the last evaluation; `-` and no results for a run without evaluations."""
    found = [
        (f"step {row['step']}", measured)
        for row in rows
        if (measured := evaluations(row, kind=kind))
    ]
    return found[-1] if found else ("-", {})
