"""The reference policy of a KL that needs no separate weights."""

from typing import Protocol

from tensordict import TensorDict

from siirl.algos.log_probs import TokenScores
from siirl.engine.actor.actor import Actor
from siirl.models.adapters import Adaptable


class Reference(Protocol):
    """A policy that is not trained; for example an `Actor` without optimiser."""

    def compute_log_prob(self, batch: TensorDict) -> TokenScores:
        """Log-probs and entropy [B, T] of this rank's rows; 0 at masked tokens."""


class WithoutAdapter:
    """The model below the trained LoRA adapters: the same weights, without a second copy.

    Args:
        actor: Trains the adapters.
        model: Module of the actor's engine.
    """

    def __init__(self, actor: Actor, model: Adaptable) -> None:
        self.actor = actor
        self.model = model

    def compute_log_prob(self, batch: TensorDict) -> TokenScores:
        """See `Reference`."""
        with self.model.without_adapter():
            return self.actor.compute_log_prob(batch)
