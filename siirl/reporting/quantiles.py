"""Count, mean and quantiles of a distribution, for writers without histograms."""

from collections.abc import Sequence

import numpy as np


def quantiles(values: Sequence[float]) -> dict[str, float | int]:
    """Count, mean, smallest, quartiles and largest of `values`."""
    if not values:
        return {"count": 0}
    with np.errstate(invalid="ignore", over="ignore"):  # between two infinities lies NaN
        array = np.asarray(values, dtype=np.float64)
        points = [array.mean(), *np.quantile(array, [0.0, 0.25, 0.5, 0.75, 1.0])]
    names = ("mean", "min", "p25", "p50", "p75", "max")
    return {
        "count": len(values),
        **{name: float(point) for name, point in zip(names, points, strict=True)},
    }
