"""The filter node of embodied jobs: dropped rows, and their use by the reward."""

from types import SimpleNamespace

import numpy as np

from siirl.algos.filters import FILTERS
from siirl.data_coordinator.protocol.batch import texts
from siirl.data_coordinator.sample import Sample, Samples2Dict
from siirl.engine.reward_manager import make_reward_manager
from siirl.engine.training.collectives import OneProcess
from siirl.params import RewardArguments, SiiRLArguments
from siirl.user_interface.filter_interface.embodied import embodied_local_rank_sampling

GROUP = 2


def batch_of(*outcomes: str, task: str = "door-open"):
    """One group of two episodes for each word: `s` success, `f` failure."""
    rows = [(index, letter == "s") for index, word in enumerate(outcomes) for letter in word]
    return Samples2Dict(
        [
            Sample(
                {
                    "uid": f"{i:03d}", "index": index, "task_name": task, "task_id": 0, "complete": complete, "truncated": not complete,
                    "env_return": float(complete), "response_mask": np.ones(4, np.int64), "video_embedding": np.array([i, 0.0], np.float32),
                }
            )
            for i, (index, complete) in enumerate(rows)
        ]
    )  # fmt: skip


def context(reward: str, **filters):
    config = SiiRLArguments()
    for name, value in filters.items():
        setattr(config.algorithm.filter, name, value)
    manager = make_reward_manager(
        RewardArguments(name=reward), demonstrations={}, tasks=("door-open",)
    )
    return SimpleNamespace(config=config, ranks=OneProcess(), reward=manager)


def kept(output) -> list[str]:
    return texts(output.batch, "uid") if len(output.batch) else []


def test_all_success_groups_go_and_mixed_ones_stay():
    output = embodied_local_rank_sampling(batch=batch_of("ss", "sf"), context=context("success"))
    assert kept(output) == ["002", "003"]
    assert output.metrics["sampling/dropped_all_success"] == 2.0


def test_all_failure_groups_stay_if_srpo_has_a_success_to_compare_with():
    output = embodied_local_rank_sampling(batch=batch_of("ff", "sf"), context=context("srpo"))
    assert kept(output) == ["000", "001", "002", "003"]


def test_all_failure_groups_go_if_no_success_is_known():
    output = embodied_local_rank_sampling(batch=batch_of("ff", "ff"), context=context("srpo"))
    assert kept(output) == []
    assert output.metrics["sampling/dropped_all_failure_without_reference"] == 4.0


def test_all_failure_groups_go_with_a_0_1_reward():
    assert kept(
        embodied_local_rank_sampling(batch=batch_of("ff", "sf"), context=context("success"))
    ) == ["002", "003"]


def test_successes_of_a_dropped_group_are_references_for_the_failures_that_stay():
    job = context("srpo")
    output = embodied_local_rank_sampling(batch=batch_of("ss", "ff"), context=job)
    assert kept(output) == ["002", "003"]
    assert job.reward.has_reference("door-open")


def test_truncated_episodes_go_only_on_request():
    batch = batch_of("sf", "sf")
    assert len(kept(embodied_local_rank_sampling(batch=batch, context=context("success")))) == 4
    assert (
        kept(
            embodied_local_rank_sampling(
                batch=batch, context=context("success", drop_truncated=True)
            )
        )
        == []
    )


def test_a_success_band_drops_further_groups():
    output = embodied_local_rank_sampling(
        batch=batch_of("sf", "ff"), context=context("srpo", success_low=0.6)
    )
    assert kept(output) == ["002", "003"]


def test_a_named_rule_takes_the_place_of_the_filters_own():
    output = embodied_local_rank_sampling(
        batch=batch_of("ss", "ff", "sf"), context=context("success", name="truncation")
    )
    assert kept(output) == [
        "000",
        "001",
        "004",
    ]  # a failure is truncated here; lone rollouts and groups without signal stay
    assert output.metrics == {"sampling/kept": 3.0, "sampling/dropped_by_filter": 3.0}


def test_a_users_rule_sees_the_trajectories_of_all_ranks(monkeypatch):
    seen = {}

    def keep_long_ones(group_B, task_B, length_B, return_B, low):
        seen.update(
            group=group_B.tolist(),
            task=set(task_B),
            length=length_B.tolist(),
            returns=return_B.tolist(),
            low=low,
        )
        return length_B > 4

    monkeypatch.setitem(FILTERS, "my_module:keep_long_ones", keep_long_ones)
    output = embodied_local_rank_sampling(
        batch=batch_of("sf"), context=context("success", name="my_module:keep_long_ones")
    )
    assert kept(output) == []
    assert seen == {
        "group": [0, 0],
        "task": {"door-open"},
        "length": [4, 4],
        "returns": [1.0, 0.0],
        "low": 0.0,
    }
