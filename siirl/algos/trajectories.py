"""Robot episodes as rows of tokens: the mask of executed action tokens, and the reward's position.

The action of one environment step has `tokens_per_step` tokens (its dimensions). A row holds the
tokens of all steps, [chunks x chunk length x dimensions], up to the longest possible episode.
`finish_step` steps were executed; the mask excludes the rest of the last chunk. Every estimator and
loss of siirl.algos then applies unchanged: the reward is at the last executed token, and a GRPO
advantage is the same at all tokens.
"""

# B episode, T action token

import torch

from siirl.algos.tensor_checks import as_bool_mask, require_axes, require_finite, require_same_shape
from siirl.errors import ConfigError, TensorError


def executed_tokens(
    *, finish_step_B: torch.Tensor, tokens_per_step: int, tokens: int
) -> torch.Tensor:
    """Bool [B, T]: tokens of the first `finish_step` environment steps.

    Args:
        finish_step_B: Executed steps, integers.
        tokens_per_step: Action tokens of one step.
        tokens: T.

    Raises:
        ConfigError: `tokens_per_step` below 1.
        TensorError: Not integers, negative, or more steps than the row has tokens for.
    """
    require_axes(1, finish_step=finish_step_B)
    if tokens_per_step < 1:
        raise ConfigError(f"tokens_per_step={tokens_per_step}: an action has at least one token.")
    if finish_step_B.is_floating_point() or finish_step_B.dtype == torch.bool:
        raise TensorError(
            f"finish_step is {finish_step_B.dtype}: it counts environment steps and must be an "
            "integer."
        )
    end_B = finish_step_B.long() * tokens_per_step
    bad_B = (end_B < 0) | (end_B > tokens)
    if bool(bad_B.any()):
        row = int(bad_B.nonzero()[0])
        raise TensorError(
            f"finish_step is {int(finish_step_B[row])} in row {row}, with {tokens_per_step} tokens "
            f"per step: a row has {tokens} tokens, for 0 to {tokens // tokens_per_step} steps."
        )
    return torch.arange(tokens, device=end_B.device) < end_B[:, None]


def reward_at_finish(*, rewards_B: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Token rewards [B, T]: each episode's reward at its last kept token, 0 elsewhere.

    Raises:
        TensorError: A reward that is not finite, or of an episode without executed tokens.
    """
    require_axes(1, rewards=rewards_B)
    require_axes(2, response_mask=mask_BT)
    kept_BT = as_bool_mask(mask_BT)
    require_same_shape(rewards=rewards_B, rows_of_response_mask=kept_BT.any(-1))
    require_finite(rewards=rewards_B)
    homeless_B = ~kept_BT.any(-1) & (rewards_B != 0)
    if bool(homeless_B.any()):
        row = int(homeless_B.nonzero()[0])
        raise TensorError(
            f"rewards is {float(rewards_B[row])} in row {row}, whose episode executed no token: "
            "drop it."
        )
    after_BT = kept_BT.flip(1).cumsum(1).flip(1)  # kept tokens from here on
    return torch.where(
        kept_BT & (after_BT == 1), rewards_B[:, None], torch.zeros_like(rewards_B[:, None])
    )
