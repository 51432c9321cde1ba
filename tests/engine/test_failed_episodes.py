"""Limit of episodes that fail to simulate: a share of the episodes of all ranks, decided alike on
every rank.
"""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from ranks_at_work import run_on_ranks

from siirl.engine.rollout.rollout import Rollout, check_failures
from siirl.engine.rollout.workflow import EpisodeRequest, RolloutResult
from siirl.engine.training.collectives import OneProcess
from siirl.errors import SimulationFailed, TooManyFailures
from siirl.interrupts import Interrupted

SHARE = 0.05


def failed(count):
    """A rollout with `count` failed episodes, with the seeds from 0 on."""
    requests = [
        EpisodeRequest(
            uid=str(i), group_id=0, task="push", task_id=0, trial_id=0, seed=i, policy_seed=(i,)
        )
        for i in range(count)
    ]
    return RolloutResult(
        failed=[(request, SimulationFailed("the server died three times")) for request in requests]
    )


def words_of(ranks, failures_by_rank):
    """Result of each case on this rank: the text of the refusal; None if the run continues."""
    words = []
    for failures in failures_by_rank:
        try:
            check_failures(
                failed(failures[ranks.rank]), episodes=10, max_failed_share=SHARE, ranks=ranks
            )
            words.append(None)
        except TooManyFailures as error:
            words.append(str(error))
    return words


def test_exactly_the_share_continues_and_one_more_stops():
    check_failures(failed(1), episodes=20, max_failed_share=SHARE, ranks=OneProcess())
    expected = r"the server died three times.* \(task 'push'\)\. That is the .* 2 of 20 .*=0.05 allows fewer\.$"
    with pytest.raises(TooManyFailures, match=expected) as stopped:
        check_failures(failed(2), episodes=20, max_failed_share=SHARE, ranks=OneProcess())
    assert isinstance(stopped.value.__cause__, SimulationFailed)


def test_only_the_reason_names_a_seed():
    """A segment's request may have another seed than the episode that failed in it."""
    result = failed(1)
    result.failed[0] = (result.failed[0][0], SimulationFailed("The episode with seed 7 died."))
    with pytest.raises(
        TooManyFailures,
        match=r"^The episode with seed 7 died \(task 'push'\)\. That is the first failure: 1 of 1 ",
    ):
        check_failures(result, episodes=1, max_failed_share=SHARE, ranks=OneProcess())


def test_a_step_without_episodes_continues():
    check_failures(RolloutResult(), episodes=0, max_failed_share=0.0, ranks=OneProcess())


def test_two_ranks_stop_on_their_failures_together_with_one_message():
    """One failure of a rank's ten is 10 %, and of the twenty of both 5 %; two are 10 %, also for
    the rank that had none.
    """
    first, second = run_on_ranks(words_of, [(1, 0), (0, 2)])
    assert first == second
    assert first[0] is None
    assert "2 of 20 episodes could not be simulated" in first[1]


def number_of_the_interrupt(ranks):
    """A signal that only rank 1 has received ends this rank, too."""
    with pytest.raises(Interrupted) as caught:
        check_failures(
            RolloutResult(broken_off=15 * ranks.rank),
            episodes=10,
            max_failed_share=SHARE,
            ranks=ranks,
        )
    return caught.value.number


def test_a_failing_rank_ends_the_step_on_every_rank():
    assert run_on_ranks(number_of_the_interrupt) == [15, 15]


def test_environments_that_cannot_be_closed_keep_no_model() -> None:
    async def close() -> None:
        raise SimulationFailed("a server hangs")

    closed: list[bool] = []
    rollout = Rollout(
        pool=cast(Any, SimpleNamespace(num_slots=1, close=close)),
        engine=cast(Any, SimpleNamespace(close=lambda: closed.append(True))),
        workflow=cast(Any, None),
    )
    with pytest.raises(SimulationFailed):
        rollout.close()
    rollout.loop.close()
    assert closed == [True]
