"""Rewards of a user's node are moved to the policy's tokens from any place on the axis."""

import logging

import pytest
import torch
from tensordict import TensorDict

from siirl.dag_worker import rewards
from siirl.dag_worker.rewards import place_rewards, rewards_at_tokens
from siirl.errors import TensorError

# Two prompts of two tokens, responses of three and of one; the middle token of the first is a
# tool's.
MASK = torch.tensor([[1, 0, 1], [1, 0, 0]])
SEQUENCE = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 0, 0]])


def placed(rewards: list[list[float]]) -> list[list[float]]:
    return rewards_at_tokens(
        torch.tensor(rewards), mask_BT=MASK, sequence_mask=SEQUENCE, name="token_level_rewards"
    ).tolist()


def test_a_score_at_the_last_place_of_prompt_and_response_moves_to_the_last_token_of_the_policy() -> (
    None
):
    assert placed([[0, 0, 0, 0, 0.5], [0, 0, 0, 0, 0.25]]) == [[0, 0, 0.5], [0.25, 0, 0]]


def test_rewards_at_prompt_tool_or_padding_tokens_move_and_others_stay() -> None:
    assert placed([[1.0, 0, 2.0, 4.0, 8.0], [0, 0, 3.0, 0, 0]]) == [[2.0, 0, 13.0], [3.0, 0, 0]]


def test_rewards_at_policy_tokens_stay_in_place() -> None:
    assert (
        placed([[0.1, 0, 0.2], [0.3, 0, 0]]) == torch.tensor([[0.1, 0, 0.2], [0.3, 0, 0]]).tolist()
    )


def test_an_unsupported_shape_is_refused_with_the_supported_ones() -> None:
    with pytest.raises(
        TensorError, match=r"token_level_rewards has shape \[2, 4\].*\[2, 3\] or \[2, 5\]"
    ):
        placed([[0.0] * 4, [0.0] * 4])


def test_integer_rewards_become_floats_with_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewards, "_warned", set())
    with caplog.at_level(logging.WARNING):
        assert placed([[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]) == [[0, 0, 1.0], [0, 0, 0]]
        placed([[0, 0, 1], [0, 0, 0]])
    (record,) = caplog.records
    assert "token_level_rewards has dtype torch.int64" in record.message


def test_only_changed_columns_of_a_node_are_compared() -> None:
    before = TensorDict(
        {"response_mask": MASK, "token_level_scores": torch.ones(2, 3)}, batch_size=[2]
    )
    after = before.copy()
    after["token_level_rewards"] = torch.ones(2, 3)
    place_rewards(after, before=before)
    assert after["token_level_scores"].tolist() == torch.ones(2, 3).tolist()
    assert after["token_level_rewards"].tolist() == [[1, 0, 2], [3, 0, 0]]
