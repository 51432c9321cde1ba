"""The interface that every rollout engine has, whether it generates text or actions."""

from collections.abc import Mapping
from typing import Protocol


class RolloutEngine(Protocol):
    """Answers the requests of many episodes in batches; used from one event loop."""

    policy_version: int

    def expect(self, *, episodes: int, at_once: int) -> None:
        """Announce `episodes` more episodes, of which `at_once` can run at the same time."""

    def episode_ended(self) -> None:
        """Report the end of one expected episode, finished or failed."""

    def interrupt(self) -> None:
        """End every running request now; later requests are served as usual."""

    def update_weights(self, version: int) -> None:
        """Set the version of the weights that the engine uses from now on."""

    def take_stats(self) -> Mapping[str, float]:
        """Counts since the last call (`siirl.engine.rollout.counts.EngineCounts`)."""
