"""Tokens that are one decision: a chunk of a robot's actions is decoded at once, from one
observation, as many tokens.

GAE steps from state to state. Between the tokens of a chunk no time passes and no state lies, so
their rewards are one reward, their value is one value, and each of them gets the decision's
advantage. A text's tokens are decisions of their own.
"""

# B sample, T token

import torch

from siirl.algos.advantages.token_level import gae_advantage, require_rewards_at_kept_tokens
from siirl.algos.tensor_checks import as_bool_mask, require_axes, require_finite, require_same_shape
from siirl.errors import TensorError


def decision_starts(*, value_mask: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """Place of the token that stands for the decision of each token, int64 [B, T]: the last one at
    or before it in `value_mask`.

    Raises:
        TensorError: A decision at a token that the response mask leaves out, or a kept token before
            any decision of its row.
    """
    require_axes(2, value_mask=value_mask)
    require_same_shape(response_mask=response_mask, value_mask=value_mask)
    starts_BT, kept_BT = as_bool_mask(value_mask), as_bool_mask(response_mask)
    wrong_BT = (starts_BT & ~kept_BT) | (kept_BT & (starts_BT.cumsum(1) == 0))
    if bool(wrong_BT.any()):
        row, token = wrong_BT.nonzero()[0].tolist()
        raise TensorError(
            f"value_mask is {int(starts_BT[row, token])} in row {row}, token {token}, where response_mask is {int(kept_BT[row, token])}: a "
            "decision stands at a kept token, and the first kept token of a row begins one."
        )
    places_T = torch.arange(starts_BT.shape[1], device=starts_BT.device)
    return torch.where(starts_BT, places_T, torch.zeros_like(places_T)).cummax(dim=1).values


def gae_of_decisions(
    *,
    rewards_BT: torch.Tensor,
    values_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    value_mask_BT: torch.Tensor,
    gamma: float,
    lam: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`gae_advantage` between decisions, said at each of their tokens; gamma and lambda count
    decisions.

    Args:
        rewards_BT: Rewards of tokens; those of one decision are summed.
        values_BT: Read where `value_mask_BT` is 1.
        mask_BT: 1 where the policy chose the token.
        value_mask_BT: 1 at the token that stands for a decision: its first.
        gamma: Discount from one decision to the next.
        lam: GAE's lambda, likewise.

    Returns:
        Advantages and returns [B, T], 0 where `mask_BT` is 0.

    Raises:
        ConfigError: A gamma or lambda outside of [0, 1].
        TensorError: As `gae_advantage`; or a `value_mask_BT` that does not fit (`decision_starts`).
    """
    start_BT = decision_starts(value_mask=value_mask_BT, response_mask=mask_BT)
    kept_BT = as_bool_mask(mask_BT)
    require_same_shape(token_level_rewards=rewards_BT, response_mask=mask_BT)
    require_rewards_at_kept_tokens(rewards_BT, kept_BT)
    require_finite(
        mask=kept_BT, token_level_rewards=rewards_BT.detach()
    )  # before they are summed, so that the place is right
    gathered_BT = torch.zeros_like(rewards_BT).scatter_add_(1, start_BT, rewards_BT.detach())
    advantages_BT, returns_BT = gae_advantage(
        rewards_BT=gathered_BT,
        values_BT=values_BT,
        mask_BT=as_bool_mask(value_mask_BT),
        gamma=gamma,
        lam=lam,
    )
    zeros_BT = torch.zeros_like(advantages_BT)
    return tuple(
        torch.where(kept_BT, x.gather(1, start_BT), zeros_BT) for x in (advantages_BT, returns_BT)
    )  # type: ignore[return-value]
