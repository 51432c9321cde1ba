"""Reduces the metrics of a step over its rounds and ranks, according to their declarations.

No metric ends a run: `reduce_metrics` accepts every value from `siirl.dag_worker.metric_worker`,
and `complaints` describes the invalid ones.
"""

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from siirl.reporting.metrics import (
    Metric,
    Reduced,
    Reduction,
    Unusable,
    Value,
    Weighted,
    find_declaration,
)


def reduce_metrics(records: Iterable[Mapping[str, Value]]) -> dict[str, Reduced]:
    """Reduce the records of all ranks in a step to one value per name.

    A value of the wrong kind is converted (`_fitted`); one that is not a number is left out.
    Records may lack names.
    """
    reduced: dict[str, Reduced | None] = {}
    for name, values in _by_name(records).items():
        reduction = reduction_of(name, values)
        fitted = _all_fitted(values, reduction)
        reduced[name] = _REDUCE[reduction](fitted) if fitted else None
    return {name: value for name, value in reduced.items() if value is not None}


def combine(records: Iterable[Mapping[str, Value]]) -> dict[str, Value]:
    """One record that combines those of several ranks; means keep their weight."""
    combined: dict[str, Any] = {}
    for name, values in _by_name(records).items():
        reduction = reduction_of(name, values)
        fitted = _all_fitted(values, reduction)
        if not fitted:
            continue
        if reduction is Reduction.MEAN:
            weight = _sum(value.weight for value in fitted)
            combined[name] = Weighted(_weighted_mean(fitted) or 0.0, weight)
        else:
            combined[name] = _REDUCE[reduction](fitted)
    return combined


def complaints(records: Iterable[Mapping[str, Value]]) -> dict[tuple[str, str], str]:
    """Problems with the metrics of a step: one sentence for each name and problem.

    A metric may be `undeclared`, `left out` because it is not a number, or `of another kind` than
    declared.
    """
    found: dict[tuple[str, str], str] = {}
    for name, values in _by_name(records).items():
        declared = find_declaration(name)
        for problem, sentence in filter(None, (_complaint(name, v, declared) for v in values)):
            found.setdefault((name, problem), sentence)
    return found


def merge_rounds(records: Iterable[Mapping[str, Value]]) -> list[dict[str, Value]]:
    """Records of one rank and step; values of a rate, duration, share or total from several nodes
    or rounds are merged.
    """
    records = list(records)
    several: dict[str, Any] = {}
    for name, values in _by_name(records).items():
        reduction = reduction_of(name, values)
        if reduction in _MERGE and all(isinstance(value, numbers.Real) for value in values):
            several[name] = _MERGE[reduction](values)
    rest = [
        {name: value for name, value in record.items() if name not in several} for record in records
    ]
    return [*rest, several]


def reduction_of(name: str, values: Iterable[Value]) -> Reduction:
    """Declared reduction; else DISTRIBUTION for lists, MEAN for Weighted, or RANK_MEAN."""
    declared = find_declaration(name)
    if declared is not None:
        return declared.reduction
    kinds = {_kind(value) for value in values}
    return next(
        (reduction for reduction in (Reduction.DISTRIBUTION, Reduction.MEAN) if reduction in kinds),
        Reduction.RANK_MEAN,
    )


def _by_name(records: Iterable[Mapping[str, Value]]) -> dict[str, list[Value]]:
    values: dict[str, list[Value]] = {}
    for record in records:
        for name, value in record.items():
            values.setdefault(name, []).append(value)
    return values


def _kind(value: Value) -> Reduction | None:
    """The reduction that accepts such a value: RANK_MEAN for numbers, None for an Unusable."""
    if isinstance(value, Weighted):
        return Reduction.MEAN
    if isinstance(value, Unusable):
        return None
    return Reduction.RANK_MEAN if isinstance(value, numbers.Real) else Reduction.DISTRIBUTION


def _complaint(name: str, value: Value, declared: Metric | None) -> tuple[str, str] | None:
    """Problem and sentence."""
    if isinstance(value, Unusable):
        return "left out", (
            f"Metric {name!r:.100} is left out: only a number or a list of numbers can be logged, "
            f"but this is {value.what}."
        )
    if declared is None:
        return "undeclared", (
            f"Metric {name!r:.100} is not declared: its mean over ranks is logged, or all "
            "values of a list. siirl.reporting.metrics.register_metric declares another reduction."
        )
    takes = declared.reduction if declared.reduction in _WANTED else Reduction.RANK_MEAN
    if _kind(value) is takes:
        return None
    counted = _COUNTED[takes]
    return "of another kind", (
        f"Metric {name!r:.100} ({declared.reduction.value}) takes {_WANTED[takes]}; got "
        f"{value!r:.80}, which counts as {counted}."
    )


def _all_fitted(values: Iterable[Value], reduction: Reduction) -> list[Any]:
    """The values that `_fitted` can convert, converted."""
    fitted = (_fitted(value, reduction) for value in values)
    return [value for value in fitted if value is not None]


def _fitted(value: Value, reduction: Reduction) -> Any:
    """Convert `value` to the form that the reduction requires; None if impossible.

    A number becomes a mean of weight 1 or a list of one; a list becomes its mean.
    """
    if isinstance(value, Unusable):
        return None
    if isinstance(value, Weighted):
        return value if reduction is Reduction.MEAN else _fitted(value.value, reduction)
    values = [*value] if isinstance(value, Sequence) else [value]
    if reduction is Reduction.DISTRIBUTION:
        return values
    mean = Weighted(_sum(values) / max(len(values), 1), len(values))
    if reduction is Reduction.MEAN:
        return mean
    return mean.value if values else None


def _sum(values: Iterable[float]) -> float:
    """Exact sum if finite; `math.fsum` refuses opposite infinities and overflow."""
    values = list(values)
    return math.fsum(values) if abs(sum(map(abs, values))) < math.inf else float(sum(values))


def _weighted_mean(values: Sequence[Any]) -> float | None:
    total = _sum(value.weight for value in values)
    return (
        _sum(value.value * value.weight for value in values if value.weight) / total
        if total
        else None
    )


def _mean(values: Sequence[Any]) -> float:
    return _sum(values) / len(values)


_WANTED = {
    Reduction.MEAN: "Weighted(mean, count), so that ranks with unequal shares are averaged "
    "correctly",
    Reduction.DISTRIBUTION: "a list of numbers",
    Reduction.RANK_MEAN: "a number",
}

_COUNTED = {
    Reduction.MEAN: "one item per rank, or the items of the list",
    Reduction.DISTRIBUTION: "one value",
    Reduction.RANK_MEAN: "its mean",
}
"""Interpretation of a value of the wrong kind, by reduction."""

_MERGE: dict[Reduction, Callable[[Sequence[Any]], float]] = {
    Reduction.RATE: _mean,
    Reduction.RANK_MEAN: _mean,
    Reduction.DURATION: _sum,
    Reduction.TOTAL: _sum,
}

_REDUCE: dict[Reduction, Callable[[Sequence[Any]], Reduced | None]] = {
    Reduction.SUM: _sum,
    Reduction.RATE: _sum,
    Reduction.DURATION: lambda values: float(max(values)),
    Reduction.MEAN: _weighted_mean,
    Reduction.RANK_MEAN: _mean,
    Reduction.MAX: lambda values: float(max(values)),
    Reduction.MIN: lambda values: float(min(values)),
    Reduction.LAST: lambda values: float(values[-1]),
    Reduction.TOTAL: lambda values: float(values[-1]),
    Reduction.DISTRIBUTION: lambda values: [float(item) for part in values for item in part],
}
