"""What rollout and training need of a vision-language-action (VLA) policy: one forward pass from an observation to a chunk of tokens.

The tiny VLA and a 7B OpenVLA-OFT have the same shape here: all tokens of a chunk are decoded in parallel, each from its own
logits, so the same engine samples them and the same scorer computes their log-probs.
"""

# N observation, T = K*A token of a chunk (K actions of A dimensions), V bin

import abc

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from siirl.models.action_tokenizer import ActionTokenizer


class Policy(nn.Module, abc.ABC):
    """A VLA policy. A user's own is named by `actor_rollout_ref.model.policy=module:name`, which is called with (spec, path, **options)."""

    action_tokenizer: ActionTokenizer
    chunk_length: int
    """K, the number of actions decoded from one observation."""

    @abc.abstractmethod
    def tokenize_instruction(self, text: str) -> NDArray[np.int64]:
        """Token ids of an instruction, int64 [L], always of the same length."""

    @abc.abstractmethod
    def forward(
        self, *, pixel_values: torch.Tensor | None, proprioception: torch.Tensor | None, instruction_ids: torch.Tensor
    ) -> torch.Tensor:
        """Logits [N, T, V].

        Args:
            pixel_values: uint8 [N, cameras, height, width, 3], or None for a policy that has no camera.
            proprioception: float32 [N, P], or None.
            instruction_ids: int64 [N, L].
        """
