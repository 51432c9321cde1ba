"""The benchmark of text steps on one GPU, with a small model and vLLM on a CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is an extra: make vllm")


@pytest.mark.slow
def test_steps_with_random_weights_and_vllm_are_measured(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.gpu_text_step", str(tmp_path / "models")]
    options = ["--small", "--prompts", "2", "--tokens", "8", "--steps", "2", "--out", str(found)]
    subprocess.run([*command, *options, "trainer.seed=3"], check=True)
    steps = json.loads(found.read_text())["steps"]
    assert [step["actor/updates"] for step in steps] == [1, 1]
    assert all(0 < step["rollout/avg_response_length"] <= 8 for step in steps)
    assert all(step["sync/bytes"] > 0 for step in steps)
