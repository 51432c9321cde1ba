"""Moves rewards of custom nodes to the tokens that the policy chose.

The architecture guide's reward (section 11.2) has the shape of `attention_mask` (prompt and
response) and puts the score in the last column, which is padding in shorter responses. Estimators
need [B, T] of the response, with 0 at tokens that the policy did not choose. Such rewards are moved
to the last chosen token of their row, which keeps the row's sum.
"""

# B row, T token of the response, L token of prompt and response

import logging

import torch
from tensordict import TensorDict

from siirl.algos.tensor_checks import as_bool_mask
from siirl.algos.trajectories import reward_at_finish
from siirl.errors import TensorError

logger = logging.getLogger(__name__)

REWARD_COLUMNS = ("token_level_scores", "token_level_rewards")


def place_rewards(batch: TensorDict, *, before: TensorDict) -> None:
    """Move new or changed reward columns of `batch` to the policy's tokens.

    `before` is the node's input.

    Raises:
        TensorError: A column has neither the response's shape nor that of prompt and response.
    """
    if "response_mask" not in batch.keys():
        return
    for name in REWARD_COLUMNS:
        if name in batch.keys() and batch[name] is not before.get(name, None):
            batch[name] = rewards_at_tokens(
                batch[name],
                mask_BT=batch["response_mask"],
                sequence_mask=batch.get("attention_mask", None),
                name=name,
            )


def rewards_at_tokens(
    rewards: torch.Tensor, *, mask_BT: torch.Tensor, sequence_mask: torch.Tensor | None, name: str
) -> torch.Tensor:
    """Rewards [B, T] with the row sums of `rewards`, and 0 where the mask is 0.

    Args:
        rewards: [B, T] of the response, or [B, L] of prompt and response.
        mask_BT: 1 at the tokens that the policy chose.
        sequence_mask: [B, L]; text only.
        name: Column name for errors and warnings.

    Raises:
        TensorError: The shape is neither.
    """
    shapes = [list(mask.shape) for mask in (mask_BT, sequence_mask) if mask is not None]
    if list(rewards.shape) not in shapes:
        raise TensorError(
            f"{name} has shape {list(rewards.shape)}: expected one reward per token, "
            f"{' or '.join(map(str, shapes))}."
        )
    if not rewards.is_floating_point():
        _warn_of_whole_numbers(name, str(rewards.dtype))
        rewards = rewards.float()
    kept_BT = as_bool_mask(mask_BT)
    of_response_BT = rewards[:, rewards.shape[1] - mask_BT.shape[1] :]
    at_tokens_BT = torch.where(kept_BT, of_response_BT, torch.zeros_like(of_response_BT))
    elsewhere_B = rewards.double().sum(1) - at_tokens_BT.double().sum(1)
    if not bool((elsewhere_B.abs() > 0).any()):
        return at_tokens_BT
    return at_tokens_BT + reward_at_finish(rewards_B=elsewhere_B.to(rewards.dtype), mask_BT=mask_BT)


_warned: set[str] = set()


def _warn_of_whole_numbers(name: str, dtype: str) -> None:
    if name not in _warned:
        _warned.add(name)
        logger.warning(
            "%s has dtype %s, which stores a score of 0.5 as 0: create the tensor with "
            "dtype=torch.float32.",
            name,
            dtype,
        )
