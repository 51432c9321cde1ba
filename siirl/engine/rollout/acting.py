"""Requests and responses of an engine that generates actions."""

# T token of a chunk, J number of a choice, U uniform number, L token of an instruction, P
# proprioception

from dataclasses import dataclass
from typing import Any

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
    """[U] numbers in [0, 1) from the episode's generator; None selects the distribution's mode."""


@dataclass(frozen=True)
class ActResponse:
    """A chunk with its log-probs under the distribution that was sampled."""

    choices: NDArray[Any]  # int64 [T], or float32 [T] or [T, J]
    """Input of the policy distribution's `log_prob`."""
    values: NDArray[Any]  # [T]
    """Input of the policy's action decoder."""
    log_probs: NDArray[np.float32]  # [T]
    policy_version: int
