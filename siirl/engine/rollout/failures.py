"""When a run stops because too many episodes could not be simulated: judged over all ranks of a
step, so that all stop or none.

A rank whose share fails alone goes on without rows where the others make up for it; judged by
itself it would have ended the run, and at ten episodes a rank one failure would already be more
than 5 %.
"""

import itertools

from siirl.engine.rollout.executor import RolloutResult
from siirl.engine.training.collectives import Collectives
from siirl.errors import TooManyFailures
from siirl.interrupts import Interrupted


def check_failures(
    result: RolloutResult, *, episodes: int, max_failed_share: float, ranks: Collectives
) -> None:
    """Go on if at most `max_failed_share` of the episodes of all ranks failed to simulate, and no
    rank has broken off.

    Args:
        result: This rank's.
        episodes: This rank's episodes, finished and failed.
        max_failed_share: `env.max_failed_share`.
        ranks: The processes that share the step; each of them calls this.

    Raises:
        TooManyFailures: More failed; with the same words on every rank.
        Interrupted: A rank was asked to end; every rank raises it.
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
        f"{sum(counts)} of {sum(totals)} episodes could not be simulated, more than env.max_failed_share={max_failed_share} allows. "
        f"The first: {next(itertools.chain(*firsts))}"
    )
    raise error from (failed[0][1] if failed else None)
