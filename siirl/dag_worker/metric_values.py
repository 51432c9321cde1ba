"""Whatever a node logs, as plain numbers: of Python, numpy or torch, alone or in a list.

Nothing is refused. What is no number becomes `Unusable`, which says what it was; infinities and NaN
stay as they are.
"""

import math
import numbers
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import torch

from siirl.params.references import MISTAKES
from siirl.reporting.metrics import Unusable, Value, Weighted

NOT_A_MAPPING = "metrics of a node"
"""Name under which a node's metrics are complained of that are no mapping at all."""
LARGEST_ITEM_SHOWN = 40  # characters of a value in a sentence


def plain_record(metrics: Any) -> dict[str, Value]:
    """The metrics of a node by name, as plain values; None is none at all."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        return {NOT_A_MAPPING: Unusable(_described(metrics))}
    return {plain_name(name): plain(value) for name, value in metrics.items()}


def plain_name(name: Any) -> str:
    """A name that every file and protocol can hold: text without halves of letters."""
    try:
        text = str(name)
    except MISTAKES:  # of the name's own class
        text = f"name of type {type(name).__name__}"
    return text.encode("utf-8", "replace").decode("utf-8")


def plain(value: Any) -> Value:
    """A number, a list of numbers or a `Weighted` mean of them; else what it is, as `Unusable`."""
    if isinstance(value, Weighted):
        mean, weight = _number(value.value), _number(value.weight)
        return (
            Unusable(_described(value))
            if mean is None or weight is None
            else Weighted(mean, weight)
        )
    number = _number(value)
    if number is not None:
        return number
    listed = (
        _items(value) if isinstance(value, torch.Tensor | np.ndarray) and value.ndim == 1 else value
    )
    if not isinstance(listed, list | tuple):
        return Unusable(_described(value))
    items = [_number(item) for item in listed]
    wrong = next((item for item, number in zip(listed, items, strict=True) if number is None), None)
    if None in items:
        return Unusable(f"a {type(value).__name__} with {_described(wrong)}")
    return [item for item in items if item is not None]


def _number(value: Any) -> float | None:
    if isinstance(value, torch.Tensor | np.ndarray):
        if value.ndim:
            return None
        value = _items(value)
    if not isinstance(value, numbers.Real | np.bool_ | Decimal):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        # numbers.Real declares `<` alone
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]
    except ValueError:  # Decimal's signalling NaN
        return math.nan
    except MISTAKES:  # a span of time, or a number of the user's own class
        return None


def _items(value: torch.Tensor | np.ndarray) -> Any:
    """The values as Python's; None of a tensor that has none to read: on meta, fake, sparse, nested
    or quantised.
    """
    try:
        return value.tolist()
    except MISTAKES:
        return None


def _described(value: Any) -> str:
    """What a value is, in a sentence."""
    if isinstance(value, torch.Tensor | np.ndarray):
        shape = (
            "nested"
            if isinstance(value, torch.Tensor) and value.is_nested
            else f"of shape {list(value.shape)}"
        )
        return f"a {type(value).__name__} {shape} and {value.dtype}"
    if isinstance(value, str | bytes | complex | np.generic):
        return f"{value!r:.{LARGEST_ITEM_SHOWN}} of type {type(value).__name__}"
    return "None" if value is None else f"of type {type(value).__name__}"
