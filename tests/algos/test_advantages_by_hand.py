"""Advantages of a few samples, with numbers that can be checked by hand, and the
arguments of an estimator's options.
"""

import numpy as np
import pytest
import torch
from ragged import Half

from siirl.algos.advantages import (
    cpgd_advantage,
    gae_advantage,
    gpg_advantage,
    grpo_advantage,
    opo_advantage,
    pass_at_k_advantage,
    rloo_advantage,
    whiten_advantages,
)
from siirl.algos.advantages.gae import compute_gae_advantage_return
from siirl.algos.advantages.group_relative import (
    compute_grpo_outcome_advantage,
    compute_opo_outcome_advantage,
)
from siirl.algos.advantages.reinforce import (
    compute_reinforce_plus_plus_baseline_outcome_advantage,
    compute_reinforce_plus_plus_outcome_advantage,
    compute_remax_outcome_advantage,
)
from siirl.errors import ConfigError, TensorError, UnknownNameError

ONE_GROUP = torch.zeros(4).long()
TWO_GROUPS = torch.tensor([0, 0, 1, 1])


def rewards(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_grpo_of_two_samples():
    advantages = grpo_advantage(rewards_B=rewards(0, 1), group_B=torch.tensor([5, 5]))
    assert advantages.tolist() == pytest.approx([-0.70710, 0.70710], abs=1e-4)  # -+0.5 / sqrt(0.5)


def test_grpo_without_deviation_is_the_distance_to_the_mean():
    advantages = grpo_advantage(
        rewards_B=rewards(0, 1, 5, 2), group_B=ONE_GROUP, normalize_by_std=False
    )
    assert advantages.tolist() == [-2.0, -1.0, 3.0, 0.0]


def test_rloo_is_the_distance_to_the_mean_of_the_others():
    assert rloo_advantage(
        rewards_B=rewards(0, 1, 5, 2), group_B=ONE_GROUP
    ).tolist() == pytest.approx([-8 / 3, -4 / 3, 4, 0])


def test_opo_weighs_rewards_by_length():
    advantages = opo_advantage(
        rewards_B=rewards(1, 0), group_B=torch.zeros(2).long(), length_B=torch.tensor([30, 10])
    )
    assert advantages.tolist() == [0.25, -0.75]  # the baseline is 30 / 40


def test_opo_of_equal_lengths_is_the_distance_to_the_mean():
    advantages = opo_advantage(
        rewards_B=rewards(1, 0), group_B=torch.zeros(2).long(), length_B=torch.tensor([7, 7])
    )
    assert advantages.tolist() == [0.5, -0.5]


def test_opo_counts_no_token_that_a_tool_spoke():
    mask = torch.tensor([[1, 0, 0, 1], [1, 1, 0, 0]])  # two tokens of the policy's each
    advantages, _ = compute_opo_outcome_advantage(
        torch.tensor([[1.0, 0, 0, 0], [0.0, 0, 0, 0]]), mask, torch.tensor([0, 0])
    )
    assert advantages[:, 0].tolist() == [0.5, -0.5]


def test_opo_refuses_a_negative_length():
    with pytest.raises(TensorError, match=r"length is -1\.0 in row 1"):
        opo_advantage(
            rewards_B=rewards(1, 0), group_B=torch.zeros(2).long(), length_B=torch.tensor([7, -1])
        )


def test_gpg_makes_up_for_samples_without_a_signal():
    advantages = gpg_advantage(rewards_B=rewards(1, 1, 0, 1), group_B=TWO_GROUPS)
    assert advantages.tolist() == [
        0.0,
        0.0,
        -1.0,
        1.0,
    ]  # 2 of 4 samples have a signal: alpha = 2


def test_gpg_counts_groups_of_wrong_answers_with_a_shaped_reward_as_signal():
    advantages = gpg_advantage(rewards_B=rewards(0, 0, -1, 1), group_B=TWO_GROUPS)
    assert advantages.tolist() == [0.0, 0.0, -2.0, 2.0]


def test_gpg_takes_a_fixed_factor_and_divisor():
    assert gpg_advantage(
        rewards_B=rewards(0, 1), group_B=torch.zeros(2).long(), alpha=1.0, f_norm=0.5
    ).tolist() == [-1.0, 1.0]


def test_gpg_refuses_a_divisor_of_zero():
    with pytest.raises(ConfigError, match="f_norm=0"):
        gpg_advantage(rewards_B=rewards(0, 1), group_B=torch.zeros(2).long(), f_norm=0.0)


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        ("naive", 0.5),
        ("STD_weight", 0.5**0.5),
        ("clip_filter_like_weight", 1.0),
    ],  # two groups, one of them useful
)
def test_cpgd_has_three_weightings(weighting, expected):
    advantages = cpgd_advantage(
        rewards_B=rewards(1, 1, 0, 1), group_B=TWO_GROUPS, weighting=weighting, epsilon=0.0
    )
    assert advantages.tolist() == pytest.approx([0.0, 0.0, -expected, expected])


def test_cpgds_weight_of_groups_is_at_most_three():
    advantages = cpgd_advantage(
        rewards_B=rewards(0, 1, 2, 3, 4, 5),
        group_B=torch.tensor([0, 0, 1, 2, 3, 4]),
        weighting="clip_filter_like_weight",
    )
    assert advantages[:2].tolist() == [-1.5, 1.5]  # five groups, one useful: 5 becomes 3


def test_cpgd_refuses_another_weighting_with_the_known_ones():
    with pytest.raises(
        UnknownNameError, match=r"'STD'.*STD_weight, clip_filter_like_weight, naive"
    ):
        cpgd_advantage(rewards_B=rewards(0, 1), group_B=torch.zeros(2).long(), weighting="STD")


def test_pass_at_the_whole_group_pays_the_best_sample_its_lead_over_the_second():
    advantages = pass_at_k_advantage(
        rewards_B=rewards(0, 5, 3, 1), group_B=ONE_GROUP, normalize_by_std=False
    )
    assert advantages.tolist() == [0.0, 2.0, 0.0, 0.0]


def test_two_best_samples_are_worth_nothing_to_the_whole_group():
    assert (
        pass_at_k_advantage(rewards_B=rewards(0, 1, 1, 0), group_B=ONE_GROUP).tolist() == [0.0] * 4
    )


def test_pass_at_two_is_the_mean_lead_over_each_other():
    advantages = pass_at_k_advantage(
        rewards_B=rewards(0, 6, 3, 3), group_B=ONE_GROUP, k=2, normalize_by_std=False
    )
    assert advantages.tolist() == pytest.approx([0.0, (6 + 3 + 3) / 3, 3 / 3, 3 / 3])


def test_pass_at_more_than_the_group_has_is_pass_at_the_group():
    both = [
        pass_at_k_advantage(rewards_B=rewards(0, 6, 3, 3), group_B=ONE_GROUP, k=k).tolist()
        for k in (None, 9)
    ]
    assert both[0] == both[1]


def test_pass_at_one_is_refused():
    with pytest.raises(ConfigError, match="pass_k=1"):
        pass_at_k_advantage(rewards_B=rewards(0, 1), group_B=torch.zeros(2).long(), k=1)


def test_huge_rewards_of_one_group_cost_another_group_no_digits():
    numbers, groups = rewards(0, 1e9, 0, 1e-6), TWO_GROUPS
    assert pass_at_k_advantage(
        rewards_B=numbers, group_B=groups, normalize_by_std=False
    ).tolist() == pytest.approx([0, 1e9, 0, 1e-6])


def test_every_kept_token_gets_the_advantage_of_its_sample():
    token_rewards = torch.tensor([[0.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    advantages, returns = compute_grpo_outcome_advantage(
        token_rewards, mask, torch.tensor([0, 0]), norm_adv_by_std_in_grpo=False
    )
    assert advantages.tolist() == [[-1.0, -1.0, -1.0], [1.0, 1.0, 0.0]]
    assert returns.tolist() == advantages.tolist()


def test_a_group_may_be_named_by_strings():
    token_rewards, mask = torch.tensor([[1.0], [3.0], [7.0]]), torch.ones(3, 1)
    index = np.array(["a", "a", "b"], dtype=object)
    advantages, _ = compute_grpo_outcome_advantage(
        token_rewards, mask, index, norm_adv_by_std_in_grpo=False
    )
    assert advantages.flatten().tolist() == [-1.0, 1.0, 0.0]


def test_a_group_may_be_spread_over_ranks():
    there = Half(torch.tensor([4.0]), torch.tensor([0]))
    token_rewards, mask, index = (
        torch.tensor([[0.0], [2.0]]),
        torch.ones(2, 1),
        torch.tensor([0, 0]),
    )
    advantages, _ = compute_grpo_outcome_advantage(
        token_rewards, mask, index, norm_adv_by_std_in_grpo=False, ranks=there
    )
    assert advantages.flatten().tolist() == [-2.0, 0.0]  # the mean over both ranks is 2


def test_a_reward_of_another_rank_that_is_not_finite_is_refused_here_too():
    there = Half(torch.tensor([torch.nan]), torch.tensor([0]))
    with pytest.raises(TensorError, match="of another rank are not finite"):
        compute_grpo_outcome_advantage(
            torch.tensor([[0.0]]), torch.ones(1, 1), torch.tensor([0]), ranks=there
        )


def test_names_of_groups_on_several_ranks_are_refused():
    with pytest.raises(TensorError, match="index must be an int64 tensor on several ranks"):
        compute_grpo_outcome_advantage(
            torch.tensor([[0.0]]), torch.ones(1, 1), np.array(["a"]), ranks=Half()
        )


def test_gae_of_three_tokens():
    advantages, returns = gae_advantage(
        rewards_BT=torch.tensor([[0.0, 0.0, 1.0]]),
        values_BT=torch.tensor([[0.5, 0.5, 0.5]]),
        mask_BT=torch.ones(1, 3),
        gamma=1.0,
        lam=0.5,
    )
    assert advantages.tolist() == [[0.125, 0.25, 0.5]]  # deltas 0, 0, 0.5
    assert returns.tolist() == [[0.625, 0.75, 1.0]]


def test_gae_over_a_tools_words_is_gae_without_them():
    options = {"gamma": 0.9, "lam": 0.5}
    whole, _ = gae_advantage(
        rewards_BT=torch.tensor([[0.0, 1.0]]),
        values_BT=torch.tensor([[0.5, 0.25]]),
        mask_BT=torch.ones(1, 2),
        **options,
    )
    spoken, _ = gae_advantage(
        rewards_BT=torch.tensor([[0.0, 0.0, 1.0]]),
        values_BT=torch.tensor([[0.5, 99.0, 0.25]]),
        mask_BT=torch.tensor([[1, 0, 1]]),
        **options,
    )
    assert spoken[:, [0, 2]].tolist() == whole.tolist()


def test_gae_is_whitened_and_its_returns_are_not():
    token_rewards, mask = torch.tensor([[0.0, 1.0], [0.0, 3.0]]), torch.ones(2, 2)
    advantages, returns = compute_gae_advantage_return(
        token_rewards, torch.zeros(2, 2), mask, 1.0, 1.0
    )
    assert advantages.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert returns.tolist() == [[1.0, 1.0], [3.0, 3.0]]


@pytest.mark.parametrize(
    ("how", "expected"), [("unbiased", 0.5**0.5), ("biased", 1.0), ("mean", 2.0), ("none", 3.0)]
)
def test_whitening_of_two_numbers(how, expected):
    white = whiten_advantages(
        torch.tensor([[-1.0, 3.0, 99.0]], dtype=torch.float64), torch.tensor([[1, 1, 0]]), how=how
    )
    assert white[0, 1].item() == pytest.approx(expected, abs=1e-8)  # mean 1, squares 8
    assert white[0, 2].item() == 0.0


def test_equal_advantages_are_whitened_to_zero():
    assert whiten_advantages(torch.full((2, 2), 0.1), torch.ones(2, 2)).tolist() == [
        [0.0, 0.0],
        [0.0, 0.0],
    ]


def test_another_whitening_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"'std'.*biased, mean, none, unbiased"):
        whiten_advantages(torch.ones(1, 1), torch.ones(1, 1), how="std")


def test_reinforce_plus_plus_carries_the_reward_back_over_a_tools_words():
    token_rewards, mask = torch.tensor([[0.0, 0.0, 8.0]]), torch.tensor([[1, 0, 1]])
    _, returns = compute_reinforce_plus_plus_outcome_advantage(token_rewards, mask, 0.5)
    assert returns.tolist() == [[4.0, 0.0, 8.0]]


def test_reinforce_plus_plus_with_baseline_has_the_scale_of_the_batch():
    token_rewards, mask = (
        torch.tensor([[0.0], [2.0], [0.0], [6.0]], dtype=torch.float64),
        torch.ones(4, 1),
    )
    advantages, _ = compute_reinforce_plus_plus_baseline_outcome_advantage(
        token_rewards, mask, TWO_GROUPS, adv_whitening="biased"
    )
    assert advantages.flatten().tolist() == pytest.approx(
        [-1 / 5**0.5, 1 / 5**0.5, -3 / 5**0.5, 3 / 5**0.5]
    )  # mean square 5


def test_remax_is_the_samples_lead_over_the_greedy_response():
    advantages, returns = compute_remax_outcome_advantage(
        torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]),
        torch.tensor([0.25, 1.0]),
        torch.tensor([[1, 1, 0], [1, 0, 0]]),
    )
    assert advantages.tolist() == [[0.75, 0.75, 0.0], [-1.0, 0.0, 0.0]]
    assert returns.tolist() == [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
