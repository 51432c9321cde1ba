"""Rewards by token: of trajectories, less the KL, and of custom nodes, moved to the policy's
tokens.

A custom node's reward may have the shape of `attention_mask` (prompt and response) with the score
in the last column, which is padding in shorter responses. Estimators need [B, T] of the response,
with 0 at tokens that the policy did not choose. Such rewards are moved to the last chosen token of
their row, which keeps the row's sum.
"""

# B row, T token of the response, L token of prompt and response

import logging

import torch
from tensordict import TensorDict

from siirl.algos.kl import kl_estimate
from siirl.algos.tensor_checks import as_bool_mask
from siirl.algos.trajectories import reward_at_finish
from siirl.dag_worker.context import StageContext
from siirl.errors import TensorError
from siirl.reporting.metrics import Value

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


def token_scores(
    batch: TensorDict, *, reward_B: torch.Tensor, env_weight_B: torch.Tensor
) -> torch.Tensor:
    """Token scores [B, T] that sum to each trajectory's reward.

    The environment's return is placed where it was earned: at the last token of each turn or action
    chunk, so that GAE and discounted returns see its position. Outcome estimators sum the row. The
    rest of the reward is placed at the last executed token, as is all of it if a custom workflow
    leaves out the column `env_rewards`.
    """
    if "env_rewards" not in batch.keys():
        return reward_at_finish(rewards_B=reward_B, mask_BT=batch["response_mask"])
    earned_BT = env_weight_B[:, None] * batch["env_rewards"]
    rest_B = reward_B - earned_BT.double().sum(
        1
    )  # in float64, so that the rest of a pure return is at most its rounding error
    return earned_BT + reward_at_finish(rewards_B=rest_B.float(), mask_BT=batch["response_mask"])


def less_kl(batch: TensorDict, context: StageContext) -> tuple[torch.Tensor, dict[str, Value]]:
    """Token rewards [B, T] minus the KL to the reference; the coefficient adapts to the mean KL."""
    mask_BT, ranks = batch["response_mask"], context.ranks
    kl_BT = kl_estimate(
        log_probs_BT=batch["old_log_probs"],
        ref_log_probs_BT=batch["ref_log_prob"],
        mask_BT=mask_BT,
        name=context.config.algorithm.kl_penalty,
    )
    coefficient = context.kl_controller.value
    total, tokens, rows = ranks.sum(
        torch.stack([kl_BT.double().sum(), mask_BT.double().sum(), torch.tensor(float(len(batch)))])
    ).tolist()
    current = total / max(tokens, 1.0)
    context.kl_controller.update(current_kl=current, n_steps=int(rows))
    metrics: dict[str, Value] = {"actor/reward_kl_penalty": current, "actor/kl_coef": coefficient}
    return batch["token_level_scores"] - coefficient * kl_BT, metrics
