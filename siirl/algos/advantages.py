"""Advantages: how much better a sample, or a token of it, was than expected.

An estimator is any function that returns `(advantages, returns)`, both [B, T] and 0 where the mask is 0, and is registered under
the name that `algorithm.adv_estimator` gives. It is called by name with what its signature asks for among `ESTIMATOR_ARGUMENTS`,
which are the names of the user's documents; a user's own function is registered in the same way. The formulas stand in the
functions without a decorator. Trajectories of robots need no form of their own: their reward stands at the last executed token.
"""

# B sample, T token, P padding: tokens that the mask leaves out are skipped, wherever they stand

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from siirl.algos.call import call_by_name, check_arguments, same_definition
from siirl.algos.checks import as_bool_mask, require_axes, require_finite, require_same_shape
from siirl.algos.groups import group_ids, group_statistics
from siirl.algos.masked import masked_whiten
from siirl.algos.ranks import ALONE, Ranks
from siirl.errors import ConfigError, TensorError, UnknownNameError

Estimator = Callable[..., tuple[torch.Tensor, torch.Tensor]]
Index = torch.Tensor | NDArray[np.generic]

ADVANTAGES: dict[str, Estimator] = {}

ESTIMATOR_ARGUMENTS = {
    "token_level_rewards": "[B, T], rewards after any KL penalty",
    "response_mask": "[B, T], 1 where the policy chose the token",
    "index": "int64 [B], group of each sample",
    "values": "[B, T], the critic's values",
    "gamma": "discount factor",
    "lam": "GAE's lambda",
    "epsilon": "added to deviations",
    "norm_adv_by_std_in_grpo": "whether GRPO divides by the group's deviation",
    "min_group_spread": "groups whose rewards differ by less carry no advantage",
    "ranks": "siirl.algos.ranks.Ranks: sums and rows of all ranks",
}


def register_adv_est(name_or_enum: Any) -> Callable[[Estimator], Estimator]:
    """Decorator that registers an advantage estimator under a name, or under the value of an Enum member.

    Raises:
        ConfigError: The name is taken by another function, or the function requires an argument that no estimator is given.
    """
    name = str(getattr(name_or_enum, "value", name_or_enum))

    def decorator(function: Estimator) -> Estimator:
        if name in ADVANTAGES and not same_definition(ADVANTAGES[name], function):
            raise ConfigError(f"Advantage estimator {name!r} is already {ADVANTAGES[name].__qualname__}: choose another name.")
        check_arguments(function, known=ESTIMATOR_ARGUMENTS, kind="advantage estimator")
        ADVANTAGES[name] = function
        return function

    return decorator


def estimate_advantages(*, name: str, available: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns [B, T] of the estimator `name`, from what is `available` of `ESTIMATOR_ARGUMENTS`.

    Raises:
        UnknownNameError: No such estimator.
        ConfigError: The estimator needs something that is not available (GAE without a critic).
        TensorError: Inputs or results of a wrong shape, or not finite.
    """
    if name not in ADVANTAGES:
        raise UnknownNameError.of(kind="advantage estimator", name=name, known=ADVANTAGES)
    advantages_BT, returns_BT = call_by_name(ADVANTAGES[name], available, kind="Advantage estimator")
    require_same_shape(response_mask=available["response_mask"], advantages=advantages_BT, returns=returns_BT)
    require_finite(advantages=advantages_BT, returns=returns_BT)
    return advantages_BT, returns_BT


def grpo_advantage(
    *,
    rewards_B: torch.Tensor,
    group_B: torch.Tensor,
    epsilon: float = 1e-6,
    normalize_by_std: bool = True,
    min_group_spread: float = 0.0,
) -> torch.Tensor:
    """GRPO: `A_i = (r_i - mean(r)) / (std(r) + epsilon)` within the group (DeepSeekMath, arXiv 2402.03300, section 4.1.2).

    With `normalize_by_std` False the deviation is left out (Dr. GRPO, arXiv 2503.20783, section 3.2). The deviation is that with
    n - 1, as in the field's implementations. On purpose different from the user's documents: a group of one has advantage 0, not
    its raw reward, and rewards that are equal but for rounding are equal.

    Args:
        rewards_B: One reward a sample.
        group_B: int64, samples with the same number form a group.
        epsilon: 1e-6 as in the documents; it matters only for groups of nearly equal rewards.
        normalize_by_std: Divide by the group's deviation.
        min_group_spread: Groups whose largest and smallest reward differ by less have advantage 0: dividing noise by its own
            deviation would make +-1 of it.
    """
    statistics = group_statistics(values_B=rewards_B, group_B=group_B)
    centred_B = rewards_B.to(torch.float64) - statistics.mean_B
    if normalize_by_std:
        centred_B = centred_B / (statistics.std_B + epsilon)
    told_apart_B = statistics.differs_B & (statistics.spread_B >= min_group_spread)
    return torch.where(told_apart_B, centred_B, torch.zeros_like(centred_B)).to(rewards_B.dtype)


def rloo_advantage(*, rewards_B: torch.Tensor, group_B: torch.Tensor, min_group_spread: float = 0.0) -> torch.Tensor:
    """RLOO: `A_i = r_i - mean of the others' r` (arXiv 2402.14740, section 3.2); 0 for a group of one.

    With n samples this is `n / (n - 1) * (r_i - mean(r))`, the mean with the sample itself, which is what is computed.
    """
    statistics = group_statistics(values_B=rewards_B, group_B=group_B)
    count_B = statistics.count_B.to(torch.float64)
    scale_B = count_B / (count_B - 1).clamp(min=1)
    advantages_B = scale_B * (rewards_B.to(torch.float64) - statistics.mean_B)
    told_apart_B = statistics.differs_B & (statistics.spread_B >= min_group_spread)
    return torch.where(told_apart_B, advantages_B, torch.zeros_like(advantages_B)).to(rewards_B.dtype)


def gae_advantage(
    *, rewards_BT: torch.Tensor, values_BT: torch.Tensor, mask_BT: torch.Tensor, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalised advantage estimation (arXiv 1506.02438, equations 11 and 16), not whitened, and returns.

    `delta_t = r_t + gamma * V_{t+1} - V_t` and `A_t = delta_t + gamma * lam * A_{t+1}`, where t + 1 is the next token that the mask
    keeps (a tool may have spoken in between) and everything after the last one is 0. Returns are `A_t + V_t`.

    Returns:
        Advantages and returns [B, T], 0 where the mask is 0.

    Raises:
        TensorError: A reward at a token that the mask leaves out, which would be lost silently.
    """
    require_axes(2, token_level_rewards=rewards_BT)
    require_same_shape(token_level_rewards=rewards_BT, values=values_BT, response_mask=mask_BT)
    kept_BT = as_bool_mask(mask_BT)
    require_finite(mask=kept_BT, token_level_rewards=rewards_BT, values=values_BT)
    lost_BT = ~kept_BT & (rewards_BT != 0)
    if bool(lost_BT.any()):
        row, token = lost_BT.nonzero()[0].tolist()
        raise TensorError(
            f"token_level_rewards has a reward at row {row}, token {token}, where response_mask is 0: put it at a kept token."
        )

    zeros_BT = torch.zeros_like(values_BT)
    rewards, values = torch.where(kept_BT, rewards_BT, zeros_BT), torch.where(kept_BT, values_BT, zeros_BT)
    place_BT = _places_without_holes(kept_BT)
    if place_BT is not None:
        rewards, values = _pack(rewards, kept_BT, place_BT), _pack(values, kept_BT, place_BT)
    next_values = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    advantages = _discounted_sums(rewards + gamma * next_values - values, gamma * lam)
    if place_BT is not None:
        advantages = advantages.gather(1, place_BT.clamp(min=0))
    advantages_BT = torch.where(kept_BT, advantages, zeros_BT)
    return advantages_BT, torch.where(kept_BT, advantages_BT + values_BT, zeros_BT)


def _places_without_holes(kept_BT: torch.Tensor) -> torch.Tensor | None:
    """Where each kept token stands when the others of its row are taken out; None if no row has a hole, so that all may stay."""
    starts_B = kept_BT[:, :1].sum(1) + (kept_BT[:, 1:] & ~kept_BT[:, :-1]).sum(1)
    return kept_BT.cumsum(1) - 1 if bool((starts_B > 1).any()) else None


def _pack(numbers_BT: torch.Tensor, kept_BT: torch.Tensor, place_BT: torch.Tensor) -> torch.Tensor:
    """Move the kept numbers of each row to its front and put zeros behind them."""
    padded = numbers_BT.new_zeros(numbers_BT.shape[0], numbers_BT.shape[1] + 1)  # the last column takes what is left out
    padded.scatter_(1, torch.where(kept_BT, place_BT, numbers_BT.shape[1]), numbers_BT)
    return padded[:, :-1]


def _discounted_sums(deltas_BT: torch.Tensor, decay: float, *, block: int = 64) -> torch.Tensor:
    """`S_t = delta_t + decay * S_{t+1}`, a block of tokens at a time: inside of a block it is one triangular matrix product."""
    steps = torch.arange(block, device=deltas_BT.device)
    distance = (steps[:, None] - steps[None, :]).to(torch.float64)  # from token j (column) to the later token i (row)
    weights = torch.where(distance >= 0, decay ** distance.clamp(min=0), 0.0).to(deltas_BT.dtype)
    carried = (decay ** (block - steps).to(torch.float64)).to(deltas_BT.dtype)
    sums_BT = torch.empty_like(deltas_BT)
    after_B1 = deltas_BT.new_zeros(deltas_BT.shape[0], 1)
    for end in range(deltas_BT.shape[1], 0, -block):
        start = max(0, end - block)
        width = end - start
        sums = deltas_BT[:, start:end] @ weights[:width, :width] + after_B1 * carried[block - width :]
        sums_BT[:, start:end] = sums
        after_B1 = sums[:, :1]
    return sums_BT


def _outcome(
    kernel: Callable[..., torch.Tensor], *, rewards: torch.Tensor, mask: torch.Tensor, index: Index, ranks: Ranks, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give every kept token the advantage that `kernel` finds for its sample, with the groups of all ranks in view."""
    require_axes(2, token_level_rewards=rewards)
    require_same_shape(token_level_rewards=rewards, response_mask=mask)
    if ranks.size > 1 and not isinstance(index, torch.Tensor):
        raise TensorError("index must be an int64 tensor on several ranks: the numbers of strings would differ from rank to rank.")
    # A reward may stand anywhere in its row, also in the padding (the documents' custom reward writes to the last column).
    rewards_B, own = ranks.gather_rows(rewards.sum(-1))
    group_B, _ = ranks.gather_rows(group_ids(index).to(rewards.device))
    advantages_B = kernel(rewards_B=rewards_B, group_B=group_B, **options)[own]
    kept_BT = as_bool_mask(mask)
    advantages_BT = torch.where(kept_BT, advantages_B[:, None].expand_as(rewards), torch.zeros_like(rewards))
    return advantages_BT, advantages_BT.clone()


@register_adv_est("grpo")
def compute_grpo_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Index,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    *,
    min_group_spread: float = 0.0,
    ranks: Ranks = ALONE,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`grpo_advantage` of each sample's summed reward, at all of its tokens; returns are the same numbers."""
    return _outcome(
        grpo_advantage,
        rewards=token_level_rewards,
        mask=response_mask,
        index=index,
        ranks=ranks,
        epsilon=epsilon,
        normalize_by_std=norm_adv_by_std_in_grpo,
        min_group_spread=min_group_spread,
    )


@register_adv_est("rloo")
def compute_rloo_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Index,
    *,
    min_group_spread: float = 0.0,
    ranks: Ranks = ALONE,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`rloo_advantage` of each sample's summed reward, at all of its tokens; returns are the same numbers."""
    return _outcome(
        rloo_advantage, rewards=token_level_rewards, mask=response_mask, index=index, ranks=ranks, min_group_spread=min_group_spread
    )


@register_adv_est("gae")
def compute_gae_advantage_return(
    token_level_rewards: torch.Tensor,
    values: torch.Tensor,
    response_mask: torch.Tensor,
    gamma: float,
    lam: float,
    *,
    ranks: Ranks = ALONE,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`gae_advantage`, whitened over the kept tokens of all ranks, as PPO implementations do; returns are not whitened."""
    advantages_BT, returns_BT = gae_advantage(rewards_BT=token_level_rewards, values_BT=values, mask_BT=response_mask, gamma=gamma, lam=lam)
    return masked_whiten(advantages_BT, response_mask, ranks=ranks), returns_BT
