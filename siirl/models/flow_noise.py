"""Options of a flow's noise, shared by the flow policies.

`siirl.algos.flow_distributions` has the three kinds; here are their names, defaults and checks.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from siirl.algos.flow_distributions import FlowDistribution, FlowEnd, FlowNoise, FlowSDE

LEARNT, END, SDE = "learnt", "end", "sde"
DISTRIBUTIONS: dict[str, type[FlowDistribution]] = {
    LEARNT: FlowNoise,
    END: FlowEnd,
    SDE: FlowSDE,
}
LEARNING = (LEARNT, END)
"""Kinds with a learnt deviation."""
NOISE_LEVEL = 0.5  # piRL's on LIBERO
PAIR = 2
READ_WITH = {"noise_level": (SDE,), "noise_std": LEARNING}
"""Options that only some kinds of noise read."""


def require_noise(noise: Any, level: Any, bounds: Any) -> None:
    """Raise ValueError for an unknown kind, or a level or bounds that are not positive numbers."""
    if noise not in DISTRIBUTIONS:
        raise ValueError(
            f"noise={noise!r} must be {LEARNT!r} (Flow-Noise), {SDE!r} (Flow-SDE) or {END!r} "
            "(added to the denoised chunk)."
        )
    if type(level) not in (int, float) or not 0 < level < math.inf:
        raise ValueError(f"noise_level={level!r} must be a positive number.")
    numbers = [*bounds] if isinstance(bounds, Sequence) else []
    typed = all(type(bound) in (int, float) for bound in numbers)
    if len(numbers) != PAIR or not typed or not 0 < numbers[0] < numbers[1] < math.inf:
        raise ValueError(f"noise_std={bounds!r} must be two positive numbers, the smaller first.")


def require_read(options: Mapping[str, Any], *, noise: str) -> None:
    """Raise ValueError for an option that only other kinds of noise read."""
    for name, kinds in READ_WITH.items():
        if name in options and noise not in kinds:
            raise ValueError(
                f"{name} is read with noise={' or '.join(kinds)}, but the policy has "
                f"noise={noise}: leave it out."
            )
