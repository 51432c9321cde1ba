"""Statistics of a feature in LeRobot's form, which its policies use for normalisation.

Numeric features have statistics per entry. Images have statistics per channel over all pixels,
scaled to 0..1, from histograms of the 256 values. Quantiles over several episodes are means of the
episodes' quantiles, weighted by frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
Values = NDArray[np.float64]


@dataclass(frozen=True)
class FeatureStatistics:
    """Statistics of a feature in an episode; arrays have the feature's shape."""

    count: int
    """Frames."""
    low: Values
    high: Values
    mean: Values
    std: Values
    quantiles: dict[str, Values]

    @classmethod
    def of_numbers(cls, values: NDArray[Any]) -> "FeatureStatistics":
        """Statistics of numbers [T, D]."""
        exact = np.asarray(values, np.float64)
        return cls(
            count=len(exact),
            low=exact.min(0),
            high=exact.max(0),
            mean=exact.mean(0),
            std=exact.std(0),
            quantiles={
                name: np.quantile(exact, share, axis=0) for name, share in QUANTILES.items()
            },
        )

    @classmethod
    def of_images(cls, images: NDArray[np.uint8]) -> "FeatureStatistics":
        """Statistics of images [T, H, W, 3]; arrays have shape [3, 1, 1]."""
        counts = np.stack([np.bincount(images[..., c].ravel(), minlength=256) for c in range(3)])
        values = np.arange(256) / 255
        total = counts.sum(1)
        mean = counts @ values / total
        squares = counts @ values**2 / total
        there = counts > 0
        reached = counts.cumsum(1) / total[:, None]

        def shaped(numbers: NDArray[Any]) -> Values:
            return np.asarray(numbers, np.float64).reshape(3, 1, 1)

        return cls(
            count=len(images),
            low=shaped(values[there.argmax(1)]),
            high=shaped(values[255 - there[:, ::-1].argmax(1)]),
            mean=shaped(mean),
            std=shaped(np.sqrt(np.maximum(squares - mean**2, 0.0))),
            quantiles={
                name: shaped(values[(reached >= share).argmax(1)])
                for name, share in QUANTILES.items()
            },
        )

    def plain(self) -> dict[str, Any]:
        """The statistics in the form that JSON and parquet store."""
        arrays = {"min": self.low, "max": self.high, "mean": self.mean, "std": self.std}
        return {name: array.tolist() for name, array in {**arrays, **self.quantiles}.items()} | {
            "count": [self.count]
        }


def merged_statistics(parts: Sequence[FeatureStatistics]) -> FeatureStatistics:
    """Statistics over episodes; the variance adds that of the means (parallel variance)."""
    counts = np.array([part.count for part in parts], np.float64)
    weight = counts / counts.sum()

    def weighted(arrays: Sequence[Values]) -> Values:
        return np.tensordot(weight, np.stack(arrays), axes=1)

    mean = weighted([part.mean for part in parts])
    variance = weighted([part.std**2 + (part.mean - mean) ** 2 for part in parts])
    return FeatureStatistics(
        count=int(counts.sum()),
        low=np.min([part.low for part in parts], axis=0),
        high=np.max([part.high for part in parts], axis=0),
        mean=mean,
        std=np.sqrt(variance),
        quantiles={name: weighted([part.quantiles[name] for part in parts]) for name in QUANTILES},
    )
