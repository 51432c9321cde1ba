"""Whole text runs whose answers come from an inference server over real HTTP."""

from pathlib import Path

import pytest
import torch
from inference_server import InferenceServer
from one_process import events_of
from starlette.responses import JSONResponse

from siirl.dag_worker.events import StepDone
from siirl.errors import TooManyFailures
from siirl.files.paths import find
from siirl.models.chat import load_chat_tokenizer
from siirl.models.language_model import load_language_model
from siirl.reporting.rollout_files import read_rollouts
from tests.engine.inference_servers import Faults, serving

JOB = (
    "pipeline=grpo", "env=math", "rollout=server", "cluster=local", "data.train_batch_size=4", "data.max_response_length=6",
    "actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.optim.warmup_steps=0",
    "env.envs_per_server=16", "trainer.val_episodes=0", "trainer.max_minutes=null", "trainer.save_freq=-1", "trainer.threads_per_rank=1",
)  # fmt: skip


def faults() -> Faults:
    folder = str(find("assets/tiny_lm"))
    model = load_language_model(folder, dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()  # until the run sends its own
    return Faults(InferenceServer(model, load_chat_tokenizer(folder)).app())


def at(url: str) -> str:
    return f"actor_rollout_ref.rollout.server.urls=['{url}']"


def test_a_server_acts_with_the_weights_of_the_step_before(tmp_path: Path) -> None:
    with serving(faults()) as url:
        events = list(events_of(tmp_path / "run", [*JOB, at(url), "trainer.total_steps=2"]))
    steps = [event for event in events if isinstance(event, StepDone)]
    assert [step.metrics["policy/version"] for step in steps] == [1.0, 2.0]
    assert all(0 < step.metrics["rollout/log_prob_gap"] < 1e-4 for step in steps)
    assert [
        {
            line["policy_version"]
            for line in read_rollouts(tmp_path / "run/rollouts", kind="train", step=step)
        }
        for step in (1, 2)
    ] == [{0}, {1}]


@pytest.mark.parametrize("path", ["/v1/completions", "/pause"])
def test_a_server_that_fails_ends_the_run_with_a_checkpoint_of_what_is_trained(
    tmp_path: Path, path: str
) -> None:
    server = faults()
    found = []
    with serving(server) as url:
        words = [*JOB, at(url), "trainer.total_steps=3"]
        with pytest.raises(
            TooManyFailures, match=r"HTTP 500 \(out of memory\).* 16 of 16 episodes"
        ):
            for event in events_of(tmp_path / "run", words):
                if isinstance(event, StepDone):
                    found.append(event.step)
                    broken = JSONResponse({"error": {"message": "out of memory"}}, status_code=500)
                    server.instead = {path: broken}
        [checkpoint] = (tmp_path / "run/checkpoints").glob("step_*")
        server.instead = {}
        resumed = [*words, f"trainer.resume={checkpoint}"]
        found += [
            event.step
            for event in events_of(tmp_path / "again", resumed)
            if isinstance(event, StepDone)
        ]
    assert found == [1, 2, 3]
