"""Actions as tokens: each dimension of an action is one of `bins` values, as in RT-2 and OpenVLA.

A chunk of K actions of A dimensions is K*A tokens, action by action. Bin centres are spread evenly
over the closed range of the action space, so that its ends (a fully closed gripper) are represented
exactly. A discrete action space needs no binning: one dimension, one bin an action.
"""

# K action of the chunk, A action dimension

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import gymnasium


@dataclass(frozen=True)
class ActionTokenizer:
    """Maps action chunks to tokens in [0, bins) and back."""

    bins: int
    low: tuple[float, ...]
    """Lowest value of each of the A dimensions; empty for a discrete action space."""
    high: tuple[float, ...]

    @classmethod
    def for_space(cls, space: gymnasium.Space, *, bins: int) -> ActionTokenizer:
        """The tokenizer of an action space; `bins` is read for continuous spaces only.

        Raises:
            ValueError: A space that is neither Discrete nor a bounded one-dimensional Box.
        """
        import gymnasium

        if isinstance(space, gymnasium.spaces.Discrete):
            return cls(bins=int(space.n), low=(), high=())
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise ValueError(
                f"Action space {space} is neither Discrete nor a one-dimensional Box: wrap the "
                "environment to make it so."
            )
        if not space.is_bounded():
            raise ValueError(
                f"Action space {space} has no bounds, so it cannot be binned: wrap it in "
                "gymnasium's RescaleAction."
            )
        return cls(bins=bins, low=tuple(map(float, space.low)), high=tuple(map(float, space.high)))

    @property
    def discrete(self) -> bool:
        """Whether an action is one integer instead of a vector."""
        return not self.low

    @property
    def dimensions(self) -> int:
        """Tokens an action."""
        return 1 if self.discrete else len(self.low)

    def decode(self, tokens: NDArray[np.int64]) -> NDArray:
        """Tokens [K*A] to actions: float32 [K, A], or int64 [K] for a discrete space."""
        if self.discrete:
            return tokens.astype(np.int64)
        tokens_KA = tokens.reshape(-1, self.dimensions)
        low_A = np.asarray(self.low)
        high_A = np.asarray(self.high)
        return (low_A + (high_A - low_A) * tokens_KA / (self.bins - 1)).astype(np.float32)

    def encode(self, actions: NDArray) -> NDArray[np.int64]:
        """Actions [K, A] (or [K] integers) to the nearest tokens, int64 [K*A].

        Values outside the range are clipped.
        """
        if self.discrete:
            return np.asarray(actions, np.int64).reshape(-1)
        low_A = np.asarray(self.low)
        high_A = np.asarray(self.high)
        tokens_KA = np.rint((actions - low_A) / (high_A - low_A) * (self.bins - 1))
        return np.clip(tokens_KA, 0, self.bins - 1).astype(np.int64).reshape(-1)
