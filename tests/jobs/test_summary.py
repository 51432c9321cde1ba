"""The final lines of a run."""

from pathlib import Path

import pytest

from siirl.jobs.training_run import limit_line, show_summary, success_change
from siirl.params.training_args import TrainingArguments
from siirl.reporting.statistics import success_interval


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            126,
            222,
            "all: +32.0 points, the intervals do not overlap",
        ),  # 42.0 [36.6, 47.7] and 74.0 [68.8, 78.6]
        (126, 141, "all: +5.0 points, the intervals overlap"),
    ],
)
def test_a_gain_is_reported_with_the_overlap_of_its_intervals(
    before: int, after: int, expected: str
) -> None:
    rates = [
        {"push": success_interval(0, 75), "all": success_interval(count, 300)}
        for count in (before, after)
    ]
    assert success_change(*rates) == expected


def test_a_run_closes_with_success_before_and_after_and_where_to_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rollouts").mkdir()  # nothing was written there
    (tmp_path / "videos" / "val").mkdir(parents=True)
    (tmp_path / "videos" / "val" / "success_0.mp4").write_bytes(b"an episode")
    evaluated = [{f"val/{task}/return": 0.0 for task in ("push", "all")} for _ in range(2)]
    for metrics, successes in zip(evaluated, (10.0, 90.0), strict=True):
        for task in ("push", "all"):
            metrics |= {f"val/{task}/successes": successes, f"val/{task}/episodes": 100.0}
    show_summary(tmp_path, report=tmp_path / "report.html", evaluated=evaluated)
    told = " ".join(capsys.readouterr().out.split())
    for part in (
        "success on the same held-out episodes before and after, 95 % intervals",
        "all: +80.0 points, the intervals do not overlap",
        f"run folder {tmp_path}",
        f"videos {tmp_path / 'videos'}",
        f"report {tmp_path / 'report.html'}",
    ):
        assert part in told
    assert "rollouts" not in told


@pytest.mark.parametrize(
    ("step", "files", "limit"),
    [
        (60, False, ""),
        (24, False, "trainer.max_minutes=6 ended the run after step 24 of 60: raise it and resume"),
        (24, True, "trainer.max_minutes=6 or trainer.total_epochs=3 ended the run after step 24"),
    ],
)
def test_a_run_that_ends_before_its_last_step_names_the_limit(
    step: int, files: bool, limit: str
) -> None:
    trainer = TrainingArguments(total_steps=60, max_minutes=6, total_epochs=3)
    line = limit_line(trainer, step=step, files=files)
    assert line.startswith(limit) and bool(line) == bool(limit)


def test_a_run_without_grades_closes_with_its_reward_before_and_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated = [
        {"val/all/mean_score": mean, "val/all/scored_episodes": 4.0} for mean in (0.25, 0.75)
    ]
    show_summary(tmp_path, report=tmp_path / "report.html", evaluated=evaluated)
    told = " ".join(capsys.readouterr().out.split())
    assert "mean reward of the same held-out episodes before and after, 95 % intervals" in told
    assert "0.25 (n=4)" in told
    assert "0.75 (n=4)" in told
    assert "success" not in told
    assert "mean return" not in told
