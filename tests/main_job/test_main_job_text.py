"""The commands for language models, through Ray: one rank and two make the same step."""

import contextlib
import importlib.util
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_run import RealRun

from benchmarks.vllm_server import free_port
from siirl.reporting.rollout_files import read_rollouts

JOB = (
    *(
        "env=math",
        "data.train_batch_size=8",
        "data.max_response_length=6",
        "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    ),
    *(
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.model.options={}",
        "env.envs_per_server=64",
    ),
    *(
        "trainer.total_steps=1",
        "trainer.val_before_train=false",
        "trainer.save_rollouts=-1",
        "trainer.threads_per_rank=1",
    ),
)


def finished(run: RealRun, name: str) -> Path:
    assert run.wait() == 0, run.text
    (folder,) = run.outputs.glob(f"{name}/*")
    return folder


def step(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


def answers(folder: Path) -> dict[str, list[int]]:
    return {
        line["uid"]: line["turns"][0]["tokens"]
        for line in read_rollouts(folder / "rollouts", kind="train")
    }


@pytest.mark.slow  # a run through Ray with two vLLMs, each in a separate process: a minute
@pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm"
)
def test_each_of_two_ranks_has_its_own_vllm(start_run) -> None:
    vllm = (
        "rollout=vllm",
        "actor_rollout_ref.rollout.mode=async",
        "actor_rollout_ref.rollout.kv_cache_gib=0.05",
    )
    folder = finished(
        start_run(
            *JOB, *vllm, "pipeline=grpo", "trainer.experiment_name=two", "trainer.n_gpus_per_node=2"
        ),
        "two",
    )
    assert len(answers(folder)) == 32
    assert step(folder)["actor/updates"] == 1.0
    assert step(folder)["rollout/log_prob_gap"] < 1e-3


@pytest.mark.slow  # two runs through Ray, and two servers in processes of their own: a minute
@pytest.mark.parametrize("way", ["folder", "collective"])
def test_each_of_two_ranks_has_an_inference_server(start_run, way: str) -> None:
    server = "actor_rollout_ref.rollout.server"
    with reference_server() as (first, _), reference_server() as (second, _):
        words = (
            *("rollout=server", f"{server}.urls=['{first}','{second}']", f"{server}.weights={way}"),
            *("trainer.experiment_name=two", "trainer.n_gpus_per_node=2", "trainer.total_steps=2"),
        )
        folder = finished(start_run(*JOB, "pipeline=grpo", *words), "two")
    assert len(answers(folder)) == 64
    assert step(folder)["policy/version"] == 2.0
    assert 0 < step(folder)["rollout/log_prob_gap"] < 1e-4


@pytest.mark.slow  # a sync waits two minutes for a server that has gone
def test_a_killed_inference_server_ends_all_ranks_and_loses_no_step(start_run) -> None:
    key = "actor_rollout_ref.rollout.server.urls"
    with reference_server() as (first, _), reference_server() as (second, process):
        words = (
            *("rollout=server", f"{key}=['{first}','{second}']", "trainer.total_steps=1000"),
            *("trainer.experiment_name=two", "trainer.n_gpus_per_node=2", "trainer.save_freq=-1"),
        )
        run = start_run(*JOB, "pipeline=grpo", *words)
        run.wait_until(lambda: any(step_numbers(folder)[2:] for folder in run.folders))
        process.kill()
        assert run.wait() == 1
    sentence = f"No inference server answers at {second}"
    assert "episodes could not be simulated, and env.max_failed_share=0.05" in run.text
    assert sentence in run.text
    [folder] = run.folders
    assert run.checkpoints() == [f"step_{step_numbers(folder)[-1]:08d}"]


def step_numbers(folder: Path) -> list[int]:
    """Steps whose metrics are written."""
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line)["step"] for line in lines]


@contextlib.contextmanager
def reference_server() -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Address and process of the documented server with the shipped model."""
    port = free_port()
    words = ["docs/examples/inference_server.py", "assets/tiny_lm", str(port)]
    process = subprocess.Popen([sys.executable, *words])
    try:
        while True:
            assert process.poll() is None
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.wait()


@pytest.mark.slow  # two whole runs through Ray; dapo draws further prompts by the number of ranks
@pytest.mark.parametrize("pipeline", ["grpo", "ppo"])
def test_two_ranks_take_the_same_step_as_one(start_run, pipeline: str) -> None:
    one = finished(start_run(*JOB, f"pipeline={pipeline}", "trainer.experiment_name=one"), "one")
    two = finished(
        start_run(
            *JOB, f"pipeline={pipeline}", "trainer.experiment_name=two", "trainer.n_gpus_per_node=2"
        ),
        "two",
    )
    assert answers(one) == answers(two)
    assert len(answers(one)) >= 32
    expected, found = step(one), step(two)
    assert found["reward/mean_score"] == pytest.approx(expected["reward/mean_score"])
    assert found["actor/grad_norm"] == pytest.approx(expected["actor/grad_norm"], rel=1e-4)
