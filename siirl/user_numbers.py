"""Numbers that a user's code returned: scores, metrics, parts of a reward.

They may be of Python, numpy or torch. This module imports neither numpy nor torch, because every
process of a reward function imports it.
"""

import math
from decimal import Decimal
from typing import Any, SupportsFloat


def as_float(value: Any) -> float | None:
    """A number, or an array or tensor of one element, as a float; None for anything else.

    Integers beyond the range of floats become infinite.
    """
    try:
        # of a tensor, an array or a number of numpy: the same number of Python
        number = value.item() if hasattr(value, "item") else value
        return float(number) if isinstance(number, SupportsFloat) else None
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except Exception:  # noqa: BLE001 - several elements, or a user's class
        return math.nan if isinstance(value, Decimal) else None  # a signalling NaN
