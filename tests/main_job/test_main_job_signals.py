"""Signals to a real run: it saves its completed steps, prints how to resume, and leaves no
process; a second signal ends it at once.
"""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from real_run import AGENTS_END_WITHIN_S, RAY_AGENTS, RealRun, hears_signals

from siirl.dag_worker.checkpoint import read_manifest, resolve_checkpoint

ENDLESS = ("trainer.total_steps=100000", "trainer.save_freq=100000", "trainer.grace_s=600")
ENDS_WITHIN_S = 900.0  # three seconds on an idle machine; only a hang takes longer
STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
APART_S = 1.2  # two signals within a second count as one
HERE = Path(__file__).parent
OWN_ENVS = {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ["PYTHONPATH"]])}
STUCK = ("env=custom", "reward=return", "env.name=bad_envs:StuckEnv", "cluster=local", *ENDLESS)


def steps(folder: Path) -> list[int]:
    """The steps in the metrics of a run folder."""
    file = folder / "metrics.jsonl"
    return (
        [json.loads(line)["step"] for line in file.read_text().splitlines()]
        if file.is_file()
        else []
    )


def in_training(start_run, *words: str, **arguments) -> RealRun:
    """A run that has done a step, and saved nothing."""
    run = start_run(*ENDLESS, *words, **arguments)
    run.wait_until(lambda: bool(run.folders) and steps(run.folders[0]) != [])
    return run


def check_ended_in_peace(run: RealRun, number: signal.Signals) -> None:
    """Every step that it has trained is in the checkpoint that it names."""
    assert run.wait(timeout_s=ENDS_WITHIN_S) == STATUS[number], run.text
    assert run.seconds_until_gone(timeout_s=ENDS_WITHIN_S) < ENDS_WITHIN_S
    folder = run.folders[0]
    newest = resolve_checkpoint(folder)
    assert read_manifest(newest)["step"] == steps(folder)[-1]
    assert (
        f"siirl: interrupted\nThe last checkpoint is {newest}\nResume with the same command and trainer.resume={folder}"
        in run.text
    )
    assert "Traceback" not in run.text


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)]
)
def test_a_run_in_one_process_saves_what_it_has_trained(start_run, number: signal.Signals) -> None:
    run = in_training(start_run, "cluster=local")
    run.process.send_signal(number)
    check_ended_in_peace(run, number)


@pytest.mark.slow  # Ray takes ten seconds to start
@pytest.mark.parametrize("number", STATUS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_on_ray_saves_what_it_has_trained_and_ends_with_all_its_processes(
    start_run, number: signal.Signals, ranks: int
) -> None:
    run = in_training(
        start_run,
        "cluster=ray",
        f"trainer.n_gpus_per_node={ranks}",
        "actor_rollout_ref.rollout.n=4",
    )
    titles = " ".join(run.processes().values())
    assert "ray::_Rank" in titles and "ray::EnvServerActor" in titles  # those that must end
    run.process.send_signal(number)
    check_ended_in_peace(run, number)


@pytest.mark.slow  # Ray takes ten seconds to start
@pytest.mark.parametrize("number", STATUS)
def test_a_process_group_that_is_signalled_twice_saves_and_ends(
    start_run, number: signal.Signals
) -> None:
    """As by a terminal, or by `timeout` and `scancel` with SIGTERM."""
    run = in_training(start_run, "cluster=ray")
    run.signal_terminal(number)
    run.signal_terminal(number)
    check_ended_in_peace(run, number)


def test_a_second_signal_ends_a_run_at_once(start_run) -> None:
    """The environment blocks the process, so nothing in it can end by itself."""
    run = start_run(*STUCK, environment=OWN_ENVS)
    run.wait_until(lambda: "stuck\n" in run.text)
    run.process.send_signal(signal.SIGTERM)
    run.wait_until(
        lambda: (
            "siirl: SIGTERM ends the run within trainer.grace_s=600 s; a second signal ends it at once\n"
            in run.text
        )
    )
    time.sleep(APART_S)
    run.process.send_signal(signal.SIGINT)
    assert run.wait(timeout_s=ENDS_WITHIN_S) == 130, run.text
    run.seconds_until_gone(timeout_s=ENDS_WITHIN_S)
    assert run.text.endswith(
        "siirl: interrupted\nThere is no checkpoint yet (trainer.save_freq)\nThe run folder is "
        f"{run.folders[0]}\n"
    )


def test_a_run_that_is_not_ready_within_its_grace_ends_all_the_same(start_run) -> None:
    run = start_run(*STUCK, "trainer.grace_s=2", "trainer.save_freq=1", environment=OWN_ENVS)
    run.wait_until(lambda: "stuck\n" in run.text)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(timeout_s=ENDS_WITHIN_S) == 143, run.text
    run.seconds_until_gone(timeout_s=ENDS_WITHIN_S)
    folder = run.folders[0]
    assert run.text.endswith(
        "siirl: interrupted, but not stopped in time: raise trainer.grace_s\n"
        f"The last checkpoint is {folder}/checkpoints/step_00000001\n"
        f"Resume with the same command and trainer.resume={folder}\n"
    )


def check_start_up(start_run, number: signal.Signals, delay_s: float, cluster: str) -> None:
    """A signal some time after the command handles it: a message, the status, and no process left."""
    run = start_run(*ENDLESS, f"cluster={cluster}")
    run.wait_until(lambda: hears_signals(run.process.pid))
    time.sleep(delay_s)
    run.process.send_signal(number)
    assert run.wait(timeout_s=ENDS_WITHIN_S) == STATUS[number], (delay_s, run.text)
    run.seconds_until_gone(timeout_s=ENDS_WITHIN_S)
    assert "siirl: interrupted\n" in run.text, (delay_s, run.text)
    assert "Traceback" not in run.text and "Fatal Python error" not in run.text, (delay_s, run.text)
    for folder in run.folders:  # one in which nothing was written is taken back
        assert {entry.name for entry in folder.iterdir()} > {"config.yaml", "plan.txt"}, (
            delay_s,
            run.text,
        )


def start_ups(trials: int, *, seed: int, latest_s: float) -> list[tuple[signal.Signals, float]]:
    """Signals at random times, denser at the beginning."""
    draw = random.Random(seed)
    return [(draw.choice(list(STATUS)), latest_s * draw.random() ** 2) for _ in range(trials)]


@pytest.mark.parametrize(
    ("number", "delay_s"), [(signal.SIGTERM, 0.0), (signal.SIGINT, 0.3), (signal.SIGHUP, 2.0)]
)
def test_a_signal_while_a_run_starts_ends_it_with_a_message(
    start_run, number: signal.Signals, delay_s: float
) -> None:
    check_start_up(start_run, number, delay_s, "local")


@pytest.mark.slow  # twenty starts, half of them of Ray
@pytest.mark.parametrize("cluster", ["local", "ray"])
def test_signals_at_any_time_of_the_start_end_a_run_with_a_message(start_run, cluster: str) -> None:
    for number, delay_s in start_ups(10, seed=20, latest_s=8.0 if cluster == "local" else 20.0):
        check_start_up(start_run, number, delay_s, cluster)


@pytest.mark.slow  # Ray takes ten seconds to start
def test_ctrl_c_while_ray_starts_leaves_nothing(start_run) -> None:
    run = start_run(*ENDLESS, "cluster=ray")
    run.wait_until(lambda: any("gcs_server" in title for title in run.processes().values()))
    assert "  starting    a private Ray cluster\n" in run.text
    run.process.send_signal(signal.SIGINT)
    assert run.wait(timeout_s=ENDS_WITHIN_S) == 130, run.text
    assert run.seconds_until_gone(timeout_s=ENDS_WITHIN_S) < ENDS_WITHIN_S
    assert run.folders == []


@pytest.mark.slow  # Ray takes ten seconds to start, and its agents a minute to end
def test_a_command_that_is_killed_leaves_no_process(start_run) -> None:
    run = in_training(start_run, "cluster=ray", "trainer.save_freq=1")
    run.wait_until(lambda: run.checkpoints() != [])
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    run.seconds_until_gone(timeout_s=ENDS_WITHIN_S, but=RAY_AGENTS)
    run.seconds_until_gone(timeout_s=AGENTS_END_WITHIN_S)
    read_manifest(resolve_checkpoint(run.folders[0]))
