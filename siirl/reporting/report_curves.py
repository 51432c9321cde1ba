"""Curves of report.html: metrics over training steps as inline SVG.

matplotlib escapes the texts, which a test asserts; dollar signs in names do not start formulas.
"""

import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from siirl.reporting.statistics import all_last, evaluations

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Panel:
    """A small diagram over training steps: its title and the metrics that it shows, with their
    labels.
    """

    title: str
    curves: Mapping[str, str]
    percent: bool = False


PANELS = (
    Panel("Success of training episodes", {"rollout/success_rate": "all episodes"}, percent=True),
    Panel("Reward", {"reward/mean_score": "mean"}),
    Panel(
        "Reward of held-out episodes",
        {
            "val/all/mean_score": "sampled actions",
            "val/all/argmax_mean_score": "most probable actions",
        },
    ),
    Panel("Response, tokens", {"rollout/avg_response_length": "tokens"}),
    Panel("Truncated", {"rollout/truncated_share": "episodes"}, percent=True),
    Panel("Clusters of successes", {"reward/clusters": "clusters"}),
    Panel("KL to the behaviour policy", {"actor/ppo_kl": "KL"}),
    Panel("Entropy", {"actor/entropy": "update", "rollout/entropy": "rollout"}),
    Panel("Clipped tokens", {"actor/pg_clipfrac": "share"}, percent=True),
    Panel("Gradient norm", {"actor/grad_norm": "before clipping"}),
    Panel(
        "Speed", {"env/steps_per_s": "environment steps/s", "policy/calls_per_s": "policy calls/s"}
    ),
    Panel("Busy", {"env/busy_share": "environments", "policy/busy_share": "policy"}, percent=True),
)


def curves(rows: Sequence[Row]) -> list[Markup]:
    """The diagrams for which there are numbers: held-out success, the panels, and the time of each
    stage.
    """
    with rc_context({"svg.fonttype": "none", "text.parse_math": False}):  # text stays text
        drawn = [
            _evaluation_figure(rows),
            *(_figure(panel, rows) for panel in PANELS),
            _time_figure(rows),
        ]
    return [Markup(svg) for svg in drawn if svg]


def _points(rows: Sequence[Row], metric: str) -> tuple[list[int], list[float]]:
    """Steps and values of the rows that have the metric."""
    found = [(row["step"], row[metric]) for row in rows if isinstance(row.get(metric), int | float)]
    return [step for step, _ in found], [value for _, value in found]


def _evaluation_figure(rows: Sequence[Row]) -> str:
    """Held-out success with its interval, for every task and all together."""
    evaluated = [(row["step"], evaluations(row)) for row in rows]
    tasks = sorted({task for _, rates in evaluated for task in rates}, key=all_last)
    if not tasks:
        return ""
    figure, axes = _axes("Success on held-out episodes", percent=True)
    for task in tasks:
        steps = [step for step, found in evaluated if task in found]
        intervals = [found[task] for _, found in evaluated if task in found]
        strong = task == "all" or len(tasks) == 1
        line = axes.plot(
            steps,
            [100 * i.rate for i in intervals],
            marker="o",
            markersize=3,
            linewidth=2.2 if strong else 0.8,
            label=_label(task),
        )
        if strong:
            low, high = [100 * i.low for i in intervals], [100 * i.high for i in intervals]
            axes.fill_between(steps, low, high, alpha=0.2, color=line[0].get_color())
    axes.set_ylim(0, 100)
    return _svg(figure, axes)


def _figure(panel: Panel, rows: Sequence[Row]) -> str:
    drawn = {label: _points(rows, metric) for metric, label in panel.curves.items()}
    drawn = {label: points for label, points in drawn.items() if points[0]}
    if not drawn:
        return ""
    figure, axes = _axes(panel.title, percent=panel.percent)
    for label, (steps, values) in drawn.items():
        axes.plot(
            steps,
            [100 * value for value in values] if panel.percent else values,
            linewidth=1.4,
            label=label,
        )
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    return _svg(figure, axes)


def _time_figure(rows: Sequence[Row]) -> str:
    """Seconds of every stage, stacked."""
    trained = [row for row in rows if row["step"] > 0]
    stages = dict.fromkeys(
        name for row in trained for name in row if name.startswith("time/") and name.endswith("_s")
    )
    names = [name for name in stages if name != "time/step_s"]
    if not names:
        return ""
    figure, axes = _axes("Seconds a stage", percent=False)
    labels = [_label(name.removeprefix("time/").removesuffix("_s")) for name in names]
    axes.stackplot(
        [row["step"] for row in trained],
        [[row.get(name, 0.0) for row in trained] for name in names],
        labels=labels,
    )
    return _svg(figure, axes)


def _axes(title: str, *, percent: bool) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.6, 2.9), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title + (", %" if percent else ""), fontsize=10, loc="left")
    axes.set_xlabel("step", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _label(name: str) -> str:
    """A name with unprintable characters replaced, which matplotlib cannot draw."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name
    )


def _svg(figure: Figure, axes: Axes) -> str:
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(fontsize=7, framealpha=0.7)
    text = io.StringIO()
    salt = axes.get_title(loc="left")  # makes SVG ids unique on the page
    with rc_context({"svg.hashsalt": salt}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the browser has more fonts
        figure.savefig(text, format="svg", transparent=True)
    return text.getvalue()[text.getvalue().index("<svg") :]
