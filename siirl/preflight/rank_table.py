"""The table of a rank's memory: bytes by owner, throughout a step and in each of its phases."""

import dataclasses
from dataclasses import dataclass

from siirl.preflight.memory import Parts, total

RANK, TRAINING_RANK, ROLLOUT_RANK = "rank", "training rank", "rollout rank"
WEIGHTS, GRADIENTS, MOMENTS = "weights", "gradients", "Adam"
ROLLOUT, UPDATE = "rollout", "update"  # phases
OF_CRITIC = "critic's "


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank's device by name, in the parts of a step."""

    held: Parts
    """Bytes held throughout the step."""
    phases: tuple[tuple[str, Parts], ...]
    """Additional bytes by phase."""
    left_out: tuple[str, ...] = ()
    """Models that are on this GPU too, but whose memory is unknown."""
    kind: str = RANK
    """Which rank this is, if groups of ranks differ."""
    lower_bound: bool = False
    """Whether a model's architecture is unknown, so that only its weights are counted."""

    def with_critic(self, critic: "RankMemory") -> "RankMemory":
        """This rank with a critic, whose table is `critic`: a rank holds both models throughout,
        and updates one after the other.
        """
        own = tuple((f"{OF_CRITIC}{name}", size) for name, size in critic.held)
        phases = tuple(
            (f"{OF_CRITIC}{name}", parts) for name, parts in critic.phases if name != ROLLOUT
        )
        return dataclasses.replace(
            self,
            held=(*self.held, *own),
            phases=(*self.phases, *phases),
            lower_bound=self.lower_bound or critic.lower_bound,
        )

    @property
    def peak(self) -> tuple[str, float]:
        """The phase with the largest memory, and the rank's bytes in it."""
        name, parts = max(self.phases, key=lambda phase: total(phase[1]))
        return name, total(self.held) + total(parts)
