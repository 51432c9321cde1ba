"""Converts numbers returned by user code: scores, metrics, parts of a reward.

They may be Python, numpy or torch numbers. This module imports neither numpy nor torch, because
every process of a reward function imports it.
"""

import math
from decimal import Decimal
from typing import Any, SupportsFloat


def as_float(value: Any) -> float | None:
    """A number, or an array or tensor of one element, as a float; None for anything else.

    Integers beyond the range of floats become infinite.
    """
    try:
        # converts a tensor, an array or a numpy number to the equal Python number
        number = value.item() if hasattr(value, "item") else value
        return float(number) if isinstance(number, SupportsFloat) else None
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except Exception:  # noqa: BLE001 - several elements, or a user's class
        return math.nan if isinstance(value, Decimal) else None  # a signalling NaN
