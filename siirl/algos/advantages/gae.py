"""Generalised advantage estimation, over tokens or over decisions of several tokens.

Tokens that the mask excludes (tool output, padding) are skipped: a token's successor is the next
token that the policy chose. Results are exact under padding on either side.

A decision may span several tokens: a chunk of a robot's actions is decoded at once from one
observation. GAE steps from state to state, and no state lies between the tokens of a chunk.
`gae_of_decisions` therefore sums their rewards, reads one value, and gives each of them the
decision's advantage. Each token of a text is its own decision.
"""

# B sample, T token

import functools

import torch

from siirl.algos.advantages.advantage_registry import Result, register_adv_est
from siirl.algos.advantages.whitening import whiten_advantages
from siirl.algos.ranks import ALONE, Ranks, reject_on_all_ranks
from siirl.algos.tensor_checks import as_bool_mask, require_axes, require_finite, require_same_shape
from siirl.errors import ConfigError, TensorError

CACHED_ELEMENTS = 1 << 18  # 1 MiB of float32 for each of about six intermediate tensors
BLOCK = 64  # tokens of a matrix product: fewer give many small products, more give more arithmetic


def gae_advantage(
    *,
    rewards_BT: torch.Tensor,
    values_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    gamma: float,
    lam: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalised advantage estimation, not whitened, and returns.

    Source: arXiv 1506.02438, equations 11 and 16.

    `delta_t = r_t + gamma * V_{t+1} - V_t` and `A_t = delta_t + gamma * lam * A_{t+1}`, where t + 1
    is the next token that the mask keeps (tool output may lie in between) and everything after the
    last one is 0. Returns are `A_t + V_t`.

    Returns:
        Advantages and returns [B, T], 0 where the mask is 0.

    Raises:
        ConfigError: A gamma or lambda outside of [0, 1].
        TensorError: Shapes that differ, rewards or values that are not finite, or a reward at a
            token that the mask excludes, which would be lost silently.
    """
    if not (0 <= gamma <= 1 and 0 <= lam <= 1):
        raise ConfigError(
            f"gamma={gamma} and lam={lam} must lie in [0, 1]: what comes later counts at most as "
            "much as what comes now."
        )
    rewards_BT, values_BT = rewards_BT.detach(), values_BT.detach()
    require_axes(2, token_level_rewards=rewards_BT)
    require_same_shape(token_level_rewards=rewards_BT, values=values_BT, response_mask=mask_BT)
    kept_BT = as_bool_mask(mask_BT)
    dtype = torch.promote_types(rewards_BT.dtype, values_BT.dtype)
    advantages_BT = torch.empty(values_BT.shape, dtype=dtype, device=values_BT.device)
    returns_BT = torch.empty_like(advantages_BT)
    for rows in _rows_at_a_time(values_BT):
        advantages_BT[rows], returns_BT[rows], lost = _gae_of_rows(
            rewards_BT[rows], values_BT[rows], kept_BT[rows], gamma, lam
        )
        if lost:
            _refuse_inputs(rewards_BT, values_BT, kept_BT)
    if not bool(torch.isfinite(returns_BT.sum())):
        # caused by the inputs, or by an overflow that the caller reports
        _refuse_inputs(rewards_BT, values_BT, kept_BT)
    return advantages_BT, returns_BT


def _rows_at_a_time(values_BT: torch.Tensor) -> list[slice]:
    """On a CPU a few rows, so that intermediate tensors stay in the cache; elsewhere all."""
    rows = (
        max(1, CACHED_ELEMENTS // max(1, values_BT.shape[1]))
        if values_BT.device.type == "cpu"
        else max(1, len(values_BT))
    )
    return [slice(start, start + rows) for start in range(0, len(values_BT), rows)]


def _gae_of_rows(
    rewards_BT: torch.Tensor,
    values_BT: torch.Tensor,
    kept_BT: torch.Tensor,
    gamma: float,
    lam: float,
) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Advantages and returns, and whether a reward is NaN or lies where the mask is 0."""
    rewards = torch.where(kept_BT, rewards_BT, rewards_BT.new_zeros(()))
    values = torch.where(kept_BT, values_BT, values_BT.new_zeros(()))
    lost = not torch.equal(rewards, rewards_BT)
    # Move the kept tokens of a row to its front, unless they are there already.
    front_BT = torch.arange(kept_BT.shape[1], device=kept_BT.device) < kept_BT.sum(1, keepdim=True)
    packed = not torch.equal(front_BT, kept_BT)
    front_rewards, front_values = (
        (_moved(x, kept_BT, front_BT) for x in (rewards, values)) if packed else (rewards, values)
    )
    deltas = front_rewards - front_values
    deltas[:, :-1].add_(front_values[:, 1:], alpha=gamma)
    sums = _discounted_sums(deltas, gamma * lam)
    advantages = (
        _moved(sums, front_BT, kept_BT)
        if packed
        else torch.where(kept_BT, sums, sums.new_zeros(()))
    )
    return advantages, advantages + values, lost


def _moved(numbers_BT: torch.Tensor, from_BT: torch.Tensor, to_BT: torch.Tensor) -> torch.Tensor:
    """Move the numbers kept by one mask to the positions kept by another; 0 elsewhere.

    Both keep equally many in each row.
    """
    return torch.zeros_like(numbers_BT).masked_scatter_(to_BT, numbers_BT.masked_select(from_BT))


def _discounted_sums(deltas_BT: torch.Tensor, decay: float) -> torch.Tensor:
    """`S_t = delta_t + decay * S_{t+1}`, by blocks; within a block a triangular matrix product.

    The contribution of later blocks is the same recursion over the blocks' sums, with `decay` to
    the power of the block length.
    """
    rows, tokens = deltas_BT.shape
    width = max(1, min(BLOCK, tokens))
    blocks = -(-tokens // width)
    steps = torch.arange(width, device=deltas_BT.device)
    # from token j (column) to the later token i (row)
    distance = (steps[:, None] - steps[None, :]).to(torch.float64)
    weights = torch.where(distance >= 0, decay ** distance.clamp(min=0), 0.0).to(deltas_BT.dtype)
    padded = torch.nn.functional.pad(deltas_BT, (0, blocks * width - tokens))
    sums = (padded.reshape(-1, width) @ weights).view(rows, blocks, width)
    if blocks > 1:
        first_of_block = _discounted_sums(sums[:, :, 0], decay**width)
        carried = (decay ** (width - steps).to(torch.float64)).to(deltas_BT.dtype)
        sums[:, :-1].addcmul_(first_of_block[:, 1:, None], carried)
    return sums.reshape(rows, blocks * width)[:, :tokens]


def _refuse_inputs(
    rewards_BT: torch.Tensor, values_BT: torch.Tensor, kept_BT: torch.Tensor
) -> None:
    """Raise for the first invalid input, with its position."""
    require_finite(mask=kept_BT, token_level_rewards=rewards_BT, values=values_BT)
    require_rewards_at_kept_tokens(rewards_BT, kept_BT)


def require_rewards_at_kept_tokens(rewards_BT: torch.Tensor, kept_BT: torch.Tensor) -> None:
    """Raise TensorError for a reward where the mask (bool) is 0: it would be lost silently."""
    lost_BT = ~kept_BT & (rewards_BT != 0)
    if bool(lost_BT.any()):
        row, token = lost_BT.nonzero()[0].tolist()
        raise TensorError(
            f"token_level_rewards has a reward at row {row}, token {token}, where response_mask is "
            "0: put it at a kept token."
        )


def decision_starts(*, value_mask: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """Index of the token that represents each token's decision, int64 [B, T]: the last one at
    or before it in `value_mask`.

    Raises:
        TensorError: A decision at a token that the response mask excludes, or a kept token before
            the first decision of its row.
    """
    require_axes(2, value_mask=value_mask)
    require_same_shape(response_mask=response_mask, value_mask=value_mask)
    starts_BT, kept_BT = as_bool_mask(value_mask), as_bool_mask(response_mask)
    wrong_BT = (starts_BT & ~kept_BT) | (kept_BT & (starts_BT.cumsum(1) == 0))
    if bool(wrong_BT.any()):
        row, token = wrong_BT.nonzero()[0].tolist()
        raise TensorError(
            f"value_mask is {int(starts_BT[row, token])} in row {row}, token {token}, where "
            f"response_mask is {int(kept_BT[row, token])}: a decision must be at a kept token, and "
            "the first kept token of a row begins one."
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
    """`gae_advantage` over decisions, repeated at each of their tokens; gamma and lambda count
    decisions.

    Args:
        rewards_BT: Rewards of tokens; those of one decision are summed.
        values_BT: Values of the decisions, read where `value_mask_BT` is 1.
        mask_BT: 1 where the policy chose the token.
        value_mask_BT: 1 at the token that represents a decision: its first.
        gamma: Discount from one decision to the next.
        lam: GAE's lambda from one decision to the next.

    Returns:
        Advantages and returns [B, T], 0 where `mask_BT` is 0.

    Raises:
        ConfigError: A gamma or lambda outside of [0, 1].
        TensorError: Tensors that `gae_advantage` refuses, or a `value_mask_BT` that does not fit
            (`decision_starts`).
    """
    start_BT = decision_starts(value_mask=value_mask_BT, response_mask=mask_BT)
    kept_BT = as_bool_mask(mask_BT)
    require_same_shape(token_level_rewards=rewards_BT, response_mask=mask_BT)
    require_rewards_at_kept_tokens(rewards_BT, kept_BT)
    # before the sum, so that the reported position is right
    require_finite(mask=kept_BT, token_level_rewards=rewards_BT.detach())
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


def with_bootstrap(
    *, rewards_BT: torch.Tensor, mask_BT: torch.Tensor, bootstrap_B: torch.Tensor, gamma: float
) -> torch.Tensor:
    """Rewards [B, T], plus `gamma * V` of the state after each row at its last kept token.

    `delta = r + gamma * V' - V` then holds there too, for a row that was cut or truncated: V
    estimates the rewards to come. It is 0 for an episode that terminated.

    Args:
        rewards_BT: Rewards of tokens.
        mask_BT: 1 where the policy chose the token.
        bootstrap_B: V of the state after the last decision, float [B].
        gamma: Discount from one decision to the next.

    Raises:
        TensorError: A value that is not finite, or of a row without kept tokens.
    """
    require_axes(1, bootstrap_values=bootstrap_B)
    require_finite(bootstrap_values=bootstrap_B)
    kept_BT = as_bool_mask(mask_BT)
    require_same_shape(bootstrap_values=bootstrap_B, rows_of_response_mask=kept_BT.any(-1))
    homeless_B = ~kept_BT.any(-1) & (bootstrap_B != 0)
    if bool(homeless_B.any()):
        row = int(homeless_B.nonzero()[0])
        raise TensorError(
            f"bootstrap_values is {float(bootstrap_B[row])} in row {row}, which has no kept token "
            "to add it to: drop the row."
        )
    last_BT = kept_BT & (kept_BT.flip(1).cumsum(1).flip(1) == 1)
    return rewards_BT + last_BT * (gamma * bootstrap_B)[:, None]


@register_adv_est("gae")
def compute_gae_advantage_return(
    token_level_rewards: torch.Tensor,
    values: torch.Tensor,
    response_mask: torch.Tensor,
    gamma: float,
    lam: float,
    *,
    value_mask: torch.Tensor | None = None,
    bootstrap_values: torch.Tensor | None = None,
    adv_whitening: str = "unbiased",
    ranks: Ranks = ALONE,
) -> Result:
    """`gae_advantage`, or with `value_mask` `gae_of_decisions`, whitened over the kept tokens of
    all ranks, as PPO implementations do.

    Rows with `bootstrap_values` get the value of the state after their last decision
    (`with_bootstrap`). Returns are not whitened.
    """
    kernel = (
        gae_advantage
        if value_mask is None
        else functools.partial(gae_of_decisions, value_mask_BT=value_mask)
    )
    rewards_BT = token_level_rewards
    with reject_on_all_ranks(ranks):
        if bootstrap_values is not None:
            rewards_BT = with_bootstrap(
                rewards_BT=rewards_BT,
                mask_BT=response_mask,
                bootstrap_B=bootstrap_values,
                gamma=gamma,
            )
        advantages_BT, returns_BT = kernel(
            rewards_BT=rewards_BT, values_BT=values, mask_BT=response_mask, gamma=gamma, lam=lam
        )
    return whiten_advantages(
        advantages_BT, response_mask, how=adv_whitening, ranks=ranks
    ), returns_BT
