"""Requests and responses of an engine that generates actions."""

# T token of a chunk, L token of an instruction, P proprioception

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ActRequest:
    """One observation, for which a chunk of actions is requested."""

    uid: str
    """The episode's unique id; in lockstep mode requests are batched in its order."""
    pixel_values: NDArray[np.uint8] | None  # [cameras, height, width, 3]
    proprioception: NDArray[np.float32] | None  # [P]
    instruction_ids: NDArray[np.int64]  # [L]
    uniforms: NDArray[np.float32] | None
    """[T] numbers in [0, 1) from the episode's generator; None selects the most likely tokens."""


@dataclass(frozen=True)
class ActResponse:
    """A chunk of action tokens with their log-probs under the distribution that was sampled."""

    tokens: NDArray[np.int64]  # [T]
    log_probs: NDArray[np.float32]  # [T]
    policy_version: int
