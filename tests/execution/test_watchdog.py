"""Hangs: a computing rank must progress within the limit; a rank may wait while another works."""

import re
import threading
import time
from typing import NamedTuple

from siirl.execution.scheduler.watchdog import HangDetector
from siirl.occupation import Occupation, Snapshot

LIMIT_S = 60.0


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Word(NamedTuple):
    """A rank's report."""

    changes: int
    waiting: bool
    text: str
    silent: bool


def says(
    changes: int, *, waiting: bool = False, text: str = "computes", silent: bool = False
) -> Word:
    return Word(changes, waiting, text, silent)


def snapshot(word: Word, *, number: int) -> Snapshot:
    return Snapshot(
        text=word.text, waiting=word.waiting, changes=word.changes, since=0.0, words=number
    )


def judged(*moments, ranks=2, limit_s=LIMIT_S):
    """The detector's verdict at each of the moments (seconds, reports of the ranks)."""
    clock = Clock()
    detector = HangDetector(ranks=ranks, limit_s=limit_s, clock=clock)
    verdicts = []
    for clock.now, *words in moments:
        said = {rank: word for rank, word in enumerate(words) if word is not None}
        verdicts.append(
            detector.look(
                {
                    rank: snapshot(word, number=0 if word.silent else len(verdicts))
                    for rank, word in said.items()
                }
            )
        )
    return verdicts


def test_a_rank_that_computes_for_longer_than_the_limit_hangs():
    verdicts = judged((0, says(0)), (60, says(0)), (61, says(0)), ranks=1)
    assert verdicts[:2] == [None, None]
    assert (
        verdicts[2]
        == f"rank 0: computes, since {time.strftime('%H:%M:%S', time.localtime(0))} (61 s)"
    )


def test_any_progress_restarts_the_time():
    assert (
        judged((0, says(0)), (59, says(1)), (118, says(1)), (120, says(1)), ranks=1)[:3]
        == [None] * 3
    )


def test_a_rank_may_wait_for_long_while_another_progresses():
    waits = says(3, waiting=True)
    assert (
        judged(
            (0, says(0), waits), (50, says(1), waits), (100, says(2), waits), (150, says(3), waits)
        )
        == [None] * 4
    )


def test_ranks_that_all_wait_for_each_other_hang():
    """Rank 1 began to wait at 30, so that the last of them is late after 90."""
    one, other = (
        says(3, waiting=True, text="waits in all_reduce"),
        says(4, waiting=True, text="waits in gather_rows"),
    )
    verdicts = judged((0, one, says(3)), (30, one, other), (90, one, other), (91, one, other))
    assert verdicts[:3] == [None] * 3
    assert (
        "rank 0: waits in all_reduce" in verdicts[3]
        and "rank 1: waits in gather_rows" in verdicts[3]
    )


def test_a_rank_that_hangs_is_found_though_the_others_wait_for_it():
    verdict = judged(
        (0, says(0), says(0)),
        (10, says(0), says(1, waiting=True)),
        (61, says(0), says(1, waiting=True)),
    )[-1]
    assert (
        "rank 0: computes" in verdict
        and "(61 s); rank 1: " in verdict
        and verdict.endswith("(51 s)")
    )


def test_a_rank_without_reports_hangs():
    assert (
        "lock; last it starts its process, since"
        in judged((0, says(0), None), (50, says(1), None), (61, says(2), None))[-1]
    )


def test_a_stopped_rank_is_reported_as_one_that_does_not_answer():
    stopped = says(0, waiting=True, text="waits in all_reduce", silent=True)
    verdict = judged(
        (0, stopped, says(0)),
        (30, stopped, says(1, waiting=True)),
        (91, stopped, says(1, waiting=True)),
    )[-1]
    first, second = verdict.split("; rank 1: ")
    assert first.startswith(
        "rank 0: does not answer, so it is stopped or its code holds the interpreter's lock; last "
        "it waits in all_reduce"
    )
    assert second.startswith("computes")


def test_without_a_limit_nothing_hangs():
    assert judged((0, says(0)), (1e9, says(0)), ranks=1, limit_s=None) == [None, None]


def test_a_hang_names_the_code_that_runs():
    began, over, occupations = threading.Event(), threading.Event(), []

    def step_of_an_environment() -> None:
        occupations.append(Occupation())
        began.set()
        over.wait()

    thread = threading.Thread(target=step_of_an_environment)
    thread.start()
    began.wait()
    clock = Clock()
    detector = HangDetector(ranks=1, limit_s=LIMIT_S, clock=clock)
    for clock.now in (0.0, 61.0):
        verdict = detector.look({0: occupations[0].snapshot()})
    over.set()
    thread.join()
    assert verdict is not None
    assert re.search(
        rf"\(61 s\), in {re.escape(__file__)}, line \d+, step_of_an_environment$", verdict
    )


def test_the_oldest_call_without_an_answer_is_reported():
    occupation = Occupation()
    with occupation.doing("evaluates"):
        occupation.asked |= {1: "reset of server 1", 2: "reset of server 2"}
        assert occupation.snapshot().text == "waits for reset of server 1, evaluates"
        del occupation.asked[1]
        assert occupation.snapshot().text == "waits for reset of server 2, evaluates"


def test_nested_occupations_are_reported_and_end_with_their_context():
    clock = Clock()
    occupation = Occupation(clock)
    with occupation.doing("computes node reward"):
        clock.now = 5.0
        with occupation.doing("waits in all_reduce", waiting=True):
            assert occupation.snapshot() == Snapshot(
                "waits in all_reduce, computes node reward", True, changes=2, since=5.0, words=1
            )
        clock.now = 7.0
        occupation.record_progress()
        assert occupation.snapshot() == Snapshot(
            "computes node reward", False, changes=4, since=7.0, words=2
        )
