"""Converts logged metrics to plain numbers: Python, numpy or torch values, single or in lists.

Nothing is refused. Values that are not numbers become `Unusable` with a description; infinities and
NaN are kept.
"""

import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import torch

from siirl.params.references import MISTAKES
from siirl.reporting.metrics import Unusable, Value, Weighted

NOT_A_MAPPING = "metrics of a node"
"""Metric name used in warnings about node metrics that are not a mapping."""
LARGEST_ITEM_SHOWN = 40  # characters of a value quoted in a message


def plain_record(metrics: Any) -> dict[str, Value]:
    """Metrics of a node by name, as plain values; None is an empty mapping."""
    if metrics is None:
        return {}
    named = _list_of(metrics.items) if isinstance(metrics, Mapping) else None
    if named is None:
        return {NOT_A_MAPPING: Unusable(_described(metrics))}
    return {plain_name(name): plain(value) for name, value in named}


def plain_name(name: Any) -> str:
    """The name as text that files and protocols can store: lone surrogates are replaced."""
    try:
        text = str(name)
    except MISTAKES:  # str of a subclass
        text = f"name of type {type(name).__name__}"
    return text.encode("utf-8", "replace").decode("utf-8")


def plain(value: Any) -> Value:
    """A number, a list of numbers or a `Weighted` mean; anything else becomes `Unusable`."""
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
    members = _list_of(lambda: listed) if isinstance(listed, list | tuple) else None
    if members is None:
        return Unusable(_described(value))
    items = [_number(item) for item in members]
    if None in items:
        wrong = members[items.index(None)]
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
    except OverflowError:  # an int of more than 308 digits
        # numbers.Real declares `<` only
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]
    except ValueError:  # Decimal's signalling NaN
        return math.nan
    except MISTAKES:  # a timedelta or a custom class
        return None


def _list_of(make: Callable[[], Iterable[Any]]) -> list[Any] | None:
    """Items of a container, which may be of a user's class; None if reading them raises."""
    try:
        return list(make())
    except MISTAKES:
        return None


def _items(value: torch.Tensor | np.ndarray) -> Any:
    """Tensor values as Python numbers; None if unreadable (meta, fake, sparse, quantised)."""
    try:
        return value.tolist()
    except MISTAKES:
        return None


def _described(value: Any) -> str:
    """Short description of a value's type and shape."""
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
