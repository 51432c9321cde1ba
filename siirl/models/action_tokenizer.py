"""Codes actions for a policy's distribution: as tokens of bins, or as numbers in [-1, 1].

Tokens: each dimension of an action is one of `bins` values, as in RT-2 and OpenVLA.

A chunk of K actions of A dimensions is K*A tokens, action by action. Bin centres are spread evenly
over the closed range of the action space, so that its ends (a fully closed gripper) are represented
exactly. A discrete action space needs no binning: one dimension, one bin per action. Neither do
several decisions per action: a dimension for each, with as many bins as it has values.
"""

# K action of the chunk, A action dimension

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from siirl.params.key_names import MODEL_POLICY

if TYPE_CHECKING:
    import gymnasium


class Bounds(TypedDict):
    """Lowest and highest value of each dimension."""

    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class ActionTokenizer:
    """Maps action chunks to tokens in [0, bins) and back."""

    bins: int
    low: tuple[float, ...]
    """Lowest value of each of the A dimensions; empty for a discrete action space."""
    high: tuple[float, ...]
    counts: tuple[int, ...] = field(default=(), kw_only=True)
    """Bins of each dimension, if they differ; at most `bins`. A token of dimension i is then less
    than its count.
    """

    @classmethod
    def for_decisions(cls, counts: tuple[int, ...]) -> ActionTokenizer:
        """The tokenizer of `EnvSpec.decisions`: a token is the decision."""
        return cls(
            bins=max(2, *counts),  # as any policy's
            low=(0.0,) * len(counts),
            high=tuple(float(count - 1) for count in counts),
            counts=counts,
        )

    @classmethod
    def for_space(cls, space: gymnasium.Space, *, bins: int) -> ActionTokenizer:
        """The tokenizer of an action space; `bins` is read for continuous spaces only.

        Raises:
            ValueError: A space that is neither Discrete nor a bounded one-dimensional Box.
        """
        import gymnasium

        if isinstance(space, gymnasium.spaces.Discrete):
            return cls(bins=int(space.n), low=(), high=())
        box = _vector_space(space)
        if not box.is_bounded():
            raise ValueError(
                f"Action space {space} has no bounds, so it cannot be binned: choose a policy with "
                f"continuous actions ({MODEL_POLICY}=control_policy, as in "
                "trainer=mujoco_control), or wrap the environment so that its actions have bounds."
            )
        return cls(bins=bins, **_bounds(box))

    @property
    def discrete(self) -> bool:
        """Whether an action is one integer instead of a vector."""
        return not self.low

    @property
    def dimensions(self) -> int:
        """Tokens per action."""
        return 1 if self.discrete else len(self.low)

    def decode(self, tokens: NDArray[np.int64]) -> NDArray:
        """Tokens [K*A] to actions: float32 [K, A], or int64 [K] for a discrete space."""
        if self.discrete:
            return tokens.astype(np.int64)
        tokens_KA = tokens.reshape(-1, self.dimensions)
        low_A = np.asarray(self.low)
        high_A = np.asarray(self.high)
        actions_KA = low_A + (high_A - low_A) * tokens_KA / np.maximum(self._highest_A, 1)
        return actions_KA.astype(np.float32)

    def encode(self, actions: NDArray) -> NDArray[np.int64]:
        """Actions [K, A] (or [K] integers) to the nearest tokens, int64 [K*A].

        Values outside the range are clipped.
        """
        if self.discrete:
            return np.asarray(actions, np.int64).reshape(-1)
        low_A = np.asarray(self.low)
        high_A = np.asarray(self.high)
        width_A = np.where(high_A > low_A, high_A - low_A, 1.0)
        tokens_KA = np.rint((actions - low_A) / width_A * self._highest_A)
        return np.clip(tokens_KA, 0, self._highest_A).astype(np.int64).reshape(-1)

    def extremes(self) -> tuple[NDArray, NDArray]:
        """One action of the lowest and one of the highest tokens."""
        lowest, highest = (
            self.decode(np.broadcast_to(token, self.dimensions))[0]
            for token in (0, self._highest_A)
        )
        return lowest, highest

    @functools.cached_property  # a policy decodes at every decision
    def _highest_A(self) -> NDArray[np.int64]:
        """The highest token of each dimension, or of all of them."""
        return np.asarray(self.counts or self.bins) - 1


@dataclass(frozen=True)
class ContinuousActions:
    """Maps actions of a Box to numbers and back, linearly in each dimension.

    A dimension with two bounds maps to [-1, 1]. A dimension without bounds is unchanged. With one
    bound, the bound maps to -1 (lower) or 1 (upper), and distances are unchanged.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def for_space(cls, space: gymnasium.Space) -> ContinuousActions:
        """The coding of an action space.

        Raises:
            ValueError: A space that is not a one-dimensional Box.
        """
        import gymnasium

        if isinstance(space, gymnasium.spaces.Discrete):
            raise ValueError(
                f"Action space {space} is discrete, but a continuous distribution has no integers: "
                "choose a policy with tokens, such as model=tiny_vla."
            )
        return cls(**_bounds(_vector_space(space)))

    discrete = False
    """Whether an action is one integer instead of a vector."""
    counts = ()
    """There are no bins."""

    @property
    def dimensions(self) -> int:
        """Tokens (numbers) per action."""
        return len(self.low)

    def decode(self, values: NDArray[np.floating]) -> NDArray[np.float32]:
        """Numbers [K*A] to actions float32 [K, A]; numbers beyond a bound are clipped."""
        share_KA = (self._clipped(values.reshape(-1, self.dimensions)) + 1.0) / 2.0
        low_A, high_A = self._range
        return (low_A + (high_A - low_A) * share_KA).astype(np.float32)

    def encode(self, actions: NDArray) -> NDArray[np.float32]:
        """Actions [K, A] to numbers float32 [K*A], in [-1, 1] between two bounds."""
        low_A, high_A = self._range
        values_KA = 2.0 * (np.asarray(actions) - low_A) / (high_A - low_A) - 1.0
        return self._clipped(values_KA).astype(np.float32).reshape(-1)

    def extremes(self) -> tuple[NDArray, NDArray]:
        """The lowest and the highest action; those of the numbers -1 and 1 without bounds."""
        return self.decode(np.full(self.dimensions, -1.0))[0], self.decode(
            np.full(self.dimensions, 1.0)
        )[0]

    @functools.cached_property  # a policy decodes at every decision
    def _range(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Actions at the numbers -1 and 1; where a bound is missing they are 2 apart."""
        low_A, high_A = np.asarray(self.low, float), np.asarray(self.high, float)
        ends = np.isfinite(low_A), np.isfinite(high_A)
        return (
            np.where(ends[0], low_A, np.where(ends[1], high_A - 2.0, -1.0)),
            np.where(ends[1], high_A, np.where(ends[0], low_A + 2.0, 1.0)),
        )

    def _clipped(self, values_KA: NDArray[Any]) -> NDArray[Any]:
        least_A, most_A = self._limits
        clipped: NDArray[Any] = np.clip(
            values_KA, least_A.astype(values_KA.dtype), most_A.astype(values_KA.dtype)
        )
        return clipped

    @functools.cached_property
    def _limits(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Numbers at the bounds, infinite where a bound is missing."""
        return (
            np.where(np.isfinite(self.low), -1.0, -np.inf),
            np.where(np.isfinite(self.high), 1.0, np.inf),
        )


def _vector_space(space: gymnasium.Space) -> gymnasium.spaces.Box:
    import gymnasium

    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        raise ValueError(
            f"Action space {space} is neither Discrete nor a one-dimensional Box: wrap the "
            "environment to make it so."
        )
    if np.dtype(space.dtype).kind != "f":
        raise ValueError(
            f"Action space {space} has whole numbers, but policies output float32: make it "
            "Discrete, or a float32 Box whose actions the environment rounds."
        )
    return space


def _bounds(space: gymnasium.spaces.Box) -> Bounds:
    return {"low": tuple(map(float, space.low)), "high": tuple(map(float, space.high))}
