"""A run that is killed during a step resumes from its last checkpoint, and ends bit for bit like an
uninterrupted one.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from real_run import RAY_AGENTS, RealRun

JOB = ("trainer.deterministic=true", "trainer.total_steps=30", "trainer.val_before_train=false")
TIMED = (
    *("time", "env/steps_per_s", "env/busy", "policy/busy", "policy/calls_per_s", "memory/"),
    *("perf/", "sync/seconds"),
)


def last_step(run: RealRun, folder: Path) -> dict[str, Any]:
    """The metrics of step 30 but for what a clock measures, and the digests of the weights and
    moments after it.
    """
    row = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    files = json.loads((folder / "checkpoints" / "step_00000030" / "manifest.json").read_text())[
        "files"
    ]
    digests = {
        name: file["sha256"]
        for name, file in files.items()
        if name.endswith((".safetensors", ".distcp"))
    }
    assert len(digests) >= 2, files  # the weights, and the shards of each rank
    return {name: value for name, value in row.items() if not name.startswith(TIMED)} | digests


@pytest.mark.slow  # three whole runs
@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param(("cluster=local",), id="one process"),
        pytest.param(
            (
                "cluster=ray",
                "trainer.n_gpus_per_node=2",
                "env.num_servers=2",
                "actor_rollout_ref.rollout.n=4",
            ),
            id="two ranks",
        ),
    ],
)
def test_killed_and_resumed_equals_uninterrupted(start_run, cluster: tuple[str, ...]) -> None:
    whole = start_run(*JOB, *cluster)
    assert whole.wait() == 0, whole.text
    (whole_folder,) = whole.folders

    killed = start_run(*JOB, *cluster, "trainer.experiment_name=killed")
    killed.wait_until(lambda: any(killed.outputs.glob("killed/*/checkpoints/latest")))
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.wait()
    killed.seconds_until_gone(but=RAY_AGENTS)
    (killed_folder,) = killed.outputs.glob("killed/*")
    assert not (killed_folder / "checkpoints" / "step_00000030").exists()  # it was in the middle

    resumed = start_run(
        *JOB, *cluster, "trainer.experiment_name=resumed", f"trainer.resume={killed_folder}"
    )
    assert resumed.wait() == 0, resumed.text
    (resumed_folder,) = resumed.outputs.glob("resumed/*")
    assert last_step(resumed, resumed_folder) == last_step(whole, whole_folder)


@pytest.mark.parametrize(
    "evaluations",
    [
        pytest.param(("trainer.val_episodes=0",), id="", marks=pytest.mark.slow),
        pytest.param(("trainer.val_episodes=2", "trainer.test_freq=1"), id="tested"),
    ],
)
def test_the_same_command_line_after_a_sigterm_ends_as_if_there_had_been_none(
    start_run, evaluations: tuple[str, ...]
) -> None:
    """Restarts a job like Slurm and Kubernetes. Where every step is tested, the signal may come in
    an evaluation, which is done again.
    """
    command = (*JOB, "cluster=local", "trainer.resume=auto", "trainer.save_freq=100", *evaluations)
    whole = start_run(*command)
    assert whole.wait() == 0, whole.text
    (whole_folder,) = whole.folders

    command += ("trainer.experiment_name=again",)
    first = start_run(*command)
    first.wait_until(
        lambda: any(file.read_text() for file in first.outputs.glob("again/*/metrics.jsonl"))
    )
    first.process.send_signal(signal.SIGTERM)
    assert first.wait() == 143, first.text
    (first_folder,) = first.outputs.glob("again/*")
    assert (first_folder / "checkpoints" / "latest").is_file()
    assert not (first_folder / "checkpoints" / "step_00000030").exists()  # it was in the middle

    second = start_run(*command)
    assert second.wait() == 0, second.text
    (second_folder,) = {*second.outputs.glob("again/*")} - {first_folder}
    assert last_step(second, second_folder) == last_step(whole, whole_folder)
