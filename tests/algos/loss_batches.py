"""Ragged batches as policy losses take them, and the result of a loss on one."""

# B row, T token

from dataclasses import dataclass
from typing import Any

import ragged as shared
import torch
from hypothesis import settings
from ragged import Ragged, ragged

from siirl.algos.policy_losses import PolicyLoss, policy_loss

QUICK = settings(shared.QUICK, derandomize=True)  # the same examples in every run


@dataclass
class LossBatch(Ragged):
    """A `Ragged` batch with behaviour log-probs, and some tokens that a selection chose."""

    rollout_log_probs_BT: torch.Tensor
    selected_BT: torch.Tensor


def loss_batch(seed: int, **options: Any) -> LossBatch:
    """A batch with every edge case of the formulas (see `ragged`); a third of its tokens is chosen.

    The advantages of row 4, of a group with equal rewards, are 0: neither good nor bad.
    """
    plain = ragged(seed, **options)
    plain.advantages_BT[4:5] = torch.where(plain.mask_BT[4:5], 0.0, plain.advantages_BT[4:5])
    generator = torch.Generator().manual_seed(seed + 1)
    shift_BT = torch.randn(plain.mask_BT.shape, generator=generator, dtype=torch.float64)
    selected_BT = (torch.rand(plain.mask_BT.shape, generator=generator) < 0.3) & plain.mask_BT
    return LossBatch(
        **vars(plain),
        rollout_log_probs_BT=plain.old_log_probs_BT - 1.5 * shift_BT,
        selected_BT=selected_BT,
    )


def columns_of(batch: LossBatch) -> dict[str, torch.Tensor]:
    """The columns under the names of `siirl.algos.policy_losses.LOSS_ARGUMENTS`."""
    names = (
        "log_probs_BT",
        "old_log_probs_BT",
        "rollout_log_probs_BT",
        "advantages_BT",
        "mask_BT",
        "selected_BT",
    )
    return {name: getattr(batch, name) for name in names}


def loss_of(name: str, columns: dict[str, torch.Tensor], options: dict[str, Any]) -> PolicyLoss:
    """The loss `name` of some columns."""
    return policy_loss(
        name=name, available={**columns, **options, "loss_agg_mode": "token-mean", "config": None}
    )
