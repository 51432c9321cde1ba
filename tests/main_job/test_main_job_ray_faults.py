"""A process that a run on Ray needs is killed or stopped: the run ends with a
message, the setting that resumes it, and no traceback.
"""

import json
import os
import signal
import time

import pytest
from real_run import RAY_AGENTS, RealRun

FAILED = 1
ENDLESS = ("trainer.total_steps=100000", "cluster=ray")
TWO_RANKS = ("trainer.n_gpus_per_node=2", "env.num_servers=2", "actor_rollout_ref.rollout.n=4")


def signal_one(run: RealRun, part: str, number: int) -> int:
    """Send a signal to the first process of the run that has `part` in its title; returns its
    number.
    """
    pid = next(pid for pid, title in sorted(run.processes().items()) if part in title)
    os.kill(pid, number)
    return pid


def check_failed_with(run: RealRun, sentence: str) -> None:
    assert run.wait() == FAILED, run.text
    assert f"siirl: the run failed: {sentence}" in run.text
    assert "Traceback" not in run.text
    assert "worker died" not in run.text
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
def test_death_during_a_run_fails_it(start_run, part: str, sentence: str) -> None:
    run = start_run(*ENDLESS)
    run.wait_until(lambda: any(run.outputs.glob("*/*/checkpoints/latest")))
    signal_one(run, part, signal.SIGKILL)
    check_failed_with(run, sentence)
    assert (
        run.text.rstrip().splitlines()[-1]
        == f"Resume with the same command and trainer.resume={run.folders[0]}"
    )


# Ray takes ten seconds to start, and a stopped process is waited for half a minute
@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ("raylet/raylet ", "Ray's raylet on this machine (process "),
        ("gcs/gcs_server ", "Ray's GCS (process "),
        ("ray::_Rank", "A rank's process (process "),
    ],
    ids=["raylet", "GCS", "rank"],
)
def test_a_process_that_stays_stopped_ends_the_run(start_run, part: str, sentence: str) -> None:
    run = start_run(*ENDLESS)
    run.wait_until(lambda: any(run.outputs.glob("*/*/checkpoints/latest")))
    pid = signal_one(run, part, signal.SIGSTOP)
    assert run.wait() == FAILED, run.text
    assert f"siirl: the run failed: {sentence}{pid}) was stopped (SIGSTOP) for 30 s" in run.text
    assert f"`kill -CONT {pid}` continues it" in run.text
    assert "Traceback" not in run.text
    assert (
        run.text.rstrip().splitlines()[-1]
        == f"Resume with the same command and trainer.resume={run.folders[0]}"
    )
    run.seconds_until_gone(but=RAY_AGENTS)


@pytest.mark.slow  # Ray takes ten seconds to start
def test_a_raylet_that_is_continued_after_ten_seconds_ends_nothing(start_run) -> None:
    run = start_run(*ENDLESS)
    run.wait_until(lambda: any(run.outputs.glob("*/*/checkpoints/latest")))
    pid = signal_one(run, "raylet/raylet ", signal.SIGSTOP)
    time.sleep(10)
    os.kill(pid, signal.SIGCONT)
    done = run.checkpoints()
    time.sleep(30)
    run.wait_until(lambda: run.checkpoints() != done)


@pytest.mark.slow  # Ray takes ten seconds to start
def test_no_step_is_saved_whose_metrics_a_killed_command_did_not_take(start_run) -> None:
    run = start_run(*ENDLESS, "trainer.save_freq=1")
    run.wait_until(lambda: any(run.outputs.glob("*/*/checkpoints/latest")))
    run.process.kill()
    run.wait()
    run.seconds_until_gone(but=RAY_AGENTS)
    [folder] = run.folders
    told = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    saved = max(int(name.removeprefix("step_")) for name in run.checkpoints())
    assert saved <= told + 1  # the last report may have been under way


@pytest.mark.slow  # Ray takes ten seconds to start
def test_one_of_two_ranks_during_a_run(start_run) -> None:
    """The other rank's collective fails too; the sentence names the rank that died."""
    run = start_run(*ENDLESS, *TWO_RANKS)
    run.wait_until(lambda: any(run.outputs.glob("*/*/checkpoints/latest")))
    signal_one(run, "ray::_Rank", signal.SIGKILL)
    check_failed_with(run, "The process of rank ")
    messages = run.folders[0] / "ray.txt"
    assert f"Ray's messages and the traces of its processes are in {messages}" in run.text
    assert "worker died" in messages.read_text()


@pytest.mark.slow  # Ray takes ten seconds to start
def test_a_rank_before_the_ranks_have_met(start_run) -> None:
    run = start_run(*ENDLESS, *TWO_RANKS)
    run.wait_until(lambda: any("ray::_Rank" in title for title in run.processes().values()))
    signal_one(run, "ray::_Rank", signal.SIGKILL)
    check_failed_with(run, "The process of rank ")
    assert "There is no checkpoint yet" in run.text
