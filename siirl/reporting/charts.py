"""The charts of a run or of several runs: titles, series and intervals, as numbers.

`chart_svg` draws them into report.html, `chart_files` writes PDF, SVG and CSV. Left out: drawing.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from siirl.reporting.metric_writers import ROW_KEYS
from siirl.reporting.metrics import find_declaration
from siirl.reporting.stage_times import EVALUATION, stage_of
from siirl.reporting.statistics import SuccessInterval, all_last, evaluations

Row = Mapping[str, Any]

KINDS_OF_EVALUATION = (
    ("", "sampled actions"),
    ("argmax_", "greedy actions"),
    ("any_", "any of trainer.val_samples samples"),
)


HELD_OUT = "Success on held-out episodes"
_OWN_CHARTS = 24  # two screens; a function that logs a metric per item makes hundreds


@dataclass(frozen=True)
class Point:
    """A value at a training step, with its 95 % interval if it has one."""

    step: int
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """A named curve."""

    label: str
    points: Sequence[Point]
    meaning: str = ""
    """Meaning of the quantity, as declared in `METRICS`; shown on hover."""


@dataclass(frozen=True)
class Chart:
    """Curves over training steps that share an axis."""

    title: str
    series: Sequence[Series]
    percent: bool = False
    """Whether values are shares, shown as percentages."""
    whole: bool = False
    """Whether the axis covers 0 to 100 %."""
    stacked: bool = False


@dataclass(frozen=True)
class Panel:
    """A chart of declared metrics: title, and label by metric."""

    title: str
    metrics: Mapping[str, str]
    percent: bool = False


PANELS = (
    Panel("Success of training episodes", {"rollout/success_rate": "all episodes"}, percent=True),
    Panel("Reward", {"reward/mean_score": "mean"}),
    Panel(
        "Reward of held-out episodes",
        {
            "val/all/mean_score": "sampled actions",
            "val/all/argmax_mean_score": "greedy actions",
        },
    ),
    Panel(
        "Return of held-out episodes",
        {"val/all/return": "sampled actions", "val/all/argmax_return": "greedy actions"},
    ),
    Panel("Tokens of a rollout", {"rollout/avg_response_length": "of the policy"}),
    Panel("Turns per episode", {"rollout/turns": "turns"}),
    Panel("Truncated", {"rollout/truncated_share": "episodes"}, percent=True),
    Panel("Clusters of successes", {"reward/clusters": "clusters"}),
    Panel("Groups without advantage", {"advantage/zero_groups": "groups"}),
    Panel("KL to the behaviour policy", {"actor/ppo_kl": "KL"}),
    Panel("Entropy", {"actor/entropy": "update", "rollout/entropy": "rollout"}),
    Panel("Clipped ratios", {"actor/pg_clipfrac": "share of tokens"}, percent=True),
    Panel("Gradient norm", {"actor/grad_norm": "actor", "critic/grad_norm": "critic"}),
    Panel("Critic", {"critic/explained_variance": "explained variance"}),
    Panel("Environment steps per second", {"env/steps_per_s": "steps/s"}),
    Panel("Policy calls per second", {"policy/calls_per_s": "calls/s"}),
    Panel("Generated tokens per second", {"rollout/tokens_per_s": "tokens/s"}),
    Panel("Busy", {"env/busy_share": "environments", "policy/busy_share": "policy"}, percent=True),
    Panel("Seconds per evaluation", {EVALUATION: "evaluation, not in the step's seconds"}),
)


def run_charts(rows: Sequence[Row]) -> list[Chart]:
    """Charts of a run for which it has numbers: held-out success, `PANELS`, stage times."""
    charts = [
        _held_out(rows),
        *(_panel(panel, rows) for panel in PANELS),
        _stage_times(rows),
    ]
    return [chart for chart in charts if chart.series]


def task_charts(rows: Sequence[Row]) -> list[Chart]:
    """Held-out success of each task, lowest last value first; no chart for a single task."""
    tasks = _tasks(rows)
    if len(tasks) < 3:  # one task, and `all`
        return []
    charts = [
        Chart(task, list(_of_task(rows, task)), percent=True, whole=True)
        for task in tasks
        if task != "all"
    ]
    return sorted(charts, key=lambda chart: (chart.series[0].points[-1].value, chart.title))


def own_charts(rows: Sequence[Row]) -> list[Chart]:
    """A chart for each metric of a user's functions, up to `_OWN_CHARTS` by name."""
    names = sorted({name for row in rows for name in row if _is_own(name)})
    charts = [_panel(Panel(name, {name: "value"}), rows) for name in names]
    return [chart for chart in charts if chart.series][:_OWN_CHARTS]


def _is_own(name: str) -> bool:
    declared = find_declaration(name)
    return name not in ROW_KEYS and (declared is None or declared.own)


def compared_charts(runs: Mapping[str, Sequence[Row]]) -> list[Chart]:
    """Charts of one quantity each, with one curve per run (rows by name); stage times are left
    out.
    """
    together: dict[tuple[str, str], Chart] = {}
    for name, rows in runs.items():
        panels = (_panel(panel, rows) for panel in PANELS)
        for chart in (_held_out(rows), *panels, *own_charts(rows)):
            for curve in chart.series:
                of_run = Series(name, curve.points, meaning=curve.meaning)
                known = together.get((chart.title, curve.label))
                together[chart.title, curve.label] = dataclasses.replace(
                    chart,
                    title=f"{chart.title}: {curve.label}",
                    series=[*(known.series if known else ()), of_run],
                )
    titles = [HELD_OUT, *(panel.title for panel in PANELS)]
    order = {title: index for index, title in enumerate(titles)}
    return [
        together[key]
        for key in sorted(together, key=lambda key: (order.get(key[0], len(order)), key[0]))
    ]


def _held_out(rows: Sequence[Row]) -> Chart:
    tasks = _tasks(rows)
    if "all" in tasks:
        series = list(_of_task(rows, "all"))
    elif len(tasks) == 1:
        series = list(_of_task(rows, tasks[0]))
    else:  # an older run, or a user's node, without a total
        series = [next(_of_task(rows, task, label=task)) for task in tasks]
    return Chart(HELD_OUT, series, percent=True, whole=True)


def _tasks(rows: Sequence[Row]) -> list[str]:
    return sorted({task for row in rows for task in evaluations(row)}, key=all_last)


def _of_task(rows: Sequence[Row], task: str, *, label: str = "") -> Iterator[Series]:
    """A curve with intervals for each kind of evaluation."""
    for kind, actions in KINDS_OF_EVALUATION:
        found = [
            (row["step"], measured[task])
            for row in rows
            if task in (measured := evaluations(row, kind=kind)) and measured[task].episodes
        ]
        if found:
            yield Series(
                label or actions,
                [_with_interval(step, interval) for step, interval in found],
                meaning="share of successes among held-out episodes, with its 95 % interval",
            )


def _with_interval(step: int, interval: SuccessInterval) -> Point:
    return Point(step, interval.rate, interval.low, interval.high)


def _panel(panel: Panel, rows: Sequence[Row]) -> Chart:
    series = [
        Series(label, points, meaning=meaning_of(metric))
        for metric, label in panel.metrics.items()
        if (points := _points(rows, metric))
    ]
    return Chart(panel.title, series, percent=panel.percent)


def meaning_of(metric: str) -> str:
    """The declared meaning and reduction of a metric, with its name."""
    declared = find_declaration(metric)
    if declared is None:
        return f"not declared ({metric})"
    return f"{declared.meaning} ({metric}; {declared.reduction.value})"


def _points(rows: Iterable[Row], metric: str) -> list[Point]:
    return [
        Point(row["step"], row[metric]) for row in rows if isinstance(row.get(metric), int | float)
    ]


def _stage_times(rows: Sequence[Row]) -> Chart:
    """Seconds of every stage, stacked."""
    trained = [row for row in rows if row["step"] > 0]
    names = dict.fromkeys(name for row in trained for name in row)
    series = []
    for name in names:
        stage = stage_of(name)
        if stage:
            points = [Point(row["step"], row.get(name, 0.0)) for row in trained]
            series.append(Series(stage, points, meaning=meaning_of(name)))
    return Chart("Seconds per stage", series, stacked=True)


def heights(chart: Chart) -> list[list[float]]:
    """The drawn values of each series; in a stacked chart, each series starts at the previous
    one.
    """
    values = [[point.value for point in curve.points] for curve in chart.series]
    if not chart.stacked:
        return values
    return [list(column) for column in itertools.accumulate(values, _added)]


def _added(below: list[float], above: list[float]) -> list[float]:
    return [low + high for low, high in zip(below, above, strict=True)]
