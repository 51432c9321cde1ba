"""An advantage of your own: the distance to the median of the group; no file of siirl changes.

    siirl train pipeline=grpo env=math algorithm.adv_estimator=own_advantage:median

An estimator is called with keyword arguments for its parameters, among `ESTIMATOR_ARGUMENTS` of
`siirl.algos.advantages`, and returns advantages and returns [B, T]. It sees the rows of its rank;
`ranks` gathers those of all, because a group may lie on several ranks.
"""

# B sample, T token

import torch

from siirl.algos.ranks import Ranks


def median(
    *,
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: torch.Tensor,
    ranks: Ranks,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A = r - median of the group: a single lucky sample does not shift the baseline."""
    rewards_B, own = ranks.gather_rows(token_level_rewards.sum(-1))
    group_B, _ = ranks.gather_rows(index)
    medians_B = torch.stack([rewards_B[group_B == group].quantile(0.5) for group in group_B])
    advantages_BT = (rewards_B - medians_B)[own, None] * response_mask
    return advantages_BT, advantages_BT
