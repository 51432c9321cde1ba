"""Stops a run if too many episodes could not be simulated.

The share of failures is taken over all ranks of a step, so that either all ranks stop or none. A
rank whose episodes all fail continues without rows if the total share is low enough. A limit for
each rank would be too strict: with ten episodes a rank, one failure is more than 5 %.
"""

import itertools

from siirl.engine.rollout.executor import RolloutResult
from siirl.engine.training.collectives import Collectives
from siirl.errors import TooManyFailures
from siirl.interrupts import Interrupted


def check_failures(
    result: RolloutResult, *, episodes: int, max_failed_share: float, ranks: Collectives
) -> None:
    """Raise if more than `max_failed_share` of all ranks' episodes failed, or a rank was stopped.

    Args:
        result: Of this rank.
        episodes: Number of this rank's episodes, finished and failed.
        max_failed_share: `env.max_failed_share`.
        ranks: The processes that share the step; each of them calls this.

    Raises:
        TooManyFailures: More failed; the message is the same on every rank.
        Interrupted: A rank received a stop signal; every rank raises it.
    """
    failed = result.failed
    first = [
        f"{request.task!r} with seed {request.seed}: {reason}" for request, reason in failed[:1]
    ]
    counts, totals, firsts, broken_off = zip(
        *ranks.gather_objects((len(failed), episodes, first, result.broken_off)), strict=True
    )
    if any(broken_off):
        raise Interrupted(max(broken_off))
    if sum(counts) <= max_failed_share * sum(totals):
        return
    error = TooManyFailures(
        f"{sum(counts)} of {sum(totals)} episodes could not be simulated, more than "
        f"env.max_failed_share={max_failed_share} allows. "
        f"The first: {next(itertools.chain(*firsts))}"
    )
    raise error from (failed[0][1] if failed else None)
