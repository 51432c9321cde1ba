"""Small samples of an environment's results, and their comparison after a replay.

A replay requires that seed and actions determine the episode. `difference` checks this: it compares
the replayed results with samples of the first results. Keeping every image would cost more than the
simulation.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

# elements kept of an array: enough to distinguish two images, 1/48 of a 64 x 64 image
SAMPLE_SIZE = 256
IMAGE_TOLERANCE = 8  # levels of 255: graphics drivers of two nodes round differently
# Processors of two nodes also round differently; a diverged episode differs by more.
RELATIVE_TOLERANCE = 1e-4
ABSOLUTE_TOLERANCE = 1e-5


def sample(value: Any) -> Any:
    """A small copy of a result; arrays, also in containers, have at most `SAMPLE_SIZE` elements."""
    match value:
        case float() | bool():  # before Mapping, whose check is slow
            return value
        case np.ndarray():
            stride = max(1, math.ceil(value.size / SAMPLE_SIZE))
            return value.reshape(-1)[::stride].copy()
        case Mapping():
            return {name: sample(entry) for name, entry in value.items()}
        case list() | tuple():
            return [sample(entry) for entry in value]
        case _:
            return value


def difference(first: Any, second: Any, *, where: str = "result") -> str | None:
    """Describes the first difference of two samples beyond rounding; None if they agree."""
    match first:
        case np.ndarray():
            agree = (
                isinstance(second, np.ndarray)
                and first.shape == second.shape
                and _close(first, second)
            )
        case dict():
            if isinstance(second, dict) and first.keys() == second.keys():
                return _first_of(
                    difference(first[name], second[name], where=f"{where}[{name!r}]")
                    for name in first
                )
            agree = False
        case list():
            if isinstance(second, list) and len(first) == len(second):
                return _first_of(
                    difference(first[index], second[index], where=f"{where}[{index}]")
                    for index in range(len(first))
                )
            agree = False
        case bool() | np.bool_():
            agree = bool(first == second)
        case int() | float() | np.number():
            agree = isinstance(second, int | float | np.number) and bool(
                _close(np.asarray(first), np.asarray(second))
            )
        case _:
            agree = bool(first == second)
    return None if agree else f"{where} was {_shown(first)} and is {_shown(second)}"


def _close(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> bool:
    if first.dtype == np.uint8:
        return bool(
            (np.abs(first.astype(np.int16) - second.astype(np.int16)) <= IMAGE_TOLERANCE).all()
        )
    if first.dtype.kind not in "iuf":
        return bool((first == second).all())
    return bool(
        np.allclose(first, second, rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE, equal_nan=True)
    )


def _first_of(differences: Any) -> str | None:
    return next((found for found in differences if found is not None), None)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
