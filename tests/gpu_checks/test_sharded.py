"""Checks over all ranks, here two on a CPU: what they find equal, and what they must not."""

import time
from pathlib import Path

import pytest
import torch

from siirl.engine.training.collectives import OneProcess
from siirl.gpu_checks.check import CheckFailed, Trial
from siirl.gpu_checks.rank_processes import run_on_ranks
from siirl.gpu_checks.sharded import (
    COMPARED,
    Compared,
    require_equal,
    rows_of_all,
    sharded_engine,
    sharded_update,
    work,
)
from siirl.gpu_checks.sharded_weights import (
    save_and_read,
    sharded_checkpoint,
    sharded_sync,
    state_checksum,
)
from siirl.gpu_checks.updates import update
from tests.gpu_checks import rank_work


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    ends_at = time.monotonic() + 600
    return Trial(torch.device("cpu"), ends_at=ends_at, file=tmp_path / "figures.json")


def test_an_update_of_two_ranks_is_that_of_one(trial: Trial) -> None:
    sharded_update(trial)
    assert trial.figures["ranks"] == 2
    assert trial.figures["weights_apart"] < 1e-4
    assert trial.figures["grad_norm_apart"] < 1e-5
    assert trial.figures["planned_gb"] > 0


def test_other_weights_in_one_shard_are_a_failure(trial: Trial) -> None:
    found = run_on_ranks(trial, rank_work.with_a_wrong_shard, ranks=2)[0]
    with pytest.raises(CheckFailed, match=r"on all ranks and .* on one$"):
        require_equal(trial, found)


def test_other_weights_after_the_step_are_a_failure(trial: Trial) -> None:
    same = dict.fromkeys(COMPARED, 1.0)
    with pytest.raises(CheckFailed, match=r"the weights of all ranks differ .* by 0\.02 of"):
        require_equal(trial, Compared(same, same, distance=0.02, seconds=1.0, peak_bytes=None))


def test_an_update_by_a_forced_group_of_one_is_that_of_one_rank(trial: Trial) -> None:
    [found] = run_on_ranks(trial, work, ranks=1)
    assert found.distance == 0
    require_equal(trial, found)


def test_sharded_weights_arrive_in_buckets_and_in_acting_copies(trial: Trial) -> None:
    sharded_sync(trial)
    assert trial.figures["buckets"] > 1
    weights = sum(
        weight.numel() for weight in sharded_engine(trial, OneProcess()).module.parameters()
    )
    assert trial.figures["bytes"] == trial.figures["copy_bytes"] == 4 * weights


def test_a_bucket_that_changes_on_its_way_is_a_failure(trial: Trial) -> None:
    with pytest.raises(CheckFailed, match="After a weight sync the ranks found"):
        sharded_sync(trial, transport=rank_work.SpoiltBucket)


def test_a_checkpoint_of_two_ranks_is_read_by_one(trial: Trial) -> None:
    sharded_checkpoint(trial)
    assert trial.figures["bytes"] > 0
    assert trial.figures["load_1_seconds"] > 0


@pytest.mark.slow  # four ranks
def test_a_checkpoint_of_four_ranks_is_read_by_one_and_by_two(trial: Trial, tmp_path: Path) -> None:
    found = run_on_ranks(trial, save_and_read, tmp_path / "checkpoints", ranks=4)[0]
    assert found["saved"] == found["read_by_1"] == found["read_by_2"]


def test_the_checksum_of_a_checkpoint_has_weights_moments_and_steps(trial: Trial) -> None:
    engine = sharded_engine(trial, OneProcess())
    sums = [state_checksum(engine)]
    update(engine, rows_of_all(trial, 1))
    sums.append(state_checksum(engine))
    [*states] = engine.optimizer.state.values()
    states[0]["exp_avg"].view(-1)[0] += 1.0
    sums.append(state_checksum(engine))
    engine.steps += 1
    sums.append(state_checksum(engine))
    assert len(set(sums)) == 4
