"""A reward for random weights, whose answers to one prompt must differ for an update."""

from typing import Any


def varied(data_source: str, solution_str: str, ground_truth: str, **_: Any) -> float:
    """0 or 1, by the letters of the answer."""
    return float(sum(map(ord, solution_str)) % 2)
