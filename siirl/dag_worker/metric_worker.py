"""MetricWorker: collects a rank's metrics during a step and reduces them over all ranks.

The exchange between ranks is a function argument, for example torch.distributed's
all_gather_object. Logged values become plain numbers (`plain_record`), and none is refused: a value
that is not a number becomes `Unusable` with a description. Infinities and NaN are kept.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch

from siirl.reporting.metric_reduction import complaints, merge_rounds, reduce_metrics
from siirl.reporting.metrics import Reduced, Unusable, Value, Weighted
from siirl.user_numbers import as_float

logger = logging.getLogger(__name__)

T = TypeVar("T")
Record = dict[str, Value]
Gather = Callable[[list[Record]], list[list[Record]]]
NOT_A_MAPPING = "metrics of a node"
"""Metric name used in warnings about node metrics that are not a mapping."""
LARGEST_ITEM_SHOWN = 40  # characters of a value quoted in a message


def only_rank(records: list[Record]) -> list[list[Record]]:
    """Exchange function of a single-rank run."""
    return [records]


class MetricWorker:
    """Collects the metrics of one step; a metric of any name or value is accepted.

    Args:
        gather: Returns the records of all ranks in rank order; every rank calls it once per step.
        warns: Whether this rank reports unusual metrics of any rank, once per name.
    """

    def __init__(self, *, gather: Gather = only_rank, warns: bool = True) -> None:
        self._gather, self._warns = gather, warns
        self._records: list[Record] = []
        self._warned: set[tuple[str, str]] = set()  # names and problems
        self._warnings: list[str] = []

    def record(self, metrics: Any, *, prefix: str = "") -> None:
        """Keep `metrics`, a mapping from names to numbers, until the end of the step.

        `prefix` precedes their names: that of an agent group.
        """
        record = plain_record(metrics)
        self._records.append({f"{prefix}{name}": value for name, value in record.items()})

    @property
    def records(self) -> tuple[Record, ...]:
        """Values that this rank has recorded since the last `reduce`."""
        return tuple(self._records)

    def reduce(self) -> dict[str, Reduced]:
        """Reduce the step's metrics over all ranks, equal on each rank; then start empty."""
        mine, self._records = merge_rounds(self._records), []
        records = [record for rank in self._gather(mine) for record in rank]
        if self._warns:
            self._warn(complaints(records))
        return reduce_metrics(records)

    def take_warnings(self) -> tuple[str, ...]:
        """Warnings since the last call, for the terminal and the run folder."""
        warnings, self._warnings = tuple(self._warnings), []
        return warnings

    def warn(self, sentence: str) -> None:
        """Report a warning about the run, if this rank reports."""
        if self._warns:
            self._warnings.append(sentence)

    def _warn(self, sentences: dict[tuple[str, str], str]) -> None:
        for problem, sentence in sentences.items():
            if problem not in self._warned:
                logger.info(sentence)
                self._warnings.append(sentence)
        self._warned |= sentences.keys()


def plain_record(metrics: Any) -> dict[str, Value]:
    """Metrics of a node by name, as plain values; None is an empty mapping."""
    if metrics is None:
        return {}
    named = _readable(lambda: list(metrics.items())) if isinstance(metrics, Mapping) else None
    if named is None:
        return {NOT_A_MAPPING: Unusable(_described(metrics))}
    return {plain_name(name): plain(value) for name, value in named}


def plain_name(name: Any) -> str:
    """The name as text that files and protocols can store: lone surrogates are replaced."""
    text = _readable(lambda: str(name))
    if text is None:
        text = f"name of type {type(name).__name__}"
    return text.encode("utf-8", "replace").decode("utf-8")


def plain(value: Any) -> Value:
    """A number, a list of numbers or a `Weighted` mean; anything else becomes `Unusable`."""
    if isinstance(value, Unusable):
        return value
    if isinstance(value, Weighted):
        mean, weight = as_float(value.value), as_float(value.weight)
        if mean is None or weight is None:
            return Unusable(_described(value))
        return Weighted(mean, weight)
    members = _members(value)
    if members is None:
        number = None if _has_axes(value) else as_float(value)
        return Unusable(_described(value)) if number is None else number
    items = [as_float(item) for item in members]
    if None in items:
        wrong = members[items.index(None)]
        return Unusable(f"a {type(value).__name__} with {_described(wrong)}")
    return [item for item in items if item is not None]


def _has_axes(value: Any) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray) and value.ndim > 0


def _members(value: Any) -> list[Any] | None:
    """The members of a list, or of an array or tensor with one axis; None for anything else."""
    if isinstance(value, list | tuple):
        return _readable(lambda: list(value))
    return _readable(value.tolist) if _has_axes(value) and value.ndim == 1 else None


def _readable(read: Callable[[], T]) -> T | None:
    """The result of `read`; None if a user's class, or a meta or sparse tensor, raises."""
    try:
        return read()
    except Exception:  # noqa: BLE001 - user code may raise any class
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
