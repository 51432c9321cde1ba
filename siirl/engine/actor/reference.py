"""The policy that KL is measured against, where it needs no weights of its own."""

from typing import Protocol

from tensordict import TensorDict

from siirl.algos.log_probs import TokenScores
from siirl.engine.actor.actor import Actor
from siirl.models.adapters import Adaptable


class Reference(Protocol):
    """Says how likely a policy that is not trained finds what was sampled; an `Actor` without
    optimiser is one.
    """

    def compute_log_prob(self, batch: TensorDict) -> TokenScores:
        """Log-probs and entropy [B, T] of this rank's rows; 0 at masked tokens."""


class WithoutAdapter:
    """The model below the LoRA adapters that are trained: the same weights, of which no second copy
    is in memory.

    Args:
        actor: Trains the adapters.
        model: Its engine's module.
    """

    def __init__(self, actor: Actor, model: Adaptable) -> None:
        self.actor, self.model = actor, model

    def compute_log_prob(self, batch: TensorDict) -> TokenScores:
        """See `Reference`."""
        with self.model.without_adapter():
            return self.actor.compute_log_prob(batch)
