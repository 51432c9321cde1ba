"""The runner: one row per check, also if its process dies."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from siirl.gpu_checks.check import Check, Row, late
from siirl.gpu_checks.check_runner import ALLOCATOR, CheckWorker, run_checks


def check(name: str, needs: tuple[str, ...] = ()) -> Check:
    return Check(name, "what", f"tests.gpu_checks.trials:{name}", 60.0, needs=needs)


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    names = ("cannot", "dies", "raises", "disagrees", "fine")
    checks = [check("absent", needs=("no_such_package",)), *map(check, names)]
    return {row.name: row for row in run_checks(checks, minutes=8, apart=False)}


def test_a_crash_is_a_failed_row_that_keeps_its_figures(rows: dict[str, Row]) -> None:
    row = rows["dies"]
    assert (row.status, row.reason) == ("failed", "its process was killed by SIGSEGV")
    assert row.figures == {"so_far": 1}


def test_the_checks_after_a_crash_continue(rows: dict[str, Row]) -> None:
    assert rows["fine"].status == "OK"
    assert rows["fine"].figures == {"answer": 42}


def test_an_error_is_the_reason_of_a_failed_row(rows: dict[str, Row]) -> None:
    assert rows["raises"].status == "failed"
    assert rows["raises"].reason == "RuntimeError: CUDA error: out of memory"


def test_a_verdict_is_the_reason_of_a_failed_row(rows: dict[str, Row]) -> None:
    assert (rows["disagrees"].status, rows["disagrees"].reason) == ("failed", "1 is not 2")


def test_what_the_machine_lacks_is_a_skipped_row(rows: dict[str, Row]) -> None:
    assert (rows["cannot"].status, rows["cannot"].reason) == (
        "skipped",
        "one GPU, and it needs two",
    )


def test_a_missing_package_is_named(rows: dict[str, Row]) -> None:
    assert (rows["absent"].status, rows["absent"].reason) == (
        "skipped",
        "not installed: no_such_package",
    )


def test_a_check_that_does_not_end_is_killed_and_keeps_its_figures() -> None:
    worker = CheckWorker()
    assert worker.run(check("fine"), seconds=600).status == "OK"  # the process has imported torch
    row = worker.run(check("sleeps"), seconds=5)
    assert row.status == "failed"
    assert row.reason == (
        "did not end within 5 s. It hangs, or this machine is slow: give it more time with --only "
        "sleeps --minutes 1"
    )
    assert row.figures == {"so_far": 1}


def test_a_killed_check_leaves_no_files_no_shared_memory_and_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    row = CheckWorker().run(check("leaves_files"), seconds=600)
    assert row.reason == "its process was killed by SIGKILL"
    assert Path(row.figures["folder"]).is_relative_to(tmp_path)
    assert not any(tmp_path.glob("siirl-*"))
    assert not Path("/dev/shm", row.figures["memory"]).exists()
    assert not any(map(runs, row.figures["pids"]))


def runs(pid: int) -> bool:
    """Whether a process exists and has not ended; the words of an ended one are empty."""
    words = Path("/proc", str(pid), "cmdline")
    return words.exists() and words.read_bytes() != b""


def test_a_check_is_told_the_time_at_which_it_is_killed() -> None:
    """Of two checks of 240 s in four minutes, each has 120 s, and the second what the first leaves."""
    function = "tests.gpu_checks.trials:tells_what_is_left"
    checks = [Check(name, "what", function, 240.0) for name in ("one", "other")]
    one, other = (row.figures["left_s"] for row in run_checks(checks, minutes=4, apart=False))
    assert 0 < one < 120 < other < 240


@pytest.mark.parametrize("forced", [False, True])
def test_a_check_is_told_whether_a_group_is_forced(forced: bool) -> None:
    checks = [check("tells_whether_a_group_is_forced")]
    [row] = run_checks(checks, minutes=8, apart=False, force_group=forced)
    assert row.figures == {"forced": forced}


@pytest.mark.parametrize(
    ("shares", "chosen", "expected"),
    [
        (False, None, "expandable_segments:True"),
        (True, None, None),
        (True, "expandable_segments:True", "expandable_segments:True"),
    ],
)
def test_memory_that_another_process_maps_is_not_in_expandable_segments_unless_chosen(
    shares: bool, chosen: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ALLOCATOR, raising=False)
    if chosen is not None:
        monkeypatch.setenv(ALLOCATOR, chosen)
    checked = replace(check("tells_the_allocator_setting"), shares_memory=shares)
    [row] = run_checks([checked], minutes=8, apart=True)
    assert row.figures == {"setting": expected}


def test_nothing_starts_when_the_budget_is_spent() -> None:
    [row] = run_checks([check("sleeps")], minutes=0.01, apart=True)
    assert (row.status, row.reason) == ("skipped", "the time budget is spent (--minutes)")


@pytest.fixture
def granted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time limits of the checks, none of which runs."""
    limits: list[float] = []

    def run(self: CheckWorker, check: Check, *, seconds: float) -> Row:
        limits.append(seconds)
        return Row(check.name, "what", "OK")

    monkeypatch.setattr(CheckWorker, "run", run)
    return limits


def test_a_few_checks_share_a_small_budget(granted: list[float]) -> None:
    list(run_checks([check("fine")], minutes=2, apart=True))
    assert granted == [pytest.approx(120, abs=1)]  # two of eight minutes would be 15


def test_a_check_with_a_small_share_gets_half_a_minute_while_the_budget_lasts(
    granted: list[float],
) -> None:
    small, large = (replace(check("fine"), at_most_s=seconds) for seconds in (10.0, 7200.0))
    list(run_checks([small, large], minutes=1, apart=True))
    assert granted == [pytest.approx(30, abs=1), pytest.approx(60, abs=1)]


@pytest.mark.parametrize("seconds", [5.0, 33.0, 75.0])
def test_the_remedy_of_a_late_check_allows_it_twice_the_time(
    seconds: float, granted: list[float]
) -> None:
    minutes = float(late("", "fine", seconds).rpartition(" ")[2])
    list(run_checks([check("fine")], minutes=minutes, apart=True))
    assert granted[0] > 2 * seconds - 1


def test_no_checks_have_no_rows() -> None:
    assert list(run_checks([], minutes=1, apart=True)) == []
