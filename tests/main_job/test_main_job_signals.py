"""Ctrl-C and SIGTERM on a real run: every process ends within seconds, the last checkpoint stays, and the user is told of it."""

import os
import signal

import pytest
from real_run import AGENTS_END_WITHIN_S, RAY_AGENTS, RealRun

from siirl.dag_worker.checkpoint import read_manifest, resolve_checkpoint

ENDLESS = ("trainer.total_steps=100000",)
ENDS_WITHIN_S = 60.0  # three seconds on an idle machine; tests share two cores with others
INTERRUPTED = 130


def in_training(start_run, *words: str) -> RealRun:
    """A run that has written a checkpoint."""
    run = start_run(*ENDLESS, *words)
    run.wait_until(lambda: any(run.outputs.glob("*/*/checkpoints/latest")))
    return run


def check_ended_in_peace(run: RealRun) -> None:
    assert run.wait(timeout_s=ENDS_WITHIN_S) == INTERRUPTED, run.text
    assert run.seconds_until_gone(timeout_s=ENDS_WITHIN_S) < ENDS_WITHIN_S
    folder = run.folders[0]
    newest = resolve_checkpoint(folder)
    read_manifest(newest)
    assert f"siirl: interrupted\nThe last checkpoint is {newest}\nGo on with trainer.resume={folder}" in run.text
    assert "Traceback" not in run.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_in_one_process_ends_and_keeps_its_checkpoint(start_run, number: signal.Signals) -> None:
    run = in_training(start_run, "cluster=local")
    run.process.send_signal(number)
    check_ended_in_peace(run)


@pytest.mark.slow  # Ray takes ten seconds to start
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_on_ray_ends_with_all_its_processes(start_run, number: signal.Signals) -> None:
    run = in_training(start_run, "cluster=ray")
    titles = " ".join(run.processes().values())
    assert "ray::_Rank" in titles and "ray::EnvServerActor" in titles  # those that must end
    run.process.send_signal(number)
    check_ended_in_peace(run)


@pytest.mark.slow  # Ray takes ten seconds to start
def test_ctrl_c_in_a_terminal_reaches_all_processes_at_once_and_may_come_twice(start_run) -> None:
    run = in_training(start_run, "cluster=ray")
    run.signal_terminal(signal.SIGINT)
    run.signal_terminal(signal.SIGINT)
    check_ended_in_peace(run)


@pytest.mark.slow  # Ray takes ten seconds to start
def test_ctrl_c_while_ray_starts_leaves_nothing(start_run) -> None:
    run = start_run(*ENDLESS, "cluster=ray")
    run.wait_until(lambda: any("gcs_server" in title for title in run.processes().values()))
    run.process.send_signal(signal.SIGINT)
    assert run.wait(timeout_s=ENDS_WITHIN_S) == INTERRUPTED, run.text
    assert run.seconds_until_gone(timeout_s=ENDS_WITHIN_S) < ENDS_WITHIN_S
    assert run.folders == []


@pytest.mark.slow  # Ray takes ten seconds to start, and its agents a minute to end
def test_a_command_that_is_killed_leaves_no_process(start_run) -> None:
    run = in_training(start_run, "cluster=ray")
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    run.seconds_until_gone(timeout_s=ENDS_WITHIN_S, but=RAY_AGENTS)
    run.seconds_until_gone(timeout_s=AGENTS_END_WITHIN_S)
    read_manifest(resolve_checkpoint(run.folders[0]))
