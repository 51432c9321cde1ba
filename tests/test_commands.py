"""Ctrl-C ends every command with one message, in its first seconds and during its work.

Each command is a real process that signals itself, so that no test depends on the machine's speed.
Signals to training runs are tested in tests/main_job/test_main_job_signals.py.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from siirl.commands import SUBCOMMANDS
from tests.test_replay import recorded_run

REPOSITORY = Path(__file__).resolve().parents[1]
CTRL_C_IN_TORCH = """
import os, runpy, signal, sys

class PressesCtrlC:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, PressesCtrlC)
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
# Audit events: docs.python.org/3/library/audit_events.html. "import" has the module's name among
# its arguments, "open", "os.mkdir" and "os.rename" have paths, "subprocess.Popen" the program.
CTRL_C_AT = """
import os, signal, sys, time

event, part, *words = sys.argv[1:]

def presses_ctrl_c(happened, arguments):
    if happened == event and part in str(arguments):
        os.kill(os.getpid(), signal.SIGINT)
        while not sys.modules["siirl.interrupts"].STOP.requested:
            time.sleep(0.01)

sys.argv = ["siirl", *words]
sys.addaudithook(presses_ctrl_c)
from siirl.commands import script
script()
"""
TEN_STEPS = (
    *("env=metaworld", "env.tasks=[drawer-open]", "env.max_episode_steps=10", "cluster=local"),
    *("env.num_servers=1", "env.envs_per_server=1", "trainer.val_episodes=1"),
)
GRACE = "siirl: SIGINT ends the run within trainer.grace_s=25 s; a second signal ends it at once\n"
FIRST_SECONDS = {
    "train": ("torch", "--plan", "env=metaworld"),
    "evaluate": ("torch", "checkpoint=assets/tiny_vla"),
    "reward-check": ("torch", "checkpoint=assets/tiny_vla"),
    "warm-start": ("torch", "--output", "out"),
    "replay": ("siirl.reporting.recorder", "run"),
    "serve": ("siirl.terminal.exit_status", "env=math"),
    "report": ("siirl.reporting.report_page", "run"),
    "export": ("torch", "run", "--output", "out"),
    "doctor": ("importlib.metadata",),
    "gpu-check": ("torch",),
    "completion": ("siirl.params.schema", "bash"),
}
MIDDLE = {
    "replay": ("subprocess.Popen", "ffmpeg", "{run}", "a/b", "--size", "64"),
    "report": ("os.rename", "report.html", "{run}"),
    "doctor": ("import", "siirl.preflight.machine"),
}
SLOW_MIDDLE = {
    "evaluate": ("subprocess.Popen", "ffmpeg", "checkpoint=assets/tiny_vla", *TEN_STEPS),
    "export": ("os.rename", "/out", "assets/tiny_lm", "--output", "{folder}/out"),
    "warm-start": (
        *("os.mkdir", "/out", "--output", "{folder}/out", "--updates", "2"),
        *("env=math", "env.tasks=[sums-1]"),
    ),
    "gpu-check": ("subprocess.Popen", "python"),
}


def ctrl_c_at(event: str, part: str, *words: str, folder: Path) -> tuple[int, str]:
    """Exit status and errors of `siirl WORDS`, which gets Ctrl-C at an audit event."""
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C_AT, event, part, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("siirl.train", "--plan", "pipeline=grpo", "env=gymnasium", "env.id=CartPole-v1"),
        ("siirl.evaluate", "checkpoint=assets/tiny_vla"),
        ("siirl.warm_start", "--output", "{folder}/out"),
    ],
    ids=lambda words: words[0],
)
def test_ctrl_c_while_torch_is_imported_ends_with_a_message(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-c",
        CTRL_C_IN_TORCH,
        *(word.format(folder=tmp_path) for word in words),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "siirl: interrupted\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
def test_ctrl_c_in_the_first_seconds_ends_every_subcommand_with_a_message(
    subcommand: str, tmp_path: Path
) -> None:
    module, *words = FIRST_SECONDS[subcommand]
    assert ctrl_c_at("import", module, subcommand, *words, folder=tmp_path) == (
        128 + signal.SIGINT,
        "siirl: interrupted\n",
    )
    assert list(tmp_path.iterdir()) == []


def check_middle(subcommand: str, happened: tuple[str, ...], folder: Path) -> None:
    """Ctrl-C at `happened` ends a subcommand that has a run folder and a policy to work on."""
    event, part, *words = (
        word.format(folder=folder, run=folder / "run").replace("assets/", f"{REPOSITORY}/assets/")
        for word in happened
    )
    status, errors = ctrl_c_at(event, part, subcommand, *words, folder=folder)
    assert (status, errors.removeprefix(GRACE)) == (128 + signal.SIGINT, "siirl: interrupted\n")


@pytest.mark.parametrize("subcommand", MIDDLE)
def test_ctrl_c_in_the_middle_ends_a_subcommand_with_a_message(
    subcommand: str, tmp_path: Path
) -> None:
    run = recorded_run(tmp_path / "run", [1.0, 1.0, 0.5, 0.5], success=True)
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    check_middle(subcommand, MIDDLE[subcommand], tmp_path)


@pytest.mark.slow  # each imports torch
@pytest.mark.parametrize("subcommand", SLOW_MIDDLE)
def test_ctrl_c_while_a_policy_acts_ends_a_subcommand_with_a_message(
    subcommand: str, tmp_path: Path
) -> None:
    check_middle(subcommand, SLOW_MIDDLE[subcommand], tmp_path)
