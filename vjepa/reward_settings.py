"""Settings of the trajectory reward: defaults, reasons and bounds, defined once.

A configuration can take default, help, reason and bounds from the fields, as
siirl.params.reward_args does.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

FEWEST_SUCCESSES = 5  # of a task, from which `vjepa.success_value` learns; fewer prove no skill


def _setting(default: Any, help: str, *, why: str, **bounds: float) -> Any:
    """A field with metadata `help`, `why` and the given bounds: `minimum`, `above` (exclusive),
    `maximum`.
    """
    return dataclasses.field(default=default, metadata={"help": help, "why": why, **bounds})


@dataclass(frozen=True)
class TrajectoryRewardConfig:
    """Settings of the trajectory reward; ValueError for a value outside its bounds."""

    alpha: float = _setting(
        0.8,
        "Ceiling of a failure's reward.",
        why="SRPO (arXiv 2511.15605); at most 1, so that no failure is worth more than a success",
        above=0,
        maximum=1,
    )
    dbscan_min_samples: int = _setting(
        2,
        "DBSCAN: points within the radius of a core point, including itself.",
        why="as siiRL released",
        minimum=1,
    )
    dbscan_eps_scale: float = _setting(
        2.0,
        "DBSCAN: radius in medians of the nearest-neighbour distance.",
        why="needs no scale; compared in benchmarks/reward_progress.py",
        above=0,
    )
    success_bank_size: int = _setting(
        64,
        "Number of earlier steps' newest successes kept for each task.",
        why="a few steps' worth",
        minimum=0,
    )
    failure_window: int = _setting(
        256,
        "Number of earlier steps' failures kept for each task, to standardise distances.",
        why="a stable spread",
        minimum=0,
    )
    min_failure_window: int = _setting(
        8,
        "If the window has fewer failures, the step's own are included.",
        why="the spread of fewer is unreliable",
        minimum=1,
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, bounds = getattr(self, field.name), field.metadata
            if "above" in bounds and not value > bounds["above"]:
                raise ValueError(f"{field.name} must be above {bounds['above']}; got {value}.")
            if "minimum" in bounds and not value >= bounds["minimum"]:
                raise ValueError(f"{field.name} must be at least {bounds['minimum']}; got {value}.")
            if "maximum" in bounds and not value <= bounds["maximum"]:
                raise ValueError(f"{field.name} must be at most {bounds['maximum']}; got {value}.")
