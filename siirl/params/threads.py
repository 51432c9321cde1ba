"""Shortens the busy waits of OpenMP threads, for cores shared with other programs.

GNU OpenMP, which PyTorch's CPU kernels run on, lets a thread that has finished its part spin for
milliseconds until the others have (GOMP_SPINCOUNT, 300,000 turns by default). Two runs on the same
cores then wait for threads that the system has descheduled in favour of spinning ones: on two cores
a step of `env=math pipeline=grpo` that takes 0.5 s alone took 0.8 to 8 s (median of 28 steps 1.4 s)
for each of two runs at once, and 0.75 s with short waits. Alone, both are equally fast.
"""

import os

SPIN_COUNT = "GOMP_SPINCOUNT"
SHORT_WAIT = "2000"  # turns, a few microseconds


def short_waits() -> dict[str, str]:
    """Environment variables for a process that has not imported torch yet; values that the user has
    set are kept.
    """
    return {SPIN_COUNT: os.environ.get(SPIN_COUNT, SHORT_WAIT)}
