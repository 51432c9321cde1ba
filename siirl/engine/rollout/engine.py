"""The interface and the counters of every rollout engine, for both text and actions."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
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
        """Counts since the last call (`EngineCounts`)."""

    def take_memory(self) -> Mapping[str, float]:
        """Largest bytes since the last call, by what holds them: `keys_values`, or a peak of
        processes of the engine's own.
        """

    def rest(self) -> None:
        """Free memory that only rollouts use; the next rollout or new weights allocate it again."""

    def close(self) -> None:
        """Release the model; safe to call twice."""


@dataclass
class EngineCounts:
    """Counters since the last `take`."""

    busy_s: float = 0.0
    """Seconds in forward passes."""
    calls: int = 0
    """Requests."""
    forward_passes: int = 0
    tokens: int = 0
    """Generated."""

    def take(self) -> dict[str, float]:
        """Return all counts and reset them."""
        taken = {name: float(value) for name, value in asdict(self).items()}
        for field in fields(self):
            setattr(self, field.name, field.default)
        return taken


def summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sums by name, of the stats of several engines or processes."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total
