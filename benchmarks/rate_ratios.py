"""Ratios of rates that were measured in the same rounds."""

import statistics
from collections.abc import Mapping
from typing import Any


def summarise_ratios(
    rates: Mapping[str, list[float]], pairs: Mapping[str, tuple[str, str]]
) -> dict[str, dict[str, Any]]:
    """For each named pair (over, under), the ratio within each round: median and range."""
    summary = {}
    for name, (over, under) in pairs.items():
        ratios = [high / low for high, low in zip(rates[over], rates[under], strict=True)]
        summary[name] = {
            "of": over,
            "to": under,
            "median": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
        }
    return summary
