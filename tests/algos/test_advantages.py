"""Advantages against loops written from the papers, and what must not change them."""

import enum
import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ragged import QUICK, SEEDS, Half, ragged

from siirl.algos.advantages import (
    ADVANTAGES,
    compute_gae_advantage_return,
    compute_grpo_outcome_advantage,
    estimate_advantages,
    gae_advantage,
    grpo_advantage,
    register_adv_est,
    rloo_advantage,
)
from siirl.errors import ConfigError, TensorError, UnknownNameError


def grpo_loop(rewards, groups, *, epsilon=1e-6, normalize=True):
    """DeepSeekMath, section 4.1.2, sample by sample."""
    advantages = []
    for reward, group in zip(rewards, groups, strict=True):
        members = [r for r, g in zip(rewards, groups, strict=True) if g == group]
        if len(members) == 1:
            advantages.append(0.0)
            continue
        centred = reward - math.fsum(members) / len(members)
        advantages.append(centred / (statistics.stdev(members) + epsilon) if normalize else centred)
    return advantages


def rloo_loop(rewards, groups):
    """Each sample against the mean of the others of its group."""
    advantages = []
    for i, (reward, group) in enumerate(zip(rewards, groups, strict=True)):
        others = [r for j, (r, g) in enumerate(zip(rewards, groups, strict=True)) if g == group and j != i]
        advantages.append(reward - math.fsum(others) / len(others) if others else 0.0)
    return advantages


def gae_loop(rewards, values, mask, *, gamma, lam):
    """The recursion over the kept tokens of one row, from the last to the first."""
    advantages, next_value, next_advantage = [0.0] * len(rewards), 0.0, 0.0
    for t in reversed(range(len(rewards))):
        if mask[t]:
            delta = rewards[t] + gamma * next_value - values[t]
            next_advantage = delta + gamma * lam * next_advantage
            next_value = values[t]
            advantages[t] = next_advantage
    return advantages


def test_grpo_of_two_samples_by_hand():
    advantages = grpo_advantage(rewards_B=torch.tensor([0.0, 1.0]), group_B=torch.tensor([5, 5]))
    assert advantages.tolist() == pytest.approx([-0.70710, 0.70710], abs=1e-4)  # -+0.5 / sqrt(0.5)


def test_grpo_without_deviation_is_the_distance_to_the_mean():
    advantages = grpo_advantage(rewards_B=torch.tensor([0.0, 1.0, 5.0]), group_B=torch.zeros(3).long(), normalize_by_std=False)
    assert advantages.tolist() == [-2.0, -1.0, 3.0]


@pytest.mark.parametrize("advantage", [grpo_advantage, rloo_advantage])
def test_a_group_of_one_has_no_advantage(advantage):
    assert advantage(rewards_B=torch.tensor([0.0, 1.0, 7.0]), group_B=torch.tensor([1, 1, 2]))[2] == 0.0


@pytest.mark.parametrize("advantage", [grpo_advantage, rloo_advantage])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rewards_that_are_equal_but_for_rounding_have_no_advantage(advantage, dtype):
    rewards = torch.tensor([0.1 + 0.2, 0.3, 0.1 * 3, 0.6 - 0.3], dtype=dtype)
    assert advantage(rewards_B=rewards, group_B=torch.zeros(4).long()).tolist() == [0.0] * 4


@pytest.mark.parametrize("advantage", [grpo_advantage, rloo_advantage])
def test_groups_below_the_smallest_spread_have_no_advantage(advantage):
    rewards, groups = torch.tensor([0.30, 0.31, 0.0, 1.0]), torch.tensor([0, 0, 1, 1])
    small, large = advantage(rewards_B=rewards, group_B=groups, min_group_spread=0.05).abs().unflatten(0, (2, 2)).unbind()
    assert small.tolist() == [0.0, 0.0]
    assert bool((large > 0.5).all())


@QUICK
@given(seed=SEEDS)
def test_grpo_and_rloo_are_those_of_a_loop(seed):
    batch = ragged(seed)
    rewards, groups = batch.rewards_BT.sum(-1), batch.group_B
    for normalize in (True, False):
        expected = grpo_loop(rewards.tolist(), groups.tolist(), normalize=normalize)
        found = grpo_advantage(rewards_B=rewards, group_B=groups, normalize_by_std=normalize)
        assert found.tolist() == pytest.approx(expected, abs=1e-12)
    expected = rloo_loop(rewards.tolist(), groups.tolist())
    assert rloo_advantage(rewards_B=rewards, group_B=groups).tolist() == pytest.approx(expected, abs=1e-12)


@QUICK
@given(seed=SEEDS, shift=st.floats(-100, 100), scale=st.floats(0.1, 10))
def test_grpo_does_not_see_shift_and_scale_of_rewards(seed, shift, scale):
    batch = ragged(seed)
    rewards, groups = batch.rewards_BT.sum(-1), batch.group_B
    moved = grpo_advantage(rewards_B=rewards * scale + shift, group_B=groups, epsilon=0.0)
    torch.testing.assert_close(moved, grpo_advantage(rewards_B=rewards, group_B=groups, epsilon=0.0), rtol=1e-7, atol=1e-7)


@QUICK
@given(seed=SEEDS)
@pytest.mark.parametrize("advantage", [grpo_advantage, rloo_advantage])
def test_permuting_rows_permutes_advantages(advantage, seed):
    batch = ragged(seed)
    rewards, order = batch.rewards_BT.sum(-1), torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    permuted = advantage(rewards_B=rewards[order], group_B=batch.group_B[order])
    torch.testing.assert_close(permuted, advantage(rewards_B=rewards, group_B=batch.group_B)[order])


def test_group_advantages_sum_to_zero():
    advantages = grpo_advantage(rewards_B=torch.tensor([0.0, 0.0, 1.0, 3.0]), group_B=torch.zeros(4).long())
    assert advantages.sum().item() == pytest.approx(0.0, abs=1e-6)


def test_every_kept_token_gets_the_advantage_of_its_sample():
    rewards = torch.tensor([[0.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    advantages, returns = compute_grpo_outcome_advantage(rewards, mask, torch.tensor([0, 0]), norm_adv_by_std_in_grpo=False)
    assert advantages.tolist() == [[-1.0, -1.0, -1.0], [1.0, 1.0, 0.0]]
    assert returns.tolist() == advantages.tolist()


def test_a_group_may_be_named_by_strings():
    rewards, mask = torch.tensor([[1.0], [3.0], [7.0]]), torch.ones(3, 1)
    advantages, _ = compute_grpo_outcome_advantage(rewards, mask, np.array(["a", "a", "b"], dtype=object), norm_adv_by_std_in_grpo=False)
    assert advantages.flatten().tolist() == [-1.0, 1.0, 0.0]


def test_a_group_may_be_spread_over_ranks():
    there = Half(torch.tensor([4.0]), torch.tensor([0]))
    rewards, mask, index = torch.tensor([[0.0], [2.0]]), torch.ones(2, 1), torch.tensor([0, 0])
    advantages, _ = compute_grpo_outcome_advantage(rewards, mask, index, norm_adv_by_std_in_grpo=False, ranks=there)
    assert advantages.flatten().tolist() == [-2.0, 0.0]  # the mean over both ranks is 2


def test_gae_of_three_tokens_by_hand():
    advantages, returns = gae_advantage(
        rewards_BT=torch.tensor([[0.0, 0.0, 1.0]]),
        values_BT=torch.tensor([[0.5, 0.5, 0.5]]),
        mask_BT=torch.ones(1, 3),
        gamma=1.0,
        lam=0.5,
    )
    assert advantages.tolist() == [[0.125, 0.25, 0.5]]  # deltas 0, 0, 0.5
    assert returns.tolist() == [[0.625, 0.75, 1.0]]


@QUICK
@given(seed=SEEDS, gamma=st.floats(0.5, 1.0), lam=st.floats(0.0, 1.0), tokens=st.sampled_from([9, 200]), holes=st.booleans())
def test_gae_is_that_of_a_loop(seed, gamma, lam, tokens, holes):
    batch = ragged(seed, tokens=tokens, holes=holes)
    advantages, returns = gae_advantage(rewards_BT=batch.rewards_BT, values_BT=batch.values_BT, mask_BT=batch.mask_BT, gamma=gamma, lam=lam)
    rows = zip(batch.rewards_BT.tolist(), batch.values_BT.tolist(), batch.mask_BT.tolist(), strict=True)
    expected = torch.tensor([gae_loop(*row, gamma=gamma, lam=lam) for row in rows], dtype=torch.float64)
    torch.testing.assert_close(advantages, expected)
    torch.testing.assert_close(returns[batch.mask_BT], (expected + batch.values_BT)[batch.mask_BT])
    assert bool((returns[~batch.mask_BT] == 0).all())


@QUICK
@given(seed=SEEDS)
def test_gae_does_not_see_padding(seed):
    batch = ragged(seed)

    def padded(numbers, left, right):
        return torch.nn.functional.pad(numbers, (left, right))

    options = {"gamma": 0.99, "lam": 0.9}
    plain, _ = gae_advantage(rewards_BT=batch.rewards_BT, values_BT=batch.values_BT, mask_BT=batch.mask_BT, **options)
    for left, right in ((3, 0), (0, 3)):
        rewards, values, mask = (padded(x, left, right) for x in (batch.rewards_BT, batch.values_BT, batch.mask_BT))
        advantages, _ = gae_advantage(rewards_BT=rewards, values_BT=values, mask_BT=mask, **options)
        torch.testing.assert_close(advantages[:, left : left + 9], plain)


def test_gae_refuses_a_reward_that_the_mask_would_lose():
    with pytest.raises(TensorError, match="reward at row 0, token 2"):
        gae_advantage(
            rewards_BT=torch.tensor([[0.0, 0.0, 1.0]]), values_BT=torch.zeros(1, 3), mask_BT=torch.tensor([[1, 1, 0]]), gamma=1.0, lam=1.0
        )


def test_registered_gae_is_whitened_and_its_returns_are_not():
    rewards, mask = torch.tensor([[0.0, 1.0], [0.0, 3.0]]), torch.ones(2, 2)
    advantages, returns = compute_gae_advantage_return(rewards, torch.zeros(2, 2), mask, 1.0, 1.0)
    assert advantages.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert returns.tolist() == [[1.0, 1.0], [3.0, 3.0]]


def test_nan_reward_is_refused_with_its_row():
    with pytest.raises(TensorError, match="values is nan in row 1"):
        grpo_advantage(rewards_B=torch.tensor([0.0, torch.nan]), group_B=torch.tensor([0, 0]))


def test_unknown_estimator_is_answered_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"'grpp'.*'grpo'.*gae, grpo"):
        estimate_advantages(name="grpp", available={})


def test_an_estimator_that_lacks_something_says_what():
    available = {"token_level_rewards": torch.ones(1, 1), "response_mask": torch.ones(1, 1), "gamma": 1.0, "lam": 1.0}
    with pytest.raises(ConfigError, match="needs 'values', which this job does not have"):
        estimate_advantages(name="gae", available=available)


@pytest.fixture
def registry():
    before = dict(ADVANTAGES)
    yield ADVANTAGES
    ADVANTAGES.clear()
    ADVANTAGES.update(before)


def test_a_users_estimator_in_the_documents_form_is_called_by_name(registry):
    @register_adv_est("my_custom_adv")
    def compute_my_custom_advantage(token_level_rewards, response_mask, **kwargs):
        return token_level_rewards * response_mask, token_level_rewards

    available = {"token_level_rewards": torch.ones(1, 2), "response_mask": torch.ones(1, 2), "gamma": 0.9}
    advantages, _ = estimate_advantages(name="my_custom_adv", available=available)
    assert advantages.tolist() == [[1.0, 1.0]]


def test_an_enum_member_registers_under_its_value(registry):
    class Estimators(enum.Enum):
        MINE = "mine"

    register_adv_est(Estimators.MINE)(lambda token_level_rewards: (token_level_rewards, token_level_rewards))
    assert "mine" in registry


def test_a_taken_name_is_refused(registry):
    with pytest.raises(ConfigError, match="'grpo' is already compute_grpo_outcome_advantage"):
        register_adv_est("grpo")(lambda token_level_rewards: (token_level_rewards, token_level_rewards))


def test_an_argument_that_nobody_provides_is_refused_when_registered(registry):
    with pytest.raises(ConfigError, match=r"'reward_model'.*give it a default"):
        register_adv_est("odd")(lambda reward_model: (reward_model, reward_model))


def test_an_estimator_that_returns_one_number_a_row_is_refused(registry):
    register_adv_est("narrow")(lambda token_level_rewards: (token_level_rewards[:, :1], token_level_rewards[:, :1]))
    available = {"token_level_rewards": torch.ones(2, 3), "response_mask": torch.ones(2, 3)}
    with pytest.raises(TensorError, match=r"advantages has shape \[2, 1\]"):
        estimate_advantages(name="narrow", available=available)
