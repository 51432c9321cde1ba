"""Shortens the busy waits of OpenMP threads, for cores shared with other programs.

PyTorch's CPU kernels run on GNU OpenMP. There, a thread that has finished its part spins for
milliseconds until the others have finished (GOMP_SPINCOUNT, 300,000 turns by default). Two runs on
the same cores then wait for threads that the system has descheduled in favour of spinning ones. On
two cores, a step of `env=math pipeline=grpo` takes 0.5 s alone. With two runs at once it took 0.8
to 8 s for each (median of 28 steps: 1.4 s), and 0.75 s with short waits. A single run is equally
fast with both settings.
"""

import os

SPIN_COUNT = "GOMP_SPINCOUNT"
SHORT_WAIT = "2000"  # turns, a few microseconds


def short_waits() -> dict[str, str]:
    """Environment variables for a process that has not imported torch yet; the user's own values
    are kept.
    """
    return {SPIN_COUNT: os.environ.get(SPIN_COUNT, SHORT_WAIT)}
