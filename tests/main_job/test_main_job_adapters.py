"""A robot's policy that is trained by LoRA adapters: it resumes from its checkpoint, which
also loads as a plain policy.
"""

import json
import subprocess
import sys

import pytest
from real_run import CARTPOLE

from siirl.engine.training.shard_files import ShardFolder

JOB = (
    "actor_rollout_ref.model.lora.rank=2",
    "actor_rollout_ref.actor.use_kl_loss=true",
    "trainer.deterministic=true",
)
FROZEN = "checkpoints/*/actor/frozen.safetensors"


def files_of(checkpoint):
    """Names of the weights and of the optimiser's tensors."""
    names = set(ShardFolder(checkpoint / "actor" / "shards").stored())
    weights = {name for name in names if name.startswith("model/")}
    return weights, names - weights


@pytest.mark.slow  # two runs that import peft, for each number of ranks
@pytest.mark.parametrize("ranks", [1, 2])
def test_adapters_train_resume_and_load_as_a_plain_policy(start_run, ranks):
    words = (
        *JOB,
        f"trainer.n_gpus_per_node={ranks}",
        f"env.num_servers={ranks}",
        "actor_rollout_ref.rollout.n=4",
    )
    first = start_run(*words, "trainer.total_steps=2")
    assert first.wait() == 0, first.text
    (folder,) = first.folders
    # the policy below the adapters is asked, and is no second one
    assert "reference_log_prob" in first.text.partition("skipped")[0]
    weights, moments = files_of(folder / "checkpoints" / "step_00000002")
    assert any(".lora_" in name for name in weights)
    assert not any(".base_layer." in name for name in weights)  # they are in frozen.safetensors
    assert all(".lora_" in name for name in moments - {"progress"})
    assert (
        json.loads((folder / "checkpoints" / "step_00000002" / "actor" / "lora.json").read_text())[
            "rank"
        ]
        == 2
    )

    resumed = start_run(
        *words,
        "trainer.total_steps=3",
        f"trainer.resume={folder}",
        "trainer.experiment_name=resumed",
    )
    assert resumed.wait() == 0, resumed.text
    (again,) = resumed.outputs.glob("resumed/*")
    rows = [json.loads(line) for line in (again / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [3]
    assert rows[0]["actor/kl_loss"] >= 0
    frozen = [*folder.glob(FROZEN), *again.glob(FROZEN)]
    assert len(frozen) > 1
    assert len({file.stat().st_ino for file in frozen}) == 1

    command = (
        "siirl.evaluate",
        f"checkpoint={again}",
        *CARTPOLE,
        "trainer.val_episodes=2",
        f"trainer.output_dir={resumed.outputs}",
    )
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, cwd=first.outputs.parent
    )
    assert done.returncode == 0, done.stdout + done.stderr
