"""Processes that a run on Ray cannot do without are killed: it ends with a sentence, the line to resume, and no traceback of Ray's."""

import os
import signal

import pytest
from real_run import RAY_AGENTS, RealRun

FAILED = 1
ENDLESS = ("trainer.total_steps=100000", "cluster=ray")
TWO_RANKS = ("trainer.n_gpus_per_node=2", "env.num_servers=2", "actor_rollout_ref.rollout.n=4")


def kill_one(run: RealRun, part: str) -> None:
    """Kill the first process of the run that has `part` in its title."""
    os.kill(next(pid for pid, title in sorted(run.processes().items()) if part in title), signal.SIGKILL)


def check_failed_with(run: RealRun, sentence: str) -> None:
    assert run.wait() == FAILED, run.text
    assert f"siirl: the run failed: {sentence}" in run.text
    assert "Traceback" not in run.text
    run.seconds_until_gone(but=RAY_AGENTS)


@pytest.mark.slow  # Ray takes ten seconds to start, and a dead GCS is waited for half a minute
@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ("raylet/raylet ", "Ray's raylet on this machine ("),
        ("gcs/gcs_server ", "Ray's GCS ("),
        ("ray::_Rank", "The process of rank 0 died"),
    ],
    ids=["raylet", "GCS", "rank"],
)
def test_in_mid_run(start_run, part: str, sentence: str) -> None:
    run = start_run(*ENDLESS)
    run.wait_until(lambda: any(run.outputs.glob("*/*/checkpoints/latest")))
    kill_one(run, part)
    check_failed_with(run, sentence)
    assert run.text.rstrip().splitlines()[-1] == f"Go on with trainer.resume={run.folders[0]}"


@pytest.mark.slow  # Ray takes ten seconds to start
def test_a_rank_before_the_ranks_have_met(start_run) -> None:
    run = start_run(*ENDLESS, *TWO_RANKS)
    run.wait_until(lambda: any("ray::_Rank" in title for title in run.processes().values()))
    kill_one(run, "ray::_Rank")
    check_failed_with(run, "The process of rank ")
    assert "There is no checkpoint yet" in run.text
