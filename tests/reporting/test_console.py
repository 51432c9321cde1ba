"""Output of a run on a terminal and in a log file."""

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from siirl.reporting.console import (
    EMBODIED_COLUMNS,
    SEGMENT_COLUMNS,
    TEXT_COLUMNS,
    ConsoleWriter,
    TableColumn,
    evaluation_line,
    first_estimate,
    interval_table,
    no_update_line,
    stage_line,
    tasks_below_others,
)
from siirl.reporting.progress import Progress, duration
from siirl.reporting.statistics import success_interval


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def log_file(*, width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width)


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=True)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_log_file_gets_whole_lines_without_control_characters() -> None:
    console = log_file()
    writer = ConsoleWriter(total_steps=2, console=console)
    writer.write(
        step=1,
        metrics={"rollout/success_rate": 0.25, "policy/busy_share": 0.5, "time/generate_s": 2.0},
    )
    writer.close()
    header, row, stages = text_of(console).splitlines()
    assert header.endswith("time left")
    assert row.split()[:3] == ["1/2", "25", "%"]
    assert row.split()[-1] == "0:00"
    assert len(row) == len(header)
    assert stages.strip() == "seconds: generate 2"
    assert "\x1b" not in text_of(console)


def test_a_step_without_a_metric_shows_a_dash() -> None:
    assert {column.cell({}) for column in EMBODIED_COLUMNS} == {"-"}
    assert EMBODIED_COLUMNS[0].cell({"rollout/success_rate": float("nan")}) == "-"


def test_columns_do_not_touch_however_small_a_number_is() -> None:
    columns = (*EMBODIED_COLUMNS, *TEXT_COLUMNS)
    assert EMBODIED_COLUMNS[3].cell({"actor/ppo_kl": -8.04e-09}) == "-8.0e-09"
    for value in (-8.04e-09, 1.0):
        assert all(len(column.cell({column.metric: value})) < column.width for column in columns)


def test_a_text_job_has_no_columns_of_simulators() -> None:
    console = log_file(width=120)
    writer = ConsoleWriter(total_steps=1, columns=TEXT_COLUMNS, console=console)
    writer.write(step=1, metrics={"rollout/success_rate": 0.5, "env/busy_share": 0.5})
    writer.close()
    header = text_of(console).splitlines()[0]
    assert "tokens/s" in header
    assert not [name for name in ("clusters", "sim busy", "steps/s") if name in header]


def test_a_job_without_clusters_has_no_column_for_them() -> None:
    for metrics, there in (({}, False), ({"reward/clusters": 2.0}, True)):
        console = log_file()
        writer = ConsoleWriter(total_steps=1, console=console)
        writer.write(step=1, metrics=metrics)
        writer.close()
        assert ("clusters" in text_of(console)) == there


def test_a_silent_minute_in_a_log_file_gets_a_line() -> None:
    clock, console = Clock(), log_file()
    progress = Progress("training", 40, done=3, console=console, clock=clock)
    progress.activity("step 4")
    clock.now = 59.0
    progress.beat()
    clock.now = 61.0
    progress.beat()
    clock.now = 90.0
    progress.beat()
    assert text_of(console).splitlines() == ["      3/40  step 4, 1:01 since the last line"]


def test_only_the_first_step_prints_the_duration_of_training() -> None:
    clock, console = Clock(), log_file()
    writer = ConsoleWriter(total_steps=21, console=console, clock=clock)
    writer.write(step=0, metrics={})
    for step in (1, 2):
        clock.now += 30.0
        writer.write(step=step, metrics={"rollout/success_rate": 0.5})
    writer.close()
    said = "about 10 minutes of training left, measured over the first step"
    assert [line.strip() for line in text_of(console).splitlines()].count(said) == 1
    assert text_of(console).count("measured over") == 1
    assert first_estimate(29.0).startswith("less than a minute of")
    assert first_estimate(61.0).startswith("about 1 minute of")
    assert first_estimate(None) == first_estimate(0.0) == ""


def test_a_task_that_ends_below_the_others_is_named() -> None:
    rates = {"a": success_interval(60, 100), "b": success_interval(98, 100)}
    rates |= {"c": success_interval(97, 100), "all": success_interval(255, 300)}
    (sentence,) = tasks_below_others(rates)
    assert sentence.startswith("a ends below the other tasks: 60.0 % [50.2, 69.1] (60/100)")


def test_tasks_with_intervals_that_overlap_are_not_named() -> None:
    assert tasks_below_others({"a": success_interval(5, 10), "b": success_interval(8, 10)}) == []
    assert tasks_below_others({"a": success_interval(0, 10), "all": success_interval(0, 10)}) == []


LONG = {
    "rollout/success_rate": 1.0,
    "reward/mean_score": -1.2e-05,
    "reward/clusters": -1.2e-05,
    "actor/updates": 0.0,
    "sampling/dropped_all_success": 1024.0,
    "sampling/dropped_all_failure": 1024.0,
    **{f"time/a_stage_with_a_long_name_{index}_s": 1234.5 for index in range(9)},
    "time/step_s": 12345.0,
    "val/all/successes": 1234.0,
    "val/all/episodes": 12340.0,
    "val/all/mean_score": -1.2e-05,
    "val/all/scored_episodes": 12340.0,
}


@pytest.mark.parametrize("columns", [EMBODIED_COLUMNS, SEGMENT_COLUMNS, TEXT_COLUMNS])
def test_the_lines_of_a_step_fit_80_columns(columns: Sequence[TableColumn]) -> None:
    for console in (log_file(), terminal(80)):
        writer = ConsoleWriter(total_steps=1000, columns=columns, console=console)
        writer.progress.__exit__(None, None, None)  # the bar's own lines are not rows
        writer.write(step=1000, metrics=LONG)
        writer.close()
        lines = [line for line in text_of(console).splitlines() if "\x1b" not in line]
        assert lines[-1].strip() == "reward -1.2e-05 (n=12340)"  # hanging
        assert max(map(len, lines)) <= 80


def test_a_wide_terminal_shows_all_columns() -> None:
    for columns in (EMBODIED_COLUMNS, SEGMENT_COLUMNS, TEXT_COLUMNS):
        console = terminal(120)
        writer = ConsoleWriter(total_steps=1, columns=columns, console=console)
        writer.write(step=1, metrics=LONG)
        writer.close()
        assert all(column.title in text_of(console) for column in columns)


def test_a_name_longer_than_the_line_stays_whole() -> None:
    console, name = log_file(), "put_" * 30
    writer = ConsoleWriter(total_steps=1, console=console)
    writer.write(step=0, metrics={f"val/{name}/successes": 1.0, f"val/{name}/episodes": 1.0})
    writer.close()
    assert f"{name}:" in text_of(console)


def test_an_activity_beside_the_bar_leaves_the_count_whole_and_no_step_means_no_time_left() -> None:
    console = terminal(80)
    with Progress("training", 240, limit_s=600.0, console=console) as progress:
        progress.activity("evaluating " * 12)
    shown = text_of(console)
    assert "0/240" in shown
    assert "left" not in shown  # the limit is not how long the run takes


def test_a_narrow_terminal_shows_the_first_columns() -> None:
    console = terminal(width=60)
    writer = ConsoleWriter(total_steps=1, console=console)
    writer.write(step=1, metrics={"rollout/success_rate": 0.5})
    writer.close()
    assert "success" in text_of(console)
    assert "pol busy" not in text_of(console)


def test_a_terminal_gets_its_cursor_back() -> None:
    console = terminal(width=120)
    writer = ConsoleWriter(total_steps=1, console=console)
    writer.write(step=1, metrics={})
    writer.close()
    writer.close()
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    assert text_of(console).rindex(shown) > text_of(console).rindex(hidden)


def test_the_measurement_before_training_is_not_a_step() -> None:
    console = log_file()
    writer = ConsoleWriter(total_steps=2, console=console)
    writer.write(step=0, metrics={"val/all/successes": 3.0, "val/all/episodes": 4.0})
    writer.close()
    assert text_of(console).strip() == "held out, all: 75.0 % [30.1, 95.4] (3/4)"


NOTHING_LEFT = {
    "actor/updates": 0.0,
    "actor/skipped_updates": 0.0,
    "sampling/dropped_all_success": 8.0,
    "sampling/dropped_alone_in_group": 0.0,
}


def test_a_step_without_an_update_has_the_reason_below_its_dashes() -> None:
    console = log_file()
    writer = ConsoleWriter(total_steps=1, console=console)
    writer.write(step=1, metrics=NOTHING_LEFT)
    writer.close()
    _, row, *reason = text_of(console).splitlines()
    assert row.split()[1:3] == ["-", "-"]
    assert (
        " ".join(line.strip() for line in reason)
        == "Policy not updated: rewards within each group were identical (8 dropped: all success)"
    )


@pytest.mark.parametrize(
    ("metrics", "line"),
    [
        ({}, ""),
        ({"actor/updates": 4.0, "sampling/dropped_all_success": 8.0}, ""),
        ({"actor/updates": 0.0}, "Policy not updated: rewards within each group were identical"),
        (
            {"actor/updates": 0.0, "critic/updates": 1.0, "advantage/abs_mean": 0.0},
            "Policy not updated: every advantage was 0, as that of a single decision after "
            "whitening",
        ),
        (
            {
                "actor/updates": 0.0,
                "critic/updates": 1.0,
                "reward/score": [0.0, 0.0],
                "advantage/abs_mean": 0.0,
            },
            "Policy not updated: every advantage was 0, because every reward was 0",
        ),
        (
            {"actor/updates": 0.0, "reward/score": [0.0, 0.0], "advantage/abs_mean": 0.0},
            "Policy not updated: rewards within each group were identical",
        ),
        (
            {"actor/updates": 0.0, "reward/score": [0.0, 1.0], "sampling/dropped_by_filter": 2.0},
            "Policy not updated: no trajectory with an advantage was left (2 dropped: by filter)",
        ),
        (
            {"actor/updates": 0.0, "reward/score": []},
            "Policy not updated: no trajectory with an advantage was left",
        ),
        (
            {"actor/updates": 0.0, "reward/score": [0.0, 1.0], "advantage/abs_mean": 0.5},
            "Policy not updated: no trajectory with an advantage was left",
        ),
        (
            {"actor/updates": 0.0, "actor/skipped_updates": 2.0},
            "Policy not updated: gradients were not finite",
        ),
        (
            {"actor/updates": 0.0, "critic/warmup": 1.0},
            "Policy not updated: critic warm-up (trainer.critic_warmup)",
        ),
    ],
)
def test_reasons_for_no_update(metrics: dict[str, float], line: str) -> None:
    assert no_update_line(metrics) == line


def test_stage_times_are_sorted_and_the_step_comes_first() -> None:
    assert stage_line({"time/a_s": 1.0, "time/b_s": 2.5, "time/step_s": 3.6}) == "3.6 s: b 2.5, a 1"
    assert stage_line({}) == ""


def test_a_stage_below_a_hundredth_of_the_step_is_left_out() -> None:
    seconds = {"time/a_s": 0.009, "time/b_s": 0.9, "time/step_s": 1.0}
    assert stage_line(seconds) == "1 s: b 0.9"


def test_a_narrow_line_has_the_slowest_stages() -> None:
    seconds = {"time/a_s": 2.0, "time/b_s": 1.0, "time/step_s": 3.0}
    assert stage_line(seconds, room=len("3 s: a 2, b 1")) == "3 s: a 2, b 1"
    assert stage_line(seconds, room=len("3 s: a 2, b 1") - 1) == "3 s: a 2"


def test_a_single_task_stands_for_all() -> None:
    assert evaluation_line({"val/push/successes": 1.0, "val/push/episodes": 1.0}).startswith(
        "held out, push: 100.0 %"
    )


def test_the_return_replaces_a_success_that_is_not_reported() -> None:
    assert (
        evaluation_line({"val/Pendulum-v1/return": -862.46, "val/all/return": -862.46})
        == "held out, all: mean return -862.5"
    )
    assert evaluation_line({"rollout/return": -862.46}) == ""


def test_the_reward_is_shown_beside_success_if_some_rows_are_ungraded_and_alone_if_all_are() -> (
    None
):
    scores = {
        "val/all/mean_score": 0.25,
        "val/all/scored_episodes": 8.0,
        "val/judged/mean_score": 0.5,
        "val/judged/scored_episodes": 4.0,
    }
    graded = {"val/all/successes": 1.0, "val/all/episodes": 1.0, "val/all/return": 1.0}
    assert evaluation_line(scores) == "held out, all: mean reward 0.25 (n=8)"
    assert (
        evaluation_line(scores | graded)
        == "held out, all: 100.0 % [20.7, 100.0] (1/1); held out, all: mean reward 0.25 (n=8)"
    )


def test_the_table_has_a_row_per_task_with_all_last() -> None:
    console = log_file()
    rates = {"all": success_interval(1, 2), "push": success_interval(1, 2)}
    console.print(interval_table("Held-out success", {"before": rates, "after": {}}))
    lines = text_of(console).splitlines()
    assert [line.split()[0] for line in lines if "[" in line] == ["push", "all"]


def test_before_and_after_of_a_task_are_one_row_of_80_columns_and_a_long_name_stays_whole() -> None:
    console = log_file()
    rates = {"drawer-open": success_interval(137, 300), "z" * 30: success_interval(300, 300)}
    console.print(interval_table("Held out", {"before": rates, "after": rates}))
    lines = text_of(console).splitlines()
    assert max(map(len, lines)) <= 80
    [row] = [line for line in lines if "drawer-open" in line]
    assert row.count("45.7 % [40.1, 51.3] (137/300)") == 2
    assert sum(line[:20].count("z") for line in lines) == 30


def test_time_left_follows_the_speed_so_far() -> None:
    clock = Clock()
    progress = Progress("training", 10, console=log_file(), clock=clock)
    assert progress.time_left() == ""
    clock.now = 20.0
    progress.advance(2)
    clock.now = 25.0
    assert progress.seconds_left() == 8 * 10.0 - 5.0


def test_time_left_forgets_the_first_step_once_others_are_known() -> None:
    """The first step takes 30 s, the next two 10 s each; seven are left."""
    clock = Clock()
    progress = Progress("training", 10, console=log_file(), clock=clock)
    for clock.now in (30.0, 40.0, 50.0):
        progress.advance()
    assert progress.seconds_left() == 70.0


def test_a_resumed_run_does_not_count_what_another_process_did() -> None:
    clock = Clock()
    progress = Progress("training", 10, done=8, console=log_file(), clock=clock)
    clock.now = 10.0
    progress.advance()
    assert progress.seconds_left() == 10.0


def test_a_limit_of_time_ends_a_run_without_a_last_step() -> None:
    clock = Clock()
    progress = Progress("training", None, limit_s=60.0, console=log_file(), clock=clock)
    clock.now = 20.0
    progress.advance()
    assert (progress.count(), progress.time_left()) == ("1", "0:40 left")


def test_a_log_file_gets_a_line_at_intervals_and_at_the_end() -> None:
    clock, console = Clock(), log_file()
    with Progress("collecting", 3, console=console, clock=clock) as progress:
        progress.advance()
        clock.now = 11.0
        progress.advance()
        clock.now = 12.0
        progress.advance()
    assert text_of(console).splitlines() == [
        "collecting: 2/3, 0:11 left",
        "collecting: 3/3, 0:00 left",
    ]


def test_durations_are_minutes_and_seconds_or_hours() -> None:
    assert [duration(seconds) for seconds in (None, 42, 725, 3723)] == [
        "?",
        "0:42",
        "12:05",
        "1:02:03",
    ]


def test_names_of_tasks_and_activities_cannot_control_the_terminal() -> None:
    console = terminal(120)
    hostile = "push\x1b[2J\nv3 [/red]"
    with Progress("training", 2, console=console) as progress:
        progress.activity(hostile)
        progress.print(f"held out, {hostile}")
    console.print(interval_table("success", {"after": {hostile: success_interval(1, 2)}}))
    shown = text_of(console)
    assert "\x1b[2J" not in shown
    assert "held out, push\\x1b[2J" in shown
    assert shown.count("push\\x1b[2J\\nv3 [/red]") >= 2  # beside the bar, and in the table
