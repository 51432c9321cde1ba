"""Runs without progress: they end with each rank's work and its start, and with stack traces."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from real_run import RealRun

FAILED = 1
HERE = Path(__file__).parent
OWN_ENVS = {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ["PYTHONPATH"]])}
ENDLESS = ("trainer.total_steps=100000",)
ALONE = (*ENDLESS, "env=custom", "reward=return", "cluster=local")


def check_ended(run: RealRun, *expected: str) -> dict[str, str]:
    """The run failed with these words and the line that resumes it, and left no process. Returns
    its stack traces by file name without host and pid.
    """
    assert run.wait() == FAILED, run.text
    run.seconds_until_gone()
    for words in expected:
        assert words in run.text, run.text
    assert "Traceback" not in run.text
    stacks: dict[str, str] = {}
    for file in (run.folders[0] / "stacks").iterdir():  # a process may have several
        name = file.name.partition("-")[0]
        stacks[name] = stacks.get(name, "") + file.read_text()
    return stacks


def test_an_environment_that_blocks_the_only_process_ends_the_run(start_run) -> None:
    run = start_run(
        *ALONE, "env.name=bad_envs:StuckEnv", "trainer.hang_minutes=0.5", environment=OWN_ENVS
    )
    stacks = check_ended(
        run,
        "siirl: the run failed: No progress for trainer.hang_minutes=0.5. rank 0: waits for reset of "
        "environment server 1 of 1 (bad_envs:StuckEnv), computes node rollout_actor of step 2, since ",
        f" s), in {HERE / 'bad_envs.py'}, line ",
        "/stacks. If one operation legitimately takes longer, raise trainer.hang_minutes.\nThe "
        "last checkpoint is ",
        "/checkpoints/step_00000001\nResume with the same command and trainer.resume=",
    )
    assert list(stacks) == ["rank_0"]
    assert 'bad_envs.py", line' in stacks["rank_0"] and "in reset" in stacks["rank_0"]


@pytest.mark.slow  # waits for half a minute, and then for the timer that needs no thread
def test_code_that_keeps_the_interpreters_lock_ends_with_a_sentence_and_its_stack_traces(
    start_run,
) -> None:
    run = start_run(
        *ALONE,
        "env.name=bad_envs:LockedEnv",
        "trainer.hang_minutes=0.5",
        "trainer.async_save=false",  # the lock would stop the thread that writes the checkpoint
        environment=OWN_ENVS,
    )
    stacks = check_ended(
        run,
        "siirl: the run failed: No progress for trainer.hang_minutes=0.5. rank 0: does not answer, "
        "because its code holds the "
        "interpreter's lock. Stack traces: ",
        "\nThe last checkpoint is ",
    )
    assert (
        run.text.rstrip().splitlines()[-1]
        == f"Resume with the same command and trainer.resume={run.folders[0]}"
    )
    assert "Timeout" in stacks["rank_0"] and 'bad_envs.py", line' in stacks["rank_0"]


@pytest.mark.slow  # a run of one step, and half a minute in which an evaluation hangs
def test_an_environment_that_blocks_an_evaluation_ends_it(start_run, tmp_path: Path) -> None:
    run = start_run(
        "trainer.total_steps=1",
        "env=custom",
        "reward=return",
        "cluster=local",
        "env.name=bad_envs:StillEnv",
        environment=OWN_ENVS,
    )
    assert run.wait() == 0, run.text
    words = [
        f"checkpoint={run.folders[0]}",
        "env.name=bad_envs:StuckEnv",
        "trainer.val_episodes=8",
        "trainer.hang_minutes=0.5",
    ]
    evaluation = subprocess.run(
        [sys.executable, "-m", "siirl.evaluate", *words],
        cwd=tmp_path,
        env=os.environ | OWN_ENVS,
        capture_output=True,
        text=True,
    )
    assert evaluation.returncode == FAILED, evaluation.stderr
    assert (
        "siirl: the evaluation failed: No progress for trainer.hang_minutes=0.5. rank 0: waits for "
        "reset of environment server 1 of 1 (bad_envs:StuckEnv), evaluates, since "
        in evaluation.stderr
    )
    assert "Traceback" not in evaluation.stderr
    (file,) = (tmp_path / "outputs" / "evaluation").glob("*/stacks/*")
    assert 'bad_envs.py", line' in file.read_text()


@pytest.mark.slow  # Ray with two ranks, which may take a minute to start
def test_ranks_whose_code_keeps_the_interpreters_lock_end_the_run_and_are_named(start_run) -> None:
    words = (
        "cluster=ray",
        "trainer.n_gpus_per_node=2",
        "actor_rollout_ref.rollout.n=4",
        "trainer.hang_minutes=2",
    )
    run = start_run(
        *ENDLESS, *words, "algorithm.adv_estimator=locked_advantage:estimate", environment=OWN_ENVS
    )
    stacks = check_ended(
        run,
        "siirl: the run failed: No progress for trainer.hang_minutes=2. rank 0: ",
        "does not answer, so it is stopped or its code holds the interpreter's lock; last it ",
        "\nResume with the same command and trainer.resume=",
    )
    assert stacks.keys() == {"rank_0", "rank_1", "environment_server"}
    assert all("most recent call first" in text for text in stacks.values())
    assert 'locked_advantage.py", line' in stacks["rank_0"]
