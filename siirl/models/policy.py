"""What rollout and training need of a vision-language-action (VLA) policy: one forward pass from an observation to a chunk of tokens.

The tiny VLA and a 7B OpenVLA-OFT have the same shape here: all tokens of a chunk are decoded in parallel, each from its own
logits, so the same engine samples them and the same scorer computes their log-probs.
"""

# N observation, T = K*A token of a chunk (K actions of A dimensions), V bin

from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from siirl.models.action_tokenizer import ActionTokenizer


@runtime_checkable
class Policy(Protocol):
    """A `torch.nn.Module` with these members. A user's own policy is named by `actor_rollout_ref.model.policy=module:name`."""

    action_tokenizer: ActionTokenizer
    chunk_length: int
    """K, the number of actions decoded from one observation."""

    def tokenize_instruction(self, text: str) -> NDArray[np.int64]:
        """Token ids of an instruction, int64 [L], always of the same length."""

    def __call__(
        self, *, pixel_values: torch.Tensor | None, proprioception: torch.Tensor | None, instruction_ids: torch.Tensor
    ) -> torch.Tensor:
        """Logits [N, T, V].

        Args:
            pixel_values: uint8 [N, cameras, height, width, 3], or None for a policy that has no camera.
            proprioception: float32 [N, P], or None.
            instruction_ids: int64 [N, L].
        """
