"""Random batches with every edge case of the formulas; `test_ragged_batches` checks that each batch
has all of them.

Rows of length one, rows that are masked altogether, holes in the mask where tools spoke, groups of
one, groups whose rewards are equal but for rounding, log-ratios of 60 both ways, NaN wherever the
mask is 0.
"""

# B row, T token

from dataclasses import dataclass

import torch
from hypothesis import settings, strategies

from siirl.algos.ranks import Ranks

QUICK = settings(max_examples=25, deadline=None, derandomize=True)
SEEDS = strategies.integers(min_value=0, max_value=10**6)
ALONE_IN_ITS_GROUP, EQUAL_REWARDS = 3, (4, 5)  # rows; the groups of the same numbers have no others


@dataclass
class Ragged:
    """One random batch, float64."""

    mask_BT: torch.Tensor
    log_probs_BT: torch.Tensor
    old_log_probs_BT: torch.Tensor
    advantages_BT: torch.Tensor
    rewards_BT: torch.Tensor
    values_BT: torch.Tensor
    group_B: torch.Tensor


def ragged(seed: int, *, rows: int = 7, tokens: int = 9, holes: bool = True) -> Ragged:
    """Row 0 has one token, row 1 none, row 2 all of them but for a hole; further rows have holes
    anywhere.

    Row 3 is alone in its group, rows 4 and 5 are a group with rewards 0.1 + 0.2 + 0.3 and 0.6,
    which no binary fraction is; with fewer rows these are missing. A tenth of the log-ratios is
    about 60 or -60, and row 2 has both.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal() -> torch.Tensor:
        return torch.randn(rows, tokens, generator=generator, dtype=torch.float64)

    lengths_B = torch.randint(1, tokens + 1, (rows,), generator=generator)
    lengths_B[:3] = torch.tensor([1, 0, tokens])
    mask_BT = torch.arange(tokens) < lengths_B[:, None]
    mask_BT[2, 3:5] = not holes
    spoken_BT = torch.rand(rows, tokens, generator=generator) < (0.2 if holes else 0.0)
    mask_BT[3:] &= ~spoken_BT[3:]
    mask_BT[EQUAL_REWARDS[0] : EQUAL_REWARDS[1] + 1, :3] = True
    old_BT = -normal().abs()
    shift_BT = torch.where(
        torch.rand(rows, tokens, generator=generator) < 0.1, 60.0 * normal().sign(), 0.3 * normal()
    )
    shift_BT[2, 0], shift_BT[2, 1] = 60.0, -60.0
    junk_BT = torch.full((rows, tokens), torch.nan, dtype=torch.float64)

    def kept(numbers_BT: torch.Tensor) -> torch.Tensor:
        return torch.where(mask_BT, numbers_BT, junk_BT)

    rewards_BT = torch.where(mask_BT, normal(), torch.zeros(()))
    group_B = torch.randint(0, 3, (rows,), generator=generator)
    if rows > EQUAL_REWARDS[1]:
        group_B[ALONE_IN_ITS_GROUP] = 3
        group_B[list(EQUAL_REWARDS)] = 4
        rewards_BT[list(EQUAL_REWARDS)] = 0.0
        rewards_BT[EQUAL_REWARDS[0], :3] = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
        rewards_BT[EQUAL_REWARDS[1], 1] = 0.6

    return Ragged(
        mask_BT=mask_BT,
        log_probs_BT=kept(old_BT + shift_BT),
        old_log_probs_BT=kept(old_BT),
        advantages_BT=kept(normal()),
        rewards_BT=rewards_BT,
        values_BT=kept(normal()),
        group_B=group_B,
    )


class Half:
    """The first of two ranks, for formulas that ask for the other's rows and sums; `other` holds
    what the other rank would send.
    """

    size = 2

    def __init__(self, *others: torch.Tensor) -> None:
        self.others = list(others)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + self.others.pop(0)

    def gather_rows(self, rows: torch.Tensor) -> tuple[torch.Tensor, slice]:
        return torch.cat([rows, self.others.pop(0)]), slice(0, len(rows))


def as_ranks(half: Half) -> Ranks:
    """Type-checks that `Half` has the interface that formulas use."""
    return half
