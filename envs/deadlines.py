"""Deadlines of calls that another process answers."""

import math

SHORTEST_DEADLINE_S = 0.001  # a running process needs at least this long to answer


def checked_deadline(name: str, seconds: float) -> float:
    """Return `seconds` if it is a usable deadline.

    Raises:
        ValueError: No number, below a millisecond, or not finite.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ValueError(f"{name} must be a number of seconds, got {seconds!r}.")
    if not SHORTEST_DEADLINE_S <= seconds < math.inf:
        raise ValueError(
            f"{name} must be at least {SHORTEST_DEADLINE_S} s and finite, got {seconds}."
        )
    return seconds
