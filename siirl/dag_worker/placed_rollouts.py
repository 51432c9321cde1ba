"""Placement of a run's rollouts: on the ranks that train, or on separate ones
(`siirl.dag_worker.separate`).
"""

from collections.abc import Mapping
from typing import Any, Protocol

from siirl.reporting.metrics import Value


class PlacedRollouts(Protocol):
    """The rollouts of a run, as a training rank sees them: colocated or on separate ranks."""

    colocated: bool
    """Whether the training ranks roll out."""

    def open(
        self, *, step: int, positions: Mapping[int, int], resumed: Mapping[str, Any] | None
    ) -> None:
        """Let the rollouts begin, after the first weights were published.

        Args:
            step: Number of completed training steps.
            positions: Number of prompts drawn so far, for each agent group that draws prompts.
            resumed: State of the checkpoint that was loaded; None if none was.
        """

    def begin_step(self, step: int) -> None:
        """Record which step is running."""

    def step_done(self) -> dict[str, Value]:
        """End the running step: its rows are used, and the weights published in it start to act.

        Returns:
            Metrics of sending weights, during the whole step.
        """


class ColocatedRollouts:
    """A `PlacedRollouts` of ranks that roll out and train: rollouts follow the graph's nodes."""

    colocated = True

    def open(
        self, *, step: int, positions: Mapping[int, int], resumed: Mapping[str, Any] | None
    ) -> None:
        """Do nothing: the first rollout node begins."""

    def begin_step(self, step: int) -> None:
        """Do nothing: rollouts follow the graph's nodes."""

    def step_done(self) -> dict[str, Value]:
        """Do nothing: this rank's engine has the weights."""
        return {}
