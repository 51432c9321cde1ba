"""Advantages of rows that were cut or truncated: by hand, against Stable-Baselines3's buffer, and
with invariances under cuts.
"""

# B row, T token; here every token is a decision

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from siirl.algos.advantages import estimate_advantages
from siirl.errors import TensorError

SB3 = json.loads((Path(__file__).parent / "sb3" / "gae.json").read_text())
NUMBERS = st.floats(-10, 10, width=32)
SHARES = st.floats(0, 1, width=32)


def gae(*, rewards, values, behind, gamma, lam, mask=None):
    """Advantages and returns [B, T], not whitened."""
    rewards_BT = torch.tensor(rewards)
    mask_BT = torch.ones_like(rewards_BT) if mask is None else torch.tensor(mask)
    return estimate_advantages(
        name="gae",
        available={
            "token_level_rewards": rewards_BT,
            "values": torch.tensor(values),
            "response_mask": mask_BT,
            "value_mask": mask_BT,
            "bootstrap_values": torch.tensor(behind),
            "gamma": gamma,
            "lam": lam,
            "adv_whitening": "none",
        },
    )


def test_the_value_after_a_cut_estimates_the_remaining_rewards():
    advantages_BT, returns_BT = gae(
        rewards=[[1.0, 2.0]], values=[[3.0, 4.0]], behind=[8.0], gamma=0.5, lam=0.5
    )
    # delta: 2 + 0.5 * 8 - 4 = 2, and 1 + 0.5 * 4 - 3 = 0; A of the first: 0 + 0.25 * 2
    assert advantages_BT.tolist() == [[0.5, 2.0]]
    assert returns_BT.tolist() == [[3.5, 6.0]]


def test_nothing_follows_a_termination():
    advantages_BT, _ = gae(rewards=[[1.0]], values=[[3.0]], behind=[0.0], gamma=0.5, lam=0.5)
    assert advantages_BT.tolist() == [[-2.0]]


def test_the_value_follows_the_last_executed_token_of_a_padded_row():
    advantages_BT, _ = gae(
        rewards=[[1.0, 2.0, 0.0]],
        values=[[3.0, 4.0, 0.0]],
        behind=[8.0],
        gamma=0.5,
        lam=0.5,
        mask=[[1.0, 1.0, 0.0]],
    )
    assert advantages_BT.tolist() == [[0.5, 2.0, 0.0]]


@pytest.mark.parametrize("environment", range(3))
def test_parts_of_episodes_have_the_numbers_of_stable_baselines3(environment):
    """Each environment's twelve steps as one row for each part of an episode."""
    column = {
        name: [step[environment] for step in SB3[name]]
        for name in SB3
        if name not in ("gamma", "lam")
    }
    first = 0
    for step in range(12):
        terminated, truncated = column["terminated"][step], column["truncated"][step]
        if not (terminated or truncated or step == 11):
            continue
        part = slice(first, step + 1)
        advantages_BT, returns_BT = gae(
            rewards=[column["rewards"][part]],
            values=[column["values"][part]],
            behind=[0.0 if terminated else column["values_behind"][step]],
            gamma=SB3["gamma"],
            lam=SB3["lam"],
        )
        assert advantages_BT[0].tolist() == pytest.approx(column["advantages"][part], abs=1e-5)
        assert returns_BT[0].tolist() == pytest.approx(column["returns"][part], abs=1e-5)
        first = step + 1
    assert first == 12


@given(rewards=st.lists(NUMBERS, min_size=2, max_size=6), data=st.data(), gamma=SHARES)
def test_a_cut_changes_no_one_step_advantage(rewards, data, gamma):
    """With lambda 0 an advantage reads one reward and the value behind it, wherever the cut is."""
    values = data.draw(st.lists(NUMBERS, min_size=len(rewards), max_size=len(rewards)))
    cut = data.draw(st.integers(1, len(rewards) - 1))
    whole, _ = gae(rewards=[rewards], values=[values], behind=[0.0], gamma=gamma, lam=0.0)
    first, _ = gae(
        rewards=[rewards[:cut]], values=[values[:cut]], behind=[values[cut]], gamma=gamma, lam=0.0
    )
    second, _ = gae(
        rewards=[rewards[cut:]], values=[values[cut:]], behind=[0.0], gamma=gamma, lam=0.0
    )
    assert torch.allclose(whole, torch.cat([first, second], dim=1), atol=1e-4)


@given(rewards=st.lists(NUMBERS, min_size=1, max_size=6), behind=NUMBERS, gamma=SHARES, lam=SHARES)
def test_a_value_after_a_row_is_a_reward_that_comes_one_decision_later(rewards, behind, gamma, lam):
    zeros = [0.0] * len(rewards)
    cut, _ = gae(rewards=[rewards], values=[zeros], behind=[behind], gamma=gamma, lam=1.0)
    paid, _ = gae(
        rewards=[[*rewards, behind]], values=[[*zeros, 0.0]], behind=[0.0], gamma=gamma, lam=1.0
    )
    assert torch.allclose(cut, paid[:, :-1], atol=1e-4)


def test_a_value_of_a_row_without_decisions_is_refused():
    with pytest.raises(TensorError, match=r"bootstrap_values is 8.0 in row 0, which has no kept"):
        gae(rewards=[[0.0]], values=[[0.0]], behind=[8.0], gamma=1.0, lam=1.0, mask=[[0.0]])
