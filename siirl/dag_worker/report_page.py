"""report.html of a run, one file: the success before and after, curves, videos, rollouts, config and plan.

It is made of what every run leaves in its folder (metrics.jsonl, videos/, rollouts/, config.yaml, plan.txt) and can be made again at any
time. The videos stay where they are and are linked; everything else is in the file, of the rollouts the newest.
"""

import functools
import html
import io
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from siirl.dag_worker.jsonl import read_rows
from siirl.dag_worker.metric_writers import METRICS_FILE
from siirl.dag_worker.recorder import VIDEOS_FOLDER, read_index
from siirl.dag_worker.rollout_files import ROLLOUTS_FOLDER, read_rollouts, steps_of
from siirl.dag_worker.rollout_view import chat, footnote, headline, newest_failures_first, outcome
from siirl.dag_worker.statistics import all_last, evaluations, mean_scores
from siirl.errors import MissingAssetError
from siirl.params.run_folder import CONFIG_FILE, PLAN_FILE

REPORT_FILE = "report.html"

_VIDEOS_SHOWN = 12
_ROLLOUTS_SHOWN = 24  # of the newest step; all others with python -m siirl.report RUN --rollouts

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Panel:
    """A small diagram over training steps: its title and the metrics that it shows, with their labels."""

    title: str
    curves: Mapping[str, str]
    percent: bool = False


PANELS = (
    Panel("Success of training episodes", {"rollout/success_rate": "all episodes"}, percent=True),
    Panel("Reward", {"reward/mean_score": "mean"}),
    Panel("Reward of held-out episodes", {"val/all/mean_score": "sampled actions", "val/all/argmax_mean_score": "most probable actions"}),
    Panel("Response, tokens", {"rollout/avg_response_length": "tokens"}),
    Panel("Truncated", {"rollout/truncated_share": "episodes"}, percent=True),
    Panel("Clusters of successes", {"reward/clusters": "clusters"}),
    Panel("KL to the behaviour policy", {"actor/ppo_kl": "KL"}),
    Panel("Entropy", {"actor/entropy": "update", "rollout/entropy": "rollout"}),
    Panel("Clipped tokens", {"actor/pg_clipfrac": "share"}, percent=True),
    Panel("Gradient norm", {"actor/grad_norm": "before clipping"}),
    Panel("Speed", {"env/steps_per_s": "environment steps/s", "policy/calls_per_s": "policy calls/s"}),
    Panel("Busy", {"env/busy_share": "environments", "policy/busy_share": "policy"}, percent=True),
)


KINDS_OF_EVALUATION = (("", "sampled actions"), ("argmax_", "most probable actions"), ("any_", "any of trainer.val_samples samples"))


def write_report(folder: Path) -> Path:
    """Write report.html into the run folder and return its path.

    Raises:
        MissingAssetError: No metrics.jsonl with a row in it: not a run folder, or a run that ended before its first step.
    """
    rows = [row for row in read_rows(folder / METRICS_FILE) if "step" in row]
    if not rows:
        raise MissingAssetError(f"{folder} has no {METRICS_FILE} with a step in it: name the folder of a run, outputs/<name>/<time>.")
    parts = [
        f"<h1>{html.escape(folder.resolve().parent.name)} <small>{html.escape(folder.resolve().name)}</small></h1>",
        _notice(rows),
        _success(rows),
        _curves(rows),
        _videos(read_index(folder / VIDEOS_FOLDER)),
        _rollouts(folder / ROLLOUTS_FOLDER),
        *(_file(folder / name, title) for name, title in ((PLAN_FILE, "Plan"), (CONFIG_FILE, "Configuration"))),
    ]
    report = folder / REPORT_FILE
    report.write_text(_PAGE.format(title=html.escape(str(folder)), style=_STYLE, body="\n".join(filter(None, parts))))
    return report


def _notice(rows: Sequence[Row]) -> str:
    """What the environment wants every reader to know."""
    notices = dict.fromkeys(row["notice"] for row in rows if "notice" in row)
    return "".join(f"<p class=notice>{html.escape(notice)}</p>" for notice in notices)


def _success(rows: Sequence[Row]) -> str:
    """Tables of the first and the last evaluation, with 95 % intervals: success, and the job's reward where some have no grade."""
    tables = [_table(rows, read=functools.partial(evaluations, kind=kind), actions=actions) for kind, actions in KINDS_OF_EVALUATION]
    rewards = [_table(rows, read=functools.partial(mean_scores, kind=kind), actions=actions) for kind, actions in KINDS_OF_EVALUATION]
    if not any(tables + rewards):
        return "<p>This run had no evaluation.</p>"
    note = "<p class=note>Held-out seeds, the same in both columns; 95 % {} intervals; {} in brackets.</p>"
    success = "<h2>Success on held-out episodes</h2>" + "".join(tables) + note.format("Wilson", "successes of episodes")
    reward = "<h2>Mean reward of held-out episodes</h2>" + "".join(rewards) + note.format("Student", "episodes without a grade")
    return (success if any(tables) else "") + (reward if any(rewards) else "")


def _table(rows: Sequence[Row], *, read: Callable[[Row], Mapping[str, Any]], actions: str) -> str:
    evaluated = [(row["step"], measured) for row in rows if (measured := read(row))]
    if not evaluated:
        return ""
    (first, before), (last, after) = evaluated[0], evaluated[-1]
    body = []
    for task in sorted({**before, **after}, key=all_last):
        change = after[task].change_since(before[task]) if task in before and task in after else ""
        cells = [html.escape(task), *(str(found.get(task, "")) for found in (before, after)), change]
        body.append(f"<tr{' class=all' if task == 'all' else ''}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = f"<tr><th>task, {actions}</th><th>step {first}</th><th>step {last}</th><th>change</th></tr>"
    return f"<table>{head}{''.join(body)}</table>"


def _curves(rows: Sequence[Row]) -> str:
    figures = [_evaluation_figure(rows), *(_figure(panel, rows) for panel in PANELS), _time_figure(rows)]
    return '<h2>Curves</h2><div class="grid">' + "".join(filter(None, figures)) + "</div>"


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
        steps = [step for step, rates in evaluated if task in rates]
        intervals = [rates[task] for _, rates in evaluated if task in rates]
        strong = task == "all" or len(tasks) == 1
        line = axes.plot(
            steps, [100 * i.rate for i in intervals], marker="o", markersize=3, linewidth=2.2 if strong else 0.8, label=_as_it_is(task)
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
        axes.plot(steps, [100 * value for value in values] if panel.percent else values, linewidth=1.4, label=label)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    return _svg(figure, axes)


def _time_figure(rows: Sequence[Row]) -> str:
    """Seconds of every stage, stacked."""
    trained = [row for row in rows if row["step"] > 0]
    stages = dict.fromkeys(name for row in trained for name in row if name.startswith("time/") and name.endswith("_s"))
    names = [name for name in stages if name != "time/step_s"]
    if not names:
        return ""
    figure, axes = _axes("Seconds a stage", percent=False)
    labels = [_as_it_is(name.removeprefix("time/").removesuffix("_s")) for name in names]
    axes.stackplot([row["step"] for row in trained], [[_seconds(row.get(name)) for row in trained] for name in names], labels=labels)
    return _svg(figure, axes)


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0  # a row may lack a stage


def _as_it_is(name: str) -> str:
    """A name as matplotlib shows it letter by letter: it takes what stands between two dollars for a formula."""
    return name.replace("$", r"\$")


def _axes(title: str, *, percent: bool) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.6, 2.9), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title + (", %" if percent else ""), fontsize=10, loc="left")
    axes.set_xlabel("step", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Figure, axes: Axes) -> str:
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(fontsize=7, framealpha=0.7)
    text = io.StringIO()
    # Text stays text; the salt keeps the ids of diagrams on the same page apart.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": axes.get_title(loc="left")}):
        figure.savefig(text, format="svg", transparent=True)
    return "<figure>" + text.getvalue()[text.getvalue().index("<svg") :] + "</figure>"


def _videos(index: Sequence[Row]) -> str:
    """The newest videos, failures first, and a list of all."""
    if not index:
        return ""
    newest = sorted(index, key=lambda row: (-row["step"], row["outcome"] != "fail"))
    shown = "".join(_video(row) for row in newest[:_VIDEOS_SHOWN])
    listed = "".join(_line(row) for row in newest)
    head = "<tr><th>step</th><th>kind</th><th>task</th><th>outcome</th><th>reward</th><th>seed</th><th>sample</th></tr>"
    return (
        f'<h2>Videos</h2><div class="grid">{shown}</div>'
        f"<details><summary>All {len(index)} videos, newest and failures first</summary><table>{head}{listed}</table></details>"
    )


def _video(row: Row) -> str:
    caption = f"step {row['step']}, {html.escape(row['kind'])}, {html.escape(row['task'])}: {row['outcome']}"
    return (
        f'<figure class="{row["outcome"]}"><video controls loop muted preload="metadata" src="{_link(row)}"></video>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _line(row: Row) -> str:
    texts = [str(row["step"]), row["kind"], row["task"], row["outcome"], _reward(row), str(row["seed"])]
    cells = [*map(html.escape, texts), f'<a href="{_link(row)}">{html.escape(row["uid"])}</a>']
    return f'<tr class="{row["outcome"]}">' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _link(row: Row) -> str:
    return html.escape(urllib.parse.quote(f"{VIDEOS_FOLDER}/{row['video']}"))


def _reward(row: Row) -> str:
    return "" if row["reward"] is None else f"{row['reward']:.3f}"


def _rollouts(folder: Path) -> str:
    """The newest rollouts, failures first."""
    steps = steps_of(folder)
    if not steps:
        return ""
    rows = newest_failures_first(read_rollouts(folder, step=steps[-1]))[:_ROLLOUTS_SHOWN]
    note = "<p class=note>All of them: <code>python -m siirl.report RUN --rollouts</code>.</p>"
    return f"<h2>Rollouts of step {steps[-1]}</h2>" + "".join(map(_rollout, rows)) + note


def _rollout(row: Row) -> str:
    said = "".join(f"<p><b>{html.escape(role)}</b></p><pre>{html.escape(text)}</pre>" for role, text in chat(row))
    foot = f"<p class=note>{html.escape(footnote(row))}</p>"
    return f'<details class="{outcome(row)}"><summary>{html.escape(headline(row))}</summary>{said}{foot}</details>'


def _file(path: Path, title: str) -> str:
    return f"<details><summary>{title}</summary><pre>{html.escape(path.read_text())}</pre></details>" if path.is_file() else ""


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>{style}</style></head>
<body>
{body}
</body></html>
"""
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1100px; padding: 0 1rem; color: #222; background: #fff }
table + table { margin-top: 1rem }
h1 small { font-weight: normal; color: #777; font-size: 60% }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid #ddd }
tr.all td { font-weight: 600 }
.note, figcaption { color: #666; font-size: 85% }
.notice { border: 2px solid #c77700; padding: .5rem .8rem; font-weight: 600 }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(320px, 1fr)); gap: 1rem }
figure { margin: 0 } figure svg, figure video { width: 100%; height: auto }
figure.fail figcaption, tr.fail td:nth-child(4) { color: #b3261e } figure.success figcaption, tr.success td:nth-child(4) { color: #1a7f37 }
details.fail summary { color: #b3261e } details.success summary { color: #1a7f37 }
details.fail, details.success { margin: .4rem 0 } pre { white-space: pre-wrap }
details { margin: 1.2rem 0 } summary { cursor: pointer; font-weight: 600 } pre { overflow-x: auto; background: #f5f5f5; padding: .8rem }
"""
