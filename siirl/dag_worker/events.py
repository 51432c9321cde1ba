"""Events that a worker yields while it runs: plain data that Ray actors can send."""

from dataclasses import dataclass

from siirl.reporting.metrics import Reduced


@dataclass(frozen=True)
class Activity:
    """Current activity, shown next to the progress bar."""

    text: str


@dataclass(frozen=True)
class StepDone:
    """Metrics of a step over all ranks; step 0 is the evaluation before training."""

    step: int
    metrics: dict[str, Reduced]
    warnings: tuple[str, ...] = ()
    """Warnings about unusual metrics, each reported once per run."""


@dataclass(frozen=True)
class Ready:
    """Startup is complete; from here on an interrupt saves a checkpoint (siirl.interrupts)."""


@dataclass(frozen=True)
class Ended:
    """The worker was interrupted and has stopped; the run can resume after `step`."""

    step: int


Event = Activity | StepDone | Ready | Ended
