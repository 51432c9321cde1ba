"""The reward stage: rows that could not be scored are dropped before advantages, and counted over
all ranks; prompts as a node.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks_at_work import run_on_ranks
from tensordict import NonTensorStack, TensorDict

from siirl.algos import register_adv_est
from siirl.dag_worker.rewards import columns_of_parts, token_scores
from siirl.dag_worker.stages import PROMPT_COLUMNS, compute_reward, load_prompts
from siirl.data_coordinator.protocol.batch import texts
from siirl.engine.reward_manager import TextRewardManager
from siirl.engine.reward_manager.embodied_rewards import SuccessReward
from siirl.engine.reward_manager.text_parts import EnvironmentPart, PartScores
from siirl.engine.training.collectives import OneProcess
from siirl.errors import InvariantError, TooManyFailures
from siirl.execution.dag import load_workflow_file
from siirl.params import SiiRLArguments
from siirl.params.reward_args import RewardPart
from siirl.reporting.metrics import Unusable

MASK = [[1, 1, 0], [1, 0, 0], [1, 1, 1]]


class NumberInText:
    """Scores a text with its number, and fails if it is not a number."""

    def score(self, outcomes, rows, *, most_failures):
        scores = PartScores()
        for row in rows:
            text = outcomes.texts_B["response_text"][row]
            if text.isdigit():
                scores.value[row] = float(text)
            else:
                scores.failed[row] = f"{text!r} is no number"
        return scores

    def close(self):
        """It has no processes."""


class Collector:
    """Records the rewards that it receives."""

    reports_success = True

    def write_recordings(self, rewards):
        self.rewards = dict(rewards)


def context(*, ranks=None, share=0.5, **manager):
    config = SiiRLArguments()
    config.reward.max_failed_share = share
    reward = TextRewardManager(
        [(RewardPart("own:number", weight=2.0), NumberInText())], max_failed_share=share, **manager
    )
    return SimpleNamespace(
        config=config, ranks=ranks or OneProcess(), reward=reward, collector=Collector()
    )


def batch(*responses, first: int = 0) -> TensorDict:
    count = len(responses)
    return TensorDict(
        {
            "uid": NonTensorStack(*[f"u{first + row}" for row in range(count)]),
            "task_name": NonTensorStack(*["sums"] * count),
            "response_text": NonTensorStack(*responses),
            "index": torch.zeros(count, dtype=torch.int64),
            "complete": torch.tensor([True, False, False])[:count],
            "env_return": torch.zeros(count),
            "response_mask": torch.tensor(MASK)[:count],
            "attention_mask": torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0], [0, 1, 1, 1, 1]])[
                :count
            ],
        },
        batch_size=[count],
    )


def test_the_weighted_score_is_at_the_last_token():
    output = compute_reward(batch=batch("3", "5", "7"), context=context())
    assert output.batch["token_level_scores"].tolist() == [
        [0.0, 6.0, 0.0],
        [10.0, 0.0, 0.0],
        [0.0, 0.0, 14.0],
    ]
    assert (
        output.batch["token_level_rewards"].tolist() == output.batch["token_level_scores"].tolist()
    )
    assert output.metrics["reward/failed"] == 0.0


def test_two_rows_with_one_uid_are_refused():
    rows = batch("3", "5", "7")
    rows["uid"] = NonTensorStack("a", "b", "a")
    with pytest.raises(InvariantError, match=r"2 rows have the uid 'a'.*changed the column uid"):
        compute_reward(batch=rows, context=context())


def test_step_rewards_keep_their_place_and_the_rest_of_the_reward_is_at_the_end():
    """Twice the number in the text and half the return: 1 at token 0 and 3 at token 1, 4 at token
    0, and nothing.
    """
    own, returned = RewardPart("own:number", weight=2.0), RewardPart("return", weight=0.5)
    context_ = context()
    context_.reward = TextRewardManager(
        [(own, NumberInText()), (returned, EnvironmentPart("return"))], max_failed_share=0.5
    )
    rows = batch("3", "5", "7")
    rows["env_rewards"] = torch.tensor([[1.0, 3.0, 0.0], [4.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    rows["env_return"] = rows["env_rewards"].sum(1)
    output = compute_reward(batch=rows, context=context_)
    assert output.batch["token_level_scores"].tolist() == [
        [0.5, 1.5 + 6.0, 0.0],
        [2.0 + 10.0, 0.0, 0.0],
        [0.0, 0.0, 14.0],
    ]
    assert output.metrics["reward/mean_score"] == pytest.approx((34.0 / 3, 3.0))


def test_step_rewards_are_ignored_if_only_success_is_rewarded():
    context_ = context()
    context_.reward = SuccessReward()
    rows = batch("3", "5", "7")
    rows["env_rewards"] = torch.tensor([[1.0, 3.0, 0.0], [4.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    output = compute_reward(batch=rows, context=context_)
    assert output.batch["token_level_scores"].tolist() == [
        [0.0, 1.0, 0.0],
        [0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0],
    ]


def test_an_estimator_with_an_episode_baseline_gets_the_whole_reward_at_the_end():
    @register_adv_est("own_baseline", reward_at_finish=True)
    def own_baseline(token_level_rewards, response_mask):
        return token_level_rewards, token_level_rewards

    rows = batch("3", "5", "7")
    rows["env_rewards"] = torch.tensor([[1.0, 3.0, 0.0], [4.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    rows["env_return"] = rows["env_rewards"].sum(1)
    for name in ("own_baseline", "remax"):
        context_ = context()
        context_.reward = TextRewardManager(
            [(RewardPart("return", weight=1.0), EnvironmentPart("return"))], max_failed_share=0.5
        )
        context_.config.algorithm.adv_estimator = name
        output = compute_reward(batch=rows.copy(), context=context_)
        assert output.batch["token_level_scores"].tolist() == [
            [0.0, 4.0, 0.0],
            [4.0, 0.0, 0.0],
            [0.0, 0.0, 0.0],
        ]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1e-3, 1.0, 300.0]))
def test_scores_of_a_row_sum_to_its_return_despite_masked_tokens(seed, scale):
    generator = torch.Generator().manual_seed(seed)
    mask_BT = torch.rand(4, 12, generator=generator) < 0.6
    mask_BT[:, 0] = True
    rewards_BT = scale * torch.randn(4, 12, generator=generator) * mask_BT
    rows = TensorDict({"response_mask": mask_BT.long(), "env_rewards": rewards_BT}, batch_size=[4])
    returns_B = rewards_BT.sum(1)
    scores_BT = token_scores(rows, reward_B=returns_B, env_weight_B=torch.ones(4))
    torch.testing.assert_close(scores_BT.sum(1), returns_B, rtol=1e-5, atol=1e-5 * scale)
    torch.testing.assert_close(scores_BT, rewards_BT, rtol=0, atol=1e-5 * scale)


def test_a_row_that_could_not_be_scored_is_dropped_and_counted():
    context_ = context()
    output = compute_reward(batch=batch("3", "many", "7"), context=context_)
    assert texts(output.batch, "uid") == ["u0", "u2"]
    assert output.batch["token_level_scores"].tolist() == [[0.0, 6.0, 0.0], [0.0, 0.0, 14.0]]
    assert output.metrics["reward/failed"] == 1.0
    assert output.metrics["reward/mean_score"] == (10.0, 2.0)
    assert context_.collector.rewards == {"u0": 6.0, "u2": 14.0}


def test_too_many_failures_stop_the_run_with_the_first_reason():
    with pytest.raises(
        TooManyFailures,
        match=r"2 of 3 samples could not be scored; .*reward.max_failed_share=0.5 .*: number: 'many' is no number",
    ):
        compute_reward(batch=batch("3", "many", "few"), context=context())


def test_a_step_without_any_reward_stops_the_run():
    with pytest.raises(TooManyFailures, match="2 of 2 samples could not be scored"):
        compute_reward(batch=batch("many", "few"), context=context(share=1.0))


def test_a_penalty_changes_the_trained_reward_and_not_the_score():
    shaped = context(overlong=lambda length_B: (-0.5 * length_B).astype("float32"))
    output = compute_reward(batch=batch("3", "5", "7"), context=shaped)
    # Tokens after the prompt of two: 2, 1 and 3.
    assert output.batch["token_level_rewards"].tolist() == [
        [0.0, 5.0, 0.0],
        [9.5, 0.0, 0.0],
        [0.0, 0.0, 12.5],
    ]
    assert output.batch["token_level_scores"].sum().item() == 30.0
    assert output.metrics["reward/penalty"] == (-1.0, 3.0)


def of_rank(ranks, scenarios):
    """For each scenario a rank's remaining rows and the metrics, or the error."""
    return [one_step(ranks, responses[ranks.rank]) for responses in scenarios]


def one_step(ranks, responses):
    context_ = context(ranks=ranks, share=0.25)
    try:
        output = compute_reward(batch=batch(*responses, first=10 * ranks.rank), context=context_)
    except TooManyFailures as error:
        return str(error)
    return (
        output.batch["token_level_scores"].sum().item(),
        len(output.batch),
        output.metrics["reward/failed"],
        context_.collector.rewards,
    )


@pytest.fixture(scope="module")
def on_two_ranks():
    """One of four rows fails, the only one of its rank; then two of five."""
    return run_on_ranks(of_rank, ((("1", "2", "3"), ("many",)), (("1", "2", "3"), ("many", "few"))))


def test_a_rank_whose_rows_all_failed_continues_without_rows_if_the_others_compensate(
    on_two_ranks,
) -> None:
    rewards = {"u0": 2.0, "u1": 4.0, "u2": 6.0}
    assert [of_first[0] for of_first in on_two_ranks] == [
        (12.0, 3, 0.0, rewards),
        (0.0, 0, 1.0, rewards),
    ]


def test_too_many_failures_stop_every_rank_with_the_same_message(on_two_ranks) -> None:
    one, other = (of_second[1] for of_second in on_two_ranks)
    assert one == other
    assert "2 of 5 samples could not be scored" in one


def test_a_graph_may_begin_with_its_prompts(tmp_path):
    file = tmp_path / "workflow.yaml"
    file.write_text(
        "nodes:\n  - node_id: prompts\n    node_type: DATA_LOAD\n    node_role: DEFAULT\n    "
        "dependencies: []\n"
    )
    node = load_workflow_file(file).nodes["prompts"]
    assert node.executable is load_prompts
    prompts = TensorDict({name: torch.arange(4) for name in PROMPT_COLUMNS}, batch_size=[4])
    assert node.run(batch=prompts).batch["index"].tolist() == [0, 1, 2, 3]


def test_parts_of_a_users_reward_may_have_any_value():
    columns, others = columns_of_parts(
        {
            **{"array": np.ones(2, np.float32), "list": [1, np.float64(0.5)], "half": 0.5},
            **{"tensor": torch.ones(2), "short": [1.0], "none": None, "texts": ["a", "b"]},
        },
        count=2,
    )
    assert {name: column.tolist() for name, column in columns.items()} == {
        **{"array": [1.0, 1.0], "list": [1.0, 0.5], "tensor": [1.0, 1.0]}
    }
    assert others == {
        "reward/part/half": 0.5,
        "reward/part/short": Unusable("a list of 1 for 2 episodes"),
        "reward/part/none": Unusable("None"),
        "reward/part/texts": Unusable("a list with 'a' of type str"),
    }
    assert columns_of_parts(None, count=2) == ({}, {})


class WithMetrics(SuccessReward):
    """Logs what is no mapping of names to numbers."""

    def score(self, outcomes):
        return replace(super().score(outcomes), metrics=self.metrics)


@pytest.mark.parametrize("metrics", [None, "nothing", [1.0], {"mine": torch.tensor(2.0), 1: "x"}])
def test_no_metric_of_a_users_reward_ends_a_step(metrics):
    step = context()
    step.reward = WithMetrics()
    step.reward.metrics = metrics
    done = compute_reward(batch=batch("1", "2", "3"), context=step)
    assert done.metrics["reward/mean_score"].value == pytest.approx(1 / 3)
    if isinstance(metrics, dict):
        assert done.metrics["mine"] == 2.0
        assert done.metrics["1"] == Unusable("'x' of type str")
