"""What a worker tells the process that started it, while it runs. Plain data, so that it travels
from a Ray actor as well.
"""

from dataclasses import dataclass

from siirl.reporting.metrics import Reduced


@dataclass(frozen=True)
class Activity:
    """What is being done now; shown beside the progress bar."""

    text: str


@dataclass(frozen=True)
class StepDone:
    """The metrics of a step over all ranks; step 0 is the evaluation before training."""

    step: int
    metrics: dict[str, Reduced]
    warnings: tuple[str, ...] = ()
    """Of what is odd about them, each once a run."""


@dataclass(frozen=True)
class Ready:
    """Everything is up; from here on the worker ends in peace when it is asked to
    (siirl.interrupts).
    """


@dataclass(frozen=True)
class Ended:
    """The worker was asked to end before its time, and has; the run can go on after `step`."""

    step: int


Event = Activity | StepDone | Ready | Ended
