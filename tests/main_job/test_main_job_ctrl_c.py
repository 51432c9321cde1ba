"""Ctrl-C on a terminal, in any command and at any time: at most a message,
never a traceback; no process is left.
"""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real_run import CARTPOLE, SMALL_JOB
from terminal import Terminal

from siirl.files.paths import find

pytestmark = pytest.mark.slow

WITHIN_S = 900.0  # only a hang takes longer
JOB = ("siirl.train", "pipeline=grpo", *CARTPOLE, *SMALL_JOB, "trainer.total_steps=100000")
SHORT = (*JOB, "trainer.total_steps=3")
RAY_TWO = ("cluster=ray", "trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.n=4")
MODES = {"local": ("cluster=local",), "ray": ("cluster=ray",), "two_ranks": RAY_TWO}
Start = Callable[..., Terminal]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a command on a terminal; what is left at the end of the test is killed."""
    commands: list[Terminal] = []

    def begin(*words: str) -> Terminal:
        commands.append(Terminal(*words, folder=tmp_path))
        return commands[-1]

    yield begin
    for command in commands:
        command.kill_all()


def check_ended(command: Terminal, *, statuses: tuple[int, ...] = (130,)) -> None:
    """It has ended with one of these statuses, without a traceback and without a process left."""
    assert command.process.wait(timeout=WITHIN_S) in statuses, command.text
    deadline = time.monotonic() + WITHIN_S
    while command.processes():
        assert time.monotonic() < deadline, (command.processes(), command.text)
        time.sleep(0.1)
    assert "Traceback" not in command.text, command.text
    assert "KeyboardInterrupt" not in command.text, command.text


@pytest.mark.parametrize("mode", MODES)
def test_in_the_middle_of_a_run(start: Start, mode: str) -> None:
    run = start(*JOB, *MODES[mode])
    run.wait_for(" 2/100000 ", timeout_s=WITHIN_S)
    run.press_ctrl_c()
    check_ended(run)
    assert "siirl: interrupted\nThe last checkpoint is" in run.text


@pytest.mark.parametrize("mode", MODES)
def test_again_and_again_while_a_run_starts(start: Start, mode: str) -> None:
    run = start(*JOB, *MODES[mode])
    run.wait_for("run folder", timeout_s=WITHIN_S)
    time.sleep(random.Random(mode).uniform(0, 8))
    for _ in range(4):
        run.press_ctrl_c()
        time.sleep(0.7)
    check_ended(run)


@pytest.mark.parametrize("mode", MODES)
def test_at_the_end_of_a_run(start: Start, mode: str) -> None:
    run = start(*SHORT, *MODES[mode])
    run.wait_for("report   ", timeout_s=WITHIN_S)
    run.press_ctrl_c()
    check_ended(run, statuses=(0, 130))


@pytest.mark.parametrize(
    "words",
    [
        ("siirl.doctor",),
        ("siirl.gpu_check",),
        ("siirl.evaluate", f"checkpoint={find('assets/tiny_lm')}", "env=math"),
        ("siirl.warm_start", "--output", "made", "env=math"),
        ("siirl.serve", "env=math", "port=0"),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("delay_s", [0.0, 1.0, 6.0])
def test_ctrl_c_ends_the_other_commands_with_a_sentence(
    start: Start, words: tuple[str, ...], delay_s: float
) -> None:
    command = start(*words)
    command.wait_until_it_listens(timeout_s=WITHIN_S)
    time.sleep(delay_s)
    command.press_ctrl_c()
    check_ended(command, statuses=(0, 130))
    if command.process.returncode == 130:
        assert "\nsiirl: " in command.text  # not behind ^C
