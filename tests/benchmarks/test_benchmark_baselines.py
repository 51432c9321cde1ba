"""The benchmark's baselines compute the same values: otherwise its ratios would be meaningless."""

import pytest
import torch

from benchmarks.plain_algorithms import (
    gae_loop,
    group_advantages_by_floats,
    group_advantages_by_lists,
    karmarkar_karp_spread,
    scores_from_all_logits,
)
from siirl.algos.advantages import gae_advantage, grpo_advantage
from siirl.algos.linear_log_probs import linear_token_scores


@pytest.mark.parametrize("holes", [False, True])
def test_the_loop_over_time_steps_is_gae(holes):
    generator = torch.Generator().manual_seed(0)
    mask_BT = torch.arange(150) < torch.randint(1, 151, (9,), generator=generator)[:, None]
    if holes:
        mask_BT &= torch.rand(9, 150, generator=generator) > 0.2
    values_BT = torch.randn(9, 150, generator=generator, dtype=torch.float64)
    rewards_BT = values_BT.flip(0) * mask_BT
    found = gae_advantage(
        rewards_BT=rewards_BT, values_BT=values_BT, mask_BT=mask_BT, gamma=0.97, lam=0.9
    )
    torch.testing.assert_close(found, gae_loop(rewards_BT, values_BT, mask_BT.double(), 0.97, 0.9))


def test_both_loops_over_dicts_are_grpo():
    generator = torch.Generator().manual_seed(0)
    rewards_B, group_B = torch.randn(60, generator=generator), torch.arange(60) % 7
    found_B = grpo_advantage(rewards_B=rewards_B, group_B=group_B)
    torch.testing.assert_close(group_advantages_by_lists(rewards_B, group_B.tolist()), found_B)
    torch.testing.assert_close(group_advantages_by_floats(rewards_B, group_B.tolist()), found_B)


def test_scores_from_all_logits_are_the_same():
    generator = torch.Generator().manual_seed(0)
    hidden_ND, weight_VD = (
        torch.randn(5, 3, generator=generator),
        torch.randn(11, 3, generator=generator),
    )
    tokens_N = torch.tensor([0, 10, 3, 3, 7])
    scores = linear_token_scores(hidden=hidden_ND, weight=weight_VD, tokens=tokens_N)
    torch.testing.assert_close(
        (scores.log_probs_BT, scores.entropy_BT),
        scores_from_all_logits(hidden_ND, weight_VD, tokens_N),
    )


def test_the_textbooks_karmarkar_karp_by_hand():
    assert karmarkar_karp_spread([8, 7, 6, 5, 4], 2) == 2  # 8-7=1, 6-5=1, 4-1=3, 3-1=2
