"""Options of a flow's random steps, shared by the flow policies.

`siirl.algos.flow_distributions` has the two kinds; here are their names, defaults and checks.
"""

import math
from collections.abc import Mapping
from typing import Any

LEARNT, SDE = "learnt", "sde"
NOISE_LEVEL = 0.5  # piRL's on LIBERO
PAIR = 2
READ_WITH = {"noise_level": SDE, "noise_std": LEARNT}
"""Options that only one kind of noise reads."""


def require_noise(noise: Any, level: Any, bounds: Any) -> None:
    """Raise ValueError for an unknown kind, or a level or bounds that are not positive numbers."""
    if noise not in (LEARNT, SDE):
        raise ValueError(f"noise={noise!r} must be {LEARNT!r} (Flow-Noise) or {SDE!r} (Flow-SDE).")
    if type(level) not in (int, float) or not 0 < level < math.inf:
        raise ValueError(f"noise_level={level!r} must be a positive number.")
    numbers = [bound for bound in bounds if type(bound) in (int, float)]
    if len(bounds) != PAIR or len(numbers) != PAIR or not 0 < numbers[0] < numbers[1] < math.inf:
        raise ValueError(f"noise_std={bounds!r} must be two positive numbers, the smaller first.")


def require_read(options: Mapping[str, Any], *, noise: str) -> None:
    """Raise ValueError for an option that only the other kind of noise reads."""
    for name, kind in READ_WITH.items():
        if name in options and noise != kind:
            raise ValueError(
                f"{name} is read with noise={kind}, but the policy has noise={noise}: leave it out."
            )
