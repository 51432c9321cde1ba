"""The samples of all ranks, for estimators that give a sample's advantage to all of its tokens.

An outcome estimator sums a sample's token rewards at all positions, because a custom reward may be
in the last column, which may be padding. Every kept token gets the advantage of its sample; returns
are the same numbers. A row without kept tokens still counts in its group: it was sampled and
rewarded. A group may span ranks.
"""

# B sample, T token

from dataclasses import dataclass

import torch

from siirl.algos.advantages.advantage_registry import Index, Result
from siirl.algos.groups import group_ids
from siirl.algos.ranks import Ranks
from siirl.algos.tensor_checks import as_bool_mask, require_axes, require_finite, require_same_shape
from siirl.errors import TensorError


@dataclass(frozen=True)
class Samples:
    """The samples of all ranks, and the index range of this rank's."""

    rewards_B: torch.Tensor
    """Each sample's summed token rewards."""
    group_B: torch.Tensor
    own: slice
    kept_BT: torch.Tensor
    """Bool: the tokens of this rank's samples that the policy chose."""
    rewards_BT: torch.Tensor
    """This rank's token rewards."""

    def at_tokens(self, advantages_B: torch.Tensor) -> Result:
        """Advantages and returns [B, T]: each kept token gets the advantage of its sample."""
        own_BT = advantages_B[self.own][:, None].expand_as(self.rewards_BT)
        advantages_BT = torch.where(self.kept_BT, own_BT, torch.zeros_like(self.rewards_BT))
        return advantages_BT, advantages_BT.clone()


def gather_samples(
    rewards_BT: torch.Tensor, mask_BT: torch.Tensor, index: Index, *, ranks: Ranks
) -> Samples:
    """Gather the samples of all ranks.

    Raises:
        TensorError: Shapes that differ, or a sum that is not finite, which raises on every rank.
    """
    rewards_BT = rewards_BT.detach()
    require_axes(2, token_level_rewards=rewards_BT)
    require_same_shape(token_level_rewards=rewards_BT, response_mask=mask_BT)
    kept_BT = as_bool_mask(mask_BT)
    if ranks.size > 1 and not isinstance(index, torch.Tensor):
        raise TensorError(
            "index must be an int64 tensor on several ranks: strings would be numbered differently "
            "on each rank."
        )
    group_B = group_ids(index).to(rewards_BT.device)
    if len(group_B) != len(rewards_BT):
        raise TensorError(
            f"index has {len(group_B)} entries and token_level_rewards {len(rewards_BT)} rows: "
            "each sample needs one."
        )
    rewards_B, own = ranks.gather_rows(rewards_BT.sum(-1))
    if not bool(torch.isfinite(rewards_B).all()):
        require_finite(token_level_rewards=rewards_BT)
        require_finite(summed_token_level_rewards=rewards_B[own])  # finite with an infinite sum
        raise TensorError(
            "token_level_rewards of another rank are not finite; its own message names the row."
        )
    group_B, _ = ranks.gather_rows(group_B)
    return Samples(rewards_B, group_B, own, kept_BT, rewards_BT)
