"""The first text jobs of a user: from the shipped weights, GRPO learns to use a tool, and
to write programs that pass.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = 60
# of the mean success of ten steps: 160 groups of which each deviates by about 0.25, so three
# deviations of a difference
RISE = 0.08


# sixty training steps of 128 episodes each: four (tools) to eight minutes (sandbox) of two idle
# cores
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("env", ["tools", "sandbox"])
def test_success_rises_from_the_shipped_weights(tmp_path: Path, env: str) -> None:
    command = [
        sys.executable,
        "-m",
        "siirl.train",
        "pipeline=grpo",
        f"env={env}",
        "cluster=local",
        f"trainer.total_steps={STEPS}",
    ]
    command += [
        "trainer.max_minutes=null",
        "trainer.val_before_train=false",
        "trainer.val_episodes=0",
        "trainer.seed=1",
    ]
    subprocess.run([*command, f"trainer.output_dir={tmp_path}"], check=True)
    (metrics,) = tmp_path.glob("*/*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    success = [row["rollout/success_rate"] for row in rows if row["step"] > 0]
    assert len(success) == STEPS
    assert success[0] > 0
    assert sum(success[-10:]) / 10 > sum(success[:10]) / 10 + RISE
