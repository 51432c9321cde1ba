"""When a run hangs: a rank that computes gets on within the limit; one that waits may wait while any other gets on."""

import time

from siirl.execution.scheduler.watchdog import Judge
from siirl.occupation import Occupation, Snapshot

LIMIT_S = 60.0


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def says(changes: int, *, waiting: bool = False, text: str = "computes") -> Snapshot:
    return Snapshot(text=text, waiting=waiting, changes=changes, since=0.0)


def judged(*moments, ranks=2, limit_s=LIMIT_S):
    """What the judge says at each of the moments (seconds, words of the ranks)."""
    clock = Clock()
    judge = Judge(ranks=ranks, limit_s=limit_s, clock=clock)
    verdicts = []
    for clock.now, *words in moments:
        verdicts.append(judge.look({rank: word for rank, word in enumerate(words) if word is not None}))
    return verdicts


def test_a_rank_that_computes_for_longer_than_the_limit_hangs():
    verdicts = judged((0, says(0)), (60, says(0)), (61, says(0)), ranks=1)
    assert verdicts[:2] == [None, None]
    assert verdicts[2] == f"rank 0: computes, since {time.strftime('%H:%M:%S', time.localtime(0))} (61 s)"


def test_whatever_gets_on_starts_the_time_anew():
    assert judged((0, says(0)), (59, says(1)), (118, says(1)), (120, says(1)), ranks=1)[:3] == [None] * 3


def test_a_rank_may_wait_for_long_while_another_gets_on():
    waits = says(3, waiting=True)
    assert judged((0, says(0), waits), (50, says(1), waits), (100, says(2), waits), (150, says(3), waits)) == [None] * 4


def test_ranks_that_all_wait_for_each_other_hang():
    """Rank 1 began to wait at 30, so that the last of them is late after 90."""
    one, other = says(3, waiting=True, text="waits in all_reduce"), says(4, waiting=True, text="waits in gather_rows")
    verdicts = judged((0, one, says(3)), (30, one, other), (90, one, other), (91, one, other))
    assert verdicts[:3] == [None] * 3
    assert "rank 0: waits in all_reduce" in verdicts[3] and "rank 1: waits in gather_rows" in verdicts[3]


def test_a_rank_that_hangs_is_found_though_the_others_wait_for_it():
    verdict = judged((0, says(0), says(0)), (10, says(0), says(1, waiting=True)), (61, says(0), says(1, waiting=True)))[-1]
    assert "rank 0: computes" in verdict and "(61 s); rank 1: " in verdict and verdict.endswith("(51 s)")


def test_a_rank_that_never_speaks_hangs():
    assert "rank 1: starting its process" in judged((0, says(0), None), (50, says(1), None), (61, says(2), None))[-1]


def test_without_a_limit_nothing_hangs():
    assert judged((0, says(0)), (1e9, says(0)), ranks=1, limit_s=None) == [None, None]


def test_an_occupation_is_told_with_what_is_around_it_and_ends_with_its_context():
    clock = Clock()
    occupation = Occupation(clock)
    with occupation.doing("computes node reward"):
        clock.now = 5.0
        with occupation.doing("waits in all_reduce", waiting=True):
            assert occupation.snapshot() == Snapshot("waits in all_reduce, computes node reward", True, changes=2, since=5.0)
        clock.now = 7.0
        occupation.got_on()
        assert occupation.snapshot() == Snapshot("computes node reward", False, changes=4, since=7.0)
