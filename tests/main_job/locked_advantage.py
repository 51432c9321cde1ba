"""An advantage that never releases the interpreter's lock in its second call, as code in C may."""

import ctypes

import torch

CALLS: list[int] = []


def estimate(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The reward of the rollout at each of its tokens."""
    CALLS.append(1)
    if len(CALLS) == 2:
        ctypes.PyDLL(None).sleep(1_000_000)
    advantages_BT = token_level_rewards.sum(-1, keepdim=True) * response_mask
    return advantages_BT, advantages_BT
