"""The benchmark of a step on one GPU, with small models on a CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_step_with_random_weights_in_the_published_layout_is_measured(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.gpu_libero_step", str(tmp_path / "models")]
    options = ["--small", "--prompts", "2", "--cluster", "local", "--out", str(found)]
    subprocess.run([*command, *options, "trainer.seed=3"], check=True)
    (step,) = json.loads(found.read_text())["steps"]
    assert step["actor/updates"] == 1
    assert step["env/steps"] == 2 * 2 * 16
    assert step["time/rollout_actor_s"] + step["time/actor_train_s"] < step["time/step_s"]
