"""Exports the contents of report.html for papers: metrics as CSV, charts as PDF and SVG.

The form follows the path: `curves.csv`; `charts.pdf` with one page per chart; a folder with a PDF
and an SVG of each chart. Left out: the page itself (siirl.reporting.report_page).
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

from siirl.errors import ConfigError
from siirl.reporting.charts import Chart, Row, compared_charts, own_charts, run_charts, task_charts
from siirl.terminal.printable import printable

# Okabe and Ito's palette, distinguishable with any colour vision (jfly.uni-koeln.de/color). For
# stacks of many stages, five of Tol's colours follow (personal.sron.nl/~pault).
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    *("#882255", "#999933", "#332288", "#44AA99", "#DDCC77"),
)
_DASHES = ("-", "--", ":", "-.")
_INCHES = (3.4, 2.3)
"""A column of a two-column paper is 3.3 inches wide."""
_STYLE: Any = {  # rc_context wants literals of 300 names
    "font.size": 8.0,
    "pdf.fonttype": 42,  # TrueType, as conferences require
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar sign in a task's name is not TeX
}


def export(runs: Mapping[str, Sequence[Row]], path: Path) -> list[Path]:
    """Write the metrics or the charts of runs (rows by name) and return the files.

    Raises:
        ConfigError: The path ends in something other than .csv or .pdf.
        OSError: It cannot be written.
    """
    if path.suffix == ".csv":
        return [write_csv(runs, path)]
    if path.suffix not in ("", ".pdf"):
        raise ConfigError(
            f"--export {path}: name a .csv file (metrics), a .pdf file (all charts), or a folder "
            "(a PDF and an SVG of each chart)."
        )
    if not path.suffix and path.exists() and not path.is_dir():
        raise ConfigError(f"--export {path} is a file: name a folder, a .csv or a .pdf file.")
    charts = charts_of(runs)
    with rc_context(_STYLE):
        if path.suffix == ".pdf":
            path.parent.mkdir(parents=True, exist_ok=True)
            with PdfPages(path) as pages:
                for chart in charts:
                    pages.savefig(draw(chart))
            return [path]
        return [file for chart in charts for file in _save(chart, path)]


def charts_of(runs: Mapping[str, Sequence[Row]]) -> list[Chart]:
    """Every chart of the report, or of the comparison of several runs."""
    if len(runs) > 1:
        return compared_charts(runs)
    (rows,) = runs.values()
    return [*run_charts(rows), *own_charts(rows), *task_charts(rows)]


def write_csv(runs: Mapping[str, Sequence[Row]], file: Path) -> Path:
    """A row per run and step, a column per metric; empty where a step has no value."""
    found: set[str] = set()
    for rows in runs.values():
        found.update(*rows)
    names = sorted(found - {"step"})
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow(["run", "step", *names])
        for run, rows in runs.items():
            for row in rows:
                table.writerow([run, row["step"], *(row.get(name, "") for name in names)])
    return file


def draw(chart: Chart) -> Figure:
    """The chart at the width of a paper's column, legend below."""
    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.add_subplot()
    scale = 100 if chart.percent else 1
    looks = ((colour, dash) for dash in cycle(_DASHES) for colour in COLOURS)
    if chart.stacked:
        steps = [point.step for point in chart.series[0].points]
        values = [[point.value for point in curve.points] for curve in chart.series]
        labels = [printable(curve.label, keep="") for curve in chart.series]
        axes.stackplot(steps, values, labels=labels, colors=COLOURS)
    else:
        for curve, (colour, dash) in zip(chart.series, looks, strict=False):
            steps = [point.step for point in curve.points]
            axes.plot(
                steps,
                [scale * point.value for point in curve.points],
                color=colour,
                linestyle=dash,
                linewidth=1.2,
                marker="o" if len(steps) <= 30 else None,
                markersize=2.5,
                label=printable(curve.label, keep=""),
            )
            banded = [point for point in curve.points if point.low is not None]
            axes.fill_between(
                [point.step for point in banded],
                [scale * (point.low or 0.0) for point in banded],
                [scale * (point.high or 0.0) for point in banded],
                color=colour,
                alpha=0.18,
                linewidth=0,
            )
    axes.set_xlabel("step")
    title = printable(chart.title, keep="") + (", %" if chart.percent else "")
    axes.set_title(title, fontsize=8, loc="left")
    axes.set_ylim((0, 100) if chart.whole else None)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if len(chart.series) > 1:
        figure.legend(loc="outside lower center", ncols=2, fontsize=6.5, frameon=False)
    return figure


def _save(chart: Chart, folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "_", chart.title.lower()).strip("_") or "chart"
    figure = draw(chart)
    for suffix in (".pdf", ".svg"):
        file = folder / f"{name}{suffix}"
        figure.savefig(file)
        yield file
