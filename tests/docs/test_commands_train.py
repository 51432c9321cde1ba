"""The documented commands that train take a step."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_code_blocks import REPOSITORY, TRAINING, folder  # noqa: F401

pytestmark = pytest.mark.slow

SMALL = (
    *("trainer=smoke", "trainer.total_steps=1", "trainer.max_minutes=null"),
    *("trainer.val_episodes=0", "trainer.record_episodes=0"),
)
SEVERAL = ("trainer.n_gpus_per_node=2", "--plan")
"""Commands with these words run as they are."""


@pytest.mark.parametrize("arguments", TRAINING, ids=" ".join)
def test_a_documented_command_trains(arguments: tuple[str, ...], folder: Path) -> None:  # noqa: F811
    given = {argument.partition("=")[0] for argument in arguments}
    small = [word for word in SMALL if word.partition("=")[0] not in given]
    own_size = ("trainer=smoke", "trainer.total_steps=1") if "trainer" not in given else ()
    done = subprocess.run(
        [sys.executable, "-m", "siirl.train", *arguments, *(small or own_size)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
