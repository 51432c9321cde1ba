"""GAE between decisions of several tokens: by hand, against a loop, and with each token of a text
as one decision.
"""

# B sample, T token

import pytest
import torch
from hypothesis import given
from ragged import QUICK, SEEDS, ragged

from siirl.algos.advantages.gae import decision_starts, gae_advantage, gae_of_decisions
from siirl.errors import TensorError

# One row: a chunk of two tokens, a chunk of three whose last was not executed, padding.
MASK = torch.tensor([[1, 1, 1, 1, 0, 0]])
STARTS = torch.tensor([[1, 0, 1, 0, 0, 0]])


def test_a_chunk_is_one_step_of_gae():
    advantages_BT, returns_BT = gae_of_decisions(
        rewards_BT=torch.tensor([[0.0, 1.0, 0.0, 4.0, 0.0, 0.0]]),
        values_BT=torch.tensor([[2.0, 2.0, 3.0, 3.0, 0.0, 0.0]]),
        mask_BT=MASK,
        value_mask_BT=STARTS,
        gamma=0.5,
        lam=0.5,
    )
    # delta of the last chunk: 4 - 3 = 1; of the first: 1 + 0.5 * 3 - 2 = 0.5, and A = 0.5 + 0.25 *
    # 1.
    assert advantages_BT.tolist() == [[0.75, 0.75, 1.0, 1.0, 0.0, 0.0]]
    assert returns_BT.tolist() == [[2.75, 2.75, 4.0, 4.0, 0.0, 0.0]]


def test_lambda_does_not_decay_within_a_chunk():
    advantages_BT, _ = gae_of_decisions(
        rewards_BT=torch.tensor([[0.0, 0.0, 0.0, 1.0]]),
        values_BT=torch.zeros(1, 4),
        mask_BT=torch.ones(1, 4),
        value_mask_BT=torch.tensor([[1, 0, 0, 0]]),
        gamma=1.0,
        lam=0.1,
    )
    assert advantages_BT.tolist() == [[1.0, 1.0, 1.0, 1.0]]


@QUICK
@given(seed=SEEDS)
def test_where_each_token_is_a_decision_it_is_gae(seed):
    batch = ragged(seed)
    rewards_BT = torch.where(batch.mask_BT.bool(), batch.advantages_BT, 0.0)
    arguments = {
        "rewards_BT": rewards_BT,
        "values_BT": batch.old_log_probs_BT,
        "mask_BT": batch.mask_BT,
        "gamma": 0.9,
        "lam": 0.8,
    }
    for found, expected in zip(
        gae_of_decisions(**arguments, value_mask_BT=batch.mask_BT),
        gae_advantage(**arguments),
        strict=True,
    ):
        torch.testing.assert_close(found, expected)


@QUICK
@given(seed=SEEDS)
def test_decisions_of_random_length_are_those_of_a_loop(seed):
    batch = ragged(seed)
    generator = torch.Generator().manual_seed(seed)
    mask_BT, values_BT = batch.mask_BT.bool(), batch.old_log_probs_BT
    rewards_BT = torch.where(mask_BT, batch.advantages_BT, 0.0)
    first_BT = mask_BT & (mask_BT.cumsum(1) == 1)
    starts_BT = mask_BT & ((torch.rand(mask_BT.shape, generator=generator) < 0.4) | first_BT)
    advantages_BT, returns_BT = gae_of_decisions(
        rewards_BT=rewards_BT,
        values_BT=values_BT,
        mask_BT=mask_BT,
        value_mask_BT=starts_BT,
        gamma=0.9,
        lam=0.8,
    )
    for b in range(len(mask_BT)):
        places = starts_BT[b].nonzero().flatten().tolist()
        advantage, next_value = 0.0, 0.0
        for number in reversed(range(len(places))):
            end = places[number + 1] if number + 1 < len(places) else mask_BT.shape[1]
            reward = float(rewards_BT[b, places[number] : end].sum())
            value = float(values_BT[b, places[number]])
            advantage = reward + 0.9 * next_value - value + 0.9 * 0.8 * advantage
            next_value = value
            for t in range(places[number], end):
                kept = bool(mask_BT[b, t])
                assert float(advantages_BT[b, t]) == pytest.approx(
                    advantage if kept else 0.0, abs=1e-9
                )
                assert float(returns_BT[b, t]) == pytest.approx(
                    advantage + value if kept else 0.0, abs=1e-9
                )


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([[0, 1, 1, 0, 0, 0]], "value_mask is 0 in row 0, token 0, where response_mask is 1"),
        ([[1, 0, 0, 0, 1, 0]], "value_mask is 1 in row 0, token 4, where response_mask is 0"),
    ],
)
def test_inconsistent_masks_of_decisions_are_refused(starts, message):
    with pytest.raises(TensorError, match=message):
        decision_starts(value_mask=torch.tensor(starts), response_mask=MASK)


def test_a_reward_that_the_mask_would_lose_is_refused():
    rewards_BT = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0, 0.0]])
    with pytest.raises(TensorError, match="a reward at row 0, token 4, where response_mask is 0"):
        gae_of_decisions(
            rewards_BT=rewards_BT,
            values_BT=torch.zeros(1, 6),
            mask_BT=MASK,
            value_mask_BT=STARTS,
            gamma=1.0,
            lam=1.0,
        )
