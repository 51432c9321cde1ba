"""A few named trials of `benchmarks.fault_fuzz`, the drawing of trials, and the detection of wrong
ends.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.fault_fuzz import (
    Trial,
    draw,
    earlier_rows,
    run_trial,
    table,
    wrong_ends,
    wrong_results,
)
from benchmarks.fault_jobs import Command, Job, Reference, References
from benchmarks.fault_kinds import FAULTS

TRIALS = {
    "a command that is killed": Trial(0, "driver killed", Job("gymnasium"), 0.8, "test"),
    "an interrupt while a simulator works": Trial(1, "SIGINT", Job("metaworld"), 0.7, "test"),
    "a killed writer": Trial(2, "killed while writing", Job("math"), 0.7, "test"),
    "a checkpoint that was cut off": Trial(3, "checkpoint truncated", Job("sandbox"), 0.5, "test"),
    "a run folder that can only be read": Trial(
        4, "checkpoint read-only", Job("gymnasium"), 0.5, "test"
    ),
    "one of two ranks killed": Trial(
        5, "rank killed", Job("gymnasium", cluster="ray", ranks=2), 0.9, "test"
    ),
}


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(tmp_path_factory.mktemp("references") / "runs")


@pytest.mark.slow  # three whole runs
@pytest.mark.parametrize("trial", TRIALS.values(), ids=TRIALS)
def test_a_trial_ends_right(tmp_path: Path, references: References, trial: Trial) -> None:
    outcome = run_trial(trial, tmp_path, references)
    if outcome.how.startswith("skipped"):
        pytest.skip(outcome.how)
    assert outcome.wrong == (), outcome.how


def test_four_trials_a_fault_have_every_job_and_cluster() -> None:
    trials = [draw(number, seed=0) for number in range(4 * len(FAULTS))]
    assert Counter(trial.kind for trial in trials) == dict.fromkeys(FAULTS, 4)
    assert {trial.job.name for trial in trials} == {"gymnasium", "math", "metaworld", "sandbox"}
    assert {(trial.job.cluster, trial.job.ranks) for trial in trials} == {
        ("local", 1),
        ("ray", 1),
        ("ray", 2),
    }
    assert all(0 < trial.share < 1 for trial in trials)


def test_a_trial_is_the_same_whenever_it_is_drawn() -> None:
    assert draw(17, seed=3) == draw(17, seed=3)
    assert draw(17, seed=3) != draw(17, seed=4)


class Ended(Command):
    """A command that has written a text and ended."""

    def __init__(self, folder: Path, text: str) -> None:
        self.log = folder / "text"
        self.log.write_text(text)
        self.process = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
        self.process.wait()


def test_a_sentence_with_the_line_to_resume_is_right(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest").touch()
    said = (
        f"  run folder  {tmp_path}\n1/6\nsiirl: the run failed: x\nThe last checkpoint is "
        f"y\nResume with the same command and trainer.resume={tmp_path}\n"
    )
    assert wrong_ends(Ended(tmp_path, said), 1, frozenset({1})) == []
    (wrong,) = wrong_ends(Ended(tmp_path, said + "(raylet) more\n"), 1, frozenset({1}))
    assert wrong.startswith("the last line is not")


@pytest.mark.parametrize(
    ("text", "status", "wrong"),
    [
        ("", None, "still running after 1200 s"),
        ("Plan\n", 1, "no sentence"),
        ("siirl: interrupted\n", 3, "status 3, not [0, 1]"),
        ("Traceback (most recent call last):\nsiirl: the run failed\n", 1, "a traceback"),
        ("Plan\n", -15, "status -15, not [0, 1]"),
    ],
)
def test_a_wrong_end_is_named(tmp_path: Path, text: str, status: int | None, wrong: str) -> None:
    assert wrong_ends(Ended(tmp_path, text), status, frozenset({1})) == [wrong]


def test_a_signal_before_python_has_begun_may_end_it_without_a_message(tmp_path: Path) -> None:
    assert wrong_ends(Ended(tmp_path, ""), -15, frozenset({143})) == []
    assert wrong_ends(Ended(tmp_path, "Plan\n"), -15, frozenset({143})) == [
        "status -15, not [0, 143]"
    ]


def test_a_run_that_never_got_to_its_end_is_wrong(tmp_path: Path) -> None:
    assert wrong_results(tmp_path, Reference(digests={}, seconds=1.0)) == [
        "no run got to its last step"
    ]


def test_trials_of_an_earlier_measurement_stay_with_their_revision(tmp_path: Path) -> None:
    result = {"machine": {"revision": "a1"}, "rows": [{"trial": 3}, {"trial": 4, "revision": "b2"}]}
    (tmp_path / "rows.json").write_text(json.dumps(result))
    assert earlier_rows(tmp_path / "none.json") == {}
    assert earlier_rows(tmp_path / "rows.json") == {
        3: {"trial": 3, "revision": "a1"},
        4: {"trial": 4, "revision": "b2"},
    }


def test_the_table_counts_ends_and_names_what_was_wrong() -> None:
    row = {
        "kind": "GCS killed",
        "job": "math, ray, 1 rank",
        "share": 0.5,
        "verdict": "right",
        "how": "finished equal",
        "revision": "a1",
    }
    wrong = row | {
        "revision": "b2",
        "trial": 9,
        "verdict": "wrong",
        "wrong": ["a traceback"],
        "folder": "trial_009",
    }
    told = table([row, row, wrong])
    assert "| GCS killed | 3 | 2 | finished equal (2) |" in told
    assert "2 of 3 right." in told
    assert "Revisions: a1 (2); b2 (1)." in told
    assert (
        "- Trial 9, GCS killed, math, ray, 1 rank, at 0.5: a traceback (folder trial_009)" in told
    )
