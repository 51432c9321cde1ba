"""Console output of a run: one table row per step above a progress bar, and success tables.

Rows and the lines below them fit the console's width: that of the terminal, or 80 columns in a log
file, unless COLUMNS is set. Left out: all other metrics, which metrics.jsonl and TensorBoard
record.
"""

import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from siirl.reporting.metrics import Reduced
from siirl.reporting.numbers import NUMBER_WIDTH, number, percent
from siirl.reporting.progress import Heartbeat, Progress, duration
from siirl.reporting.sentinels import dropped_trajectories
from siirl.reporting.stage_times import EVALUATION, STEP, stage_of
from siirl.reporting.statistics import (
    MeanInterval,
    SuccessInterval,
    all_last,
    evaluations,
    mean_scores,
    success_interval,
)
from siirl.terminal.printable import printable

_HEADER_EVERY = 20  # rows: about one screen
_STAGES_SHOWN = 5
_STAGE_SHARE = 0.01  # stages below this share of a step do not explain its time
PERTURBATION_HEADERS = {
    "object_pose": "object\npose",
    "instruction": "instruc-\ntion",
    "distractors": "distrac-\ntors",
    "together": "all\nthese",
}
"""Two-line headers of long names."""
_STEP_WIDTH = 10
_TIME_LEFT = "time left"
_WHOLE_COLUMNS = 2  # intervals with counts that fit into 80 columns beside a folded name
_INDENT = " " * (_STEP_WIDTH + 2)  # indent of the lines below a row


@dataclass(frozen=True)
class TableColumn:
    """A column of the table: title, metric, and number format."""

    title: str
    metric: str
    form: Callable[[float], str]
    steady: bool = False
    """Whether a job logs the metric either in every step or never; the column is omitted if the
    first step lacks it."""

    @property
    def width(self) -> int:
        """Characters of title and cells, with a space before them."""
        return 1 + max(len(self.title), len("100 %") if self.form is percent else NUMBER_WIDTH)

    def cell(self, metrics: Mapping[str, Reduced]) -> str:
        """The formatted value, or a dash if the step has none."""
        value = metrics.get(self.metric)
        return self.form(value) if isinstance(value, float) and value == value else "-"  # not NaN


_UPDATE = (
    TableColumn("KL", "actor/ppo_kl", number),
    TableColumn("entropy", "actor/entropy", number),
    TableColumn("clipped", "actor/pg_clipfrac", percent),
    TableColumn("gradient", "actor/grad_norm", number),
)
# In order of importance: a narrow terminal shows only the first ones.
EMBODIED_COLUMNS = (
    TableColumn("success", "rollout/success_rate", percent, steady=True),
    TableColumn("reward", "reward/mean_score", number),
    TableColumn("clusters", "reward/clusters", number, steady=True),
    *_UPDATE,
    TableColumn("steps/s", "env/steps_per_s", number),
    TableColumn("calls/s", "policy/calls_per_s", number),
    TableColumn("sim busy", "env/busy_share", percent),
    TableColumn("pol busy", "policy/busy_share", percent),
)
# A segment's reward is of a part of an episode, so the return of whole ones is shown.
SEGMENT_COLUMNS = (
    EMBODIED_COLUMNS[0],
    TableColumn("return", "rollout/return", number),
    *EMBODIED_COLUMNS[3:],
)
TEXT_COLUMNS = (
    TableColumn("success", "rollout/success_rate", percent, steady=True),
    TableColumn("reward", "reward/mean_score", number),
    TableColumn("length", "rollout/avg_response_length", number),
    TableColumn("cut off", "rollout/truncated_share", percent),
    *_UPDATE,
    TableColumn("tokens/s", "rollout/tokens_per_s", number),
)


class ConsoleWriter:
    """Prints one row and one line of stage times per step, above a progress bar.

    Args:
        total_steps: Last step; None if only the time limit ends the run.
        limit_s: Time limit of the run in seconds.
        first_step: First step of this process; steps count from 1, and step 0 is the evaluation
            before training.
        columns: Columns of the job; steady ones that the first step lacks are left out.
        console: Output; by default stdout.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self,
        *,
        total_steps: int | None,
        limit_s: float | None = None,
        first_step: int = 1,
        columns: Sequence[TableColumn] = EMBODIED_COLUMNS,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.progress = Progress(
            "training",
            total_steps,
            done=max(0, first_step - 1),
            limit_s=limit_s,
            console=console,
            lines=False,
            clock=clock,
        )
        self.progress.__enter__()
        self._columns = columns
        self._rows = 0
        self._heartbeat = Heartbeat(self.progress)

    def write(self, *, step: int, metrics: Mapping[str, Reduced]) -> None:
        """Print the metrics of `step`."""
        room = self.progress.console.width - len(_INDENT)
        lines = [no_update_line(metrics), stage_line(metrics, room=room), evaluation_line(metrics)]
        if step == 0:
            self.progress.restart_clock()
        else:
            self._row(step, metrics)
            lines += [first_estimate(self.progress.seconds_left())] if self._rows == 1 else []
        for line in filter(None, lines):
            self._below(line)

    def _row(self, step: int, metrics: Mapping[str, Reduced]) -> None:
        self.progress.advance(step - self.progress.done)
        if self._rows == 0:
            self._columns = self._shown(metrics)
        if self._rows % _HEADER_EVERY == 0:
            titles = [column.title.rjust(column.width) for column in self._columns]
            self.progress.print(
                "".join(["step".rjust(_STEP_WIDTH), *titles, *self._if_log(_TIME_LEFT)])
            )
        self._rows += 1
        cells = [column.cell(metrics).rjust(column.width) for column in self._columns]
        left = duration(self.progress.seconds_left())
        self.progress.print(
            "".join([self.progress.count().rjust(_STEP_WIDTH), *cells, *self._if_log(left)])
        )

    def _below(self, line: str) -> None:
        """Print a line below the row; a longer one has a hanging indent, and names stay whole."""
        wrapped = textwrap.wrap(
            line,
            self.progress.console.width,
            initial_indent=_INDENT,
            subsequent_indent=_INDENT + "  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for part in wrapped:
            self.progress.print(part)

    def _if_log(self, text: str) -> list[str]:
        """The cell of the time left; none if a progress bar shows it."""
        return [] if self.progress.console.is_terminal else [text.rjust(1 + len(_TIME_LEFT))]

    def _shown(self, metrics: Mapping[str, Reduced]) -> Sequence[TableColumn]:
        """The columns for which there is room and, of steady ones, a value."""
        there = [c for c in self._columns if not c.steady or c.metric in metrics]
        room = self.progress.console.width - _STEP_WIDTH - sum(map(len, self._if_log("")))
        ends = list(accumulate(column.width for column in there))
        return there[: max(1, sum(end <= room for end in ends))]

    def close(self) -> None:
        """Remove the bar; may be called twice."""
        self._heartbeat.close()
        self.progress.__exit__(None, None, None)


def first_estimate(seconds_left: float | None) -> str:
    """Remaining time of training, after its first step; empty if it is unknown or under a
    second.
    """
    if seconds_left is None or seconds_left < 1:
        return ""
    minutes = round(seconds_left / 60)
    unit = "minute" if minutes == 1 else "minutes"
    left = f"about {minutes} {unit}" if minutes else "less than a minute"
    return f"{left} of training left, measured over the first step"


def no_update_line(metrics: Mapping[str, Reduced]) -> str:
    """Reason why a step did not update the policy; empty if it did."""
    if metrics.get("actor/updates") != 0.0:
        return ""
    if metrics.get("critic/warmup"):
        return "Policy not updated: critic warm-up (trainer.critic_warmup)"
    if metrics.get("actor/skipped_updates"):
        return "Policy not updated: gradients were not finite"
    dropped = dropped_trajectories(metrics)
    reasons = ", ".join(
        f"{count:.0f} dropped: {reason.replace('_', ' ')}" for reason, count in dropped.items()
    )
    rewards = metrics.get("reward/score")
    cause = "no trajectory with an advantage was left"
    if rewards != [] and not metrics.get("advantage/abs_mean") and not dropped.get("by_filter"):
        cause = "rewards within each group were identical"
        if "critic/updates" in metrics:
            cause = "every advantage was 0, as that of a single decision after whitening"
            if isinstance(rewards, list) and len(rewards) > 1 and len(set(rewards)) == 1:
                cause = f"every advantage was 0, because every reward was {number(rewards[0])}"
    return f"Policy not updated: {cause}" + (f" ({reasons})" if reasons else "")


def stage_line(metrics: Mapping[str, Reduced], *, room: int = 80) -> str:
    """Seconds of the slowest stages, slowest first, and of an evaluation after the step; empty
    without `time/<node>_s`.

    Has as many stages as fit into `room` characters, at least one.
    """
    seconds = {stage: metrics[name] for name in metrics if (stage := stage_of(name))}
    total, evaluation = metrics.get(STEP), metrics.get(EVALUATION)
    tail = f"evaluation {number(evaluation)} s" if isinstance(evaluation, float) else ""
    least = _STAGE_SHARE * total if isinstance(total, float) else 0.0
    slowest = sorted(
        ((value, stage) for stage, value in seconds.items() if isinstance(value, float)),
        reverse=True,
    )[:_STAGES_SHOWN]
    parts = [f"{stage} {number(value)}" for value, stage in slowest if value >= least]
    if not parts:
        return tail
    tail = tail and f"; {tail}"
    head = f"{number(total)} s: " if isinstance(total, float) else "seconds: "
    ends = accumulate(len(part) + len(", ") for part in parts)
    fitting = sum(len(head) + end - len(", ") + len(tail) <= room for end in ends)
    return head + ", ".join(parts[: max(1, fitting)]) + tail


def evaluation_line(metrics: Mapping[str, Reduced]) -> str:
    """Held-out success over all tasks, or of the only one; empty without evaluation.

    Adds the mean reward if some rows have no grade; shows the mean return if the environment
    reports no success.
    """
    rates = evaluations(metrics)
    scores = mean_scores(metrics)
    mean_return = metrics.get("val/all/return")
    parts = [f"held out, {name}: {rate}" for name, rate in list(rates.items())[-1:]]
    parts += [f"held out, {name}: mean reward {score}" for name, score in list(scores.items())[-1:]]
    if not parts and isinstance(mean_return, float):
        parts = [f"held out, all: mean return {mean_return:.1f}"]
    return "; ".join(parts)


def interval_table(
    title: str, columns: Mapping[str, Mapping[str, SuccessInterval | MeanInterval]]
) -> Table:
    """Table of success or mean reward: one row per task, one column per measurement.

    `columns` is, for example, {"before": {...}, "after": {...}}.
    """
    table = narrow_table(title)
    for name in columns:
        table.add_column(name, no_wrap=len(columns) <= _WHOLE_COLUMNS)
    tasks = dict.fromkeys(task for measured in columns.values() for task in measured)
    for task in sorted(tasks, key=all_last):
        table.add_row(cell(task), *(str(measured.get(task, "-")) for measured in columns.values()))
    return table


def perturbation_table(title: str, columns: Mapping[str, Mapping[str, SuccessInterval]]) -> Table:
    """Success per task under each perturbation, with intervals of all tasks together.

    Narrow enough for 80 columns with all perturbations of `envs.perturbations`.
    """
    table = narrow_table(title, padding=0)
    for name in columns:
        table.add_column(PERTURBATION_HEADERS.get(name, name), justify="right", no_wrap=True)
    tasks = dict.fromkeys(task for found in columns.values() for task in found)
    for task in sorted(tasks, key=all_last):
        intervals = [found.get(task) for found in columns.values()]
        rates = [
            f"{interval.rate:.0%}" if interval is not None and interval.episodes else "-"
            for interval in intervals
        ]
        table.add_row(cell(task), *rates)
        if task == "all":
            bounds = [
                f"{100 * interval.low:.0f}-{100 * interval.high:.0f}" if interval else ""
                for interval in intervals
            ]
            table.add_row("95 % interval", *bounds)
    return table


def narrow_table(title: str, *, first: str = "task", padding: int = 1) -> Table:
    """Table without frames, for 80 columns; cells of its first column are folded, never cut."""
    table = Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, padding, 0, 0),
        pad_edge=False,
    )
    table.add_column(first, overflow="fold")
    return table


def tasks_below_others(after: Mapping[str, SuccessInterval]) -> list[str]:
    """A sentence for each task whose interval lies below that of the other tasks together."""
    tasks = {name: rate for name, rate in after.items() if name != "all" and rate.episodes}
    found = []
    for name, rate in tasks.items():
        others = [other for task, other in tasks.items() if task != name]
        together = success_interval(
            sum(other.successes for other in others), sum(other.episodes for other in others)
        )
        if others and rate.high < together.low:
            found.append(f"{name} ends below the other tasks: {rate} against {together}")
    return found


def cell(text: str) -> str:
    """Foreign text, escaped for a table cell."""
    return escape(printable(text, keep=""))
