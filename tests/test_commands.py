"""Properties of all commands."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    "words",
    [
        ("siirl.train", "--plan", "pipeline=grpo", "env=gymnasium", "env.id=CartPole-v1"),
        ("siirl.evaluate", "checkpoint=assets/tiny_vla"),
        ("siirl.warm_start", "--output", "{folder}/out"),
    ],
    ids=lambda words: words[0],
)
def test_ctrl_c_while_torch_is_imported_ends_with_a_word(
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
