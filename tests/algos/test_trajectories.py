"""Episodes as rows of action tokens: the reward, and every estimator on them."""

import pytest
import torch
from estimator_cases import CASES, numbers_of
from hypothesis import given, settings
from ragged import QUICK, SEEDS

from siirl.algos import estimate_advantages
from siirl.algos.trajectories import reward_at_finish
from siirl.errors import TensorError

STEPS, TOKENS_PER_STEP = 4, 3
TOKENS = STEPS * TOKENS_PER_STEP
FEW = settings(QUICK, max_examples=5)


def test_the_reward_is_at_the_last_executed_token():
    rewards = reward_at_finish(
        rewards_B=torch.tensor([5.0, -1.0]), mask_BT=torch.tensor([[1, 1, 0], [1, 0, 0]])
    )
    assert rewards.tolist() == [[0.0, 5.0, 0.0], [-1.0, 0.0, 0.0]]


def test_the_reward_is_at_the_last_kept_token_after_a_hole():
    assert reward_at_finish(
        rewards_B=torch.tensor([5.0]), mask_BT=torch.tensor([[1, 0, 1, 0]])
    ).tolist() == [[0.0, 0.0, 5.0, 0.0]]


def test_an_episode_without_a_token_has_no_place_for_a_reward():
    with pytest.raises(
        TensorError, match=r"rewards is 2\.0 in row 1, whose episode executed no token"
    ):
        reward_at_finish(rewards_B=torch.tensor([5.0, 2.0]), mask_BT=torch.tensor([[1, 1], [0, 0]]))


def test_an_episode_without_a_token_and_without_a_reward_is_a_row_of_zeros():
    assert reward_at_finish(rewards_B=torch.tensor([0.0]), mask_BT=torch.zeros(1, 2)).tolist() == [
        [0.0, 0.0]
    ]


def test_a_nan_reward_is_refused_with_its_row():
    with pytest.raises(TensorError, match="rewards is nan in row 1"):
        reward_at_finish(rewards_B=torch.tensor([0.0, torch.nan]), mask_BT=torch.ones(2, 2))


def episodes(seed):
    """Seven episodes of one to four steps, two groups, and what the loops and the estimators take
    beside rewards and mask.
    """
    generator = torch.Generator().manual_seed(seed)
    finish_B = torch.randint(1, STEPS + 1, (7,), generator=generator)
    rewards_B = torch.randn(7, generator=generator, dtype=torch.float64)
    given = {
        "index": torch.randint(0, 2, (7,), generator=generator),
        "values": torch.randn(7, TOKENS, generator=generator, dtype=torch.float64),
        "reward_baselines": torch.randn(7, generator=generator, dtype=torch.float64),
    }
    return finish_B, rewards_B, given


@pytest.mark.parametrize("case", CASES)
@FEW
@given(seed=SEEDS)
def test_every_estimator_takes_episodes(case, seed):
    finish_B, rewards_B, given = episodes(seed)
    token_rewards = [[0.0] * TOKENS for _ in finish_B]
    masks = [[t // TOKENS_PER_STEP < finish for t in range(TOKENS)] for finish in finish_B.tolist()]
    for row, (finish, reward) in enumerate(zip(finish_B.tolist(), rewards_B.tolist(), strict=True)):
        token_rewards[row][finish * TOKENS_PER_STEP - 1] = reward
    columns = {
        **given,
        "token_level_rewards": torch.tensor(token_rewards, dtype=torch.float64),
        "response_mask": torch.tensor(masks),
    }
    expected = torch.tensor(CASES[case].loop(numbers_of(columns)), dtype=torch.float64)

    mask_BT = columns["response_mask"]
    found, _ = estimate_advantages(
        name=CASES[case].name,
        available={
            **given,
            **{"gamma": 0.9, "lam": 0.8, **CASES[case].options},
            "token_level_rewards": reward_at_finish(rewards_B=rewards_B, mask_BT=mask_BT),
            "response_mask": mask_BT,
        },
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
