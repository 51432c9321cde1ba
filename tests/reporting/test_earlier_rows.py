"""A resumed run begins with the metrics of the run that it continues."""

import json
from pathlib import Path

import pytest

from siirl.report import main
from siirl.reporting.earlier_rows import earlier_rows
from siirl.reporting.report_page import write_report


def write_run(folder: Path, steps: dict[int, int], *, resumed: Path | None = None) -> Path:
    """A run with successes of ten held-out episodes by step."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        json.dumps({"trainer": {"resume": resumed and str(resumed)}})
    )
    rows = [
        {"step": step, "val/all/successes": float(found), "val/all/episodes": 10.0}
        for step, found in steps.items()
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def steps_of(rows: list[dict]) -> list[int]:
    return [row["step"] for row in rows]


def test_rows_after_the_checkpoint_are_left_out(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a" / "1", {0: 2, 1: 3, 2: 9})
    checkpoint = first / "checkpoints" / "step_00000001"
    second = write_run(tmp_path / "a" / "2", {2: 4, 3: 5}, resumed=checkpoint)
    assert steps_of(earlier_rows(second, before=2)) == [0, 1]


def test_a_run_that_resumed_a_resumed_run_begins_with_the_first(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a" / "1", {0: 2, 1: 3})
    second = write_run(tmp_path / "a" / "2", {2: 4, 3: 4}, resumed=first)
    third = write_run(
        tmp_path / "a" / "3", {4: 8}, resumed=second / "checkpoints" / "step_00000003"
    )
    assert steps_of(earlier_rows(third, before=4)) == [0, 1, 2, 3]


@pytest.mark.parametrize("resumed", [None, Path("gone"), Path("gone/checkpoints/step_00000001")])
def test_a_new_run_and_one_whose_earlier_run_is_gone_have_none(
    tmp_path: Path, resumed: Path | None
) -> None:
    assert earlier_rows(write_run(tmp_path / "a", {2: 4}, resumed=resumed), before=2) == []


def test_a_run_that_names_itself_ends(tmp_path: Path) -> None:
    run = tmp_path / "a"
    assert earlier_rows(write_run(run, {2: 4}, resumed=run), before=2) == []


def test_the_page_and_the_curves_of_a_resumed_run_begin_at_step_0(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a" / "1", {0: 2, 1: 3})
    second = write_run(tmp_path / "b" / "2", {2: 9}, resumed=first)
    page = write_report(second).read_text()
    assert "<th>step 0</th><th>step 2</th>" in page
    assert "+70.0 points" in page
    assert main([str(second), "--export", str(tmp_path / "curves.csv")]) == 0
    rows = (tmp_path / "curves.csv").read_text().splitlines()[1:]
    assert [row.split(",")[1] for row in rows] == ["0", "1", "2"]
