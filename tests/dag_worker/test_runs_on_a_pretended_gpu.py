"""Whole runs whose rank has a pretended GPU (`pretended_gpu`): rollouts, rewards, updates, weight
syncs, evaluations and checkpoints make no tensor on a wrong device.
"""

from pathlib import Path

import pytest
from one_process import run
from pretended_gpu import GPU, OnGpu, pretended_gpu

from envs.registry import env_spec
from siirl.dag_worker import dagworker, stages
from siirl.dag_worker.accounting import work_of_update
from siirl.dag_worker.embodied_components import EmbodiedBuilder
from siirl.dag_worker.text_components import TextBuilder
from siirl.engine.training.collectives import OneProcess
from siirl.models.weights import move_to
from siirl.params import sizes
from siirl.params.env_spec import describe_env
from siirl.params.parser import parse_config

SHORT = (
    "cluster=local", "env.num_servers=1", "data.train_batch_size=2", "actor_rollout_ref.rollout.n=3",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2", "trainer.total_steps=1", "trainer.max_minutes=null",
    "trainer.val_episodes=1", "trainer.save_freq=1",
)  # fmt: skip
ROBOT = (*SHORT, "env.envs_per_server=6", "trainer.record_episodes=0")
RUNS = {
    "values and numbers": (
        *ROBOT, "pipeline=ppo", "env=gymnasium", "env.id=CartPole-v1", "env.max_episode_steps=40", "trainer.deterministic=true",
        "actor_rollout_ref.model.options={chunk_length: 4, width: 16}",
    ),
    "videos": (*ROBOT, "pipeline=embodied_srpo", "env=metaworld", "env.max_episode_steps=16"),
    "text with a reference": (*SHORT, "pipeline=grpo", "env=math", "actor_rollout_ref.actor.use_kl_loss=true"),
}  # fmt: skip


UPDATES = {"values and numbers": 4.0, "videos": 0.0, "text with a reference": 1.0}
"""Of the step; episodes of sixteen actions fail alike, so their videos teach nothing."""


@pytest.mark.parametrize("kind", RUNS)
def test_every_tensor_of_a_run_is_on_its_device(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(dagworker, "prepare_process", lambda trainer: GPU)
    with pretended_gpu():
        steps = run(tmp_path / "run", RUNS[kind])
    assert [step.metrics.get("actor/updates") for step in steps] == [None, UPDATES[kind]]
    assert ["memory/gpu_loading_peak_bytes" in step.metrics for step in steps] == [True, False]
    assert (tmp_path / "run" / "checkpoints" / "latest").exists()


def test_the_rates_of_a_rank_of_two_gpus_are_per_gpu(tmp_path, monkeypatch):
    gpus_of_update = []

    def work(engine, *, gpus):
        gpus_of_update.append(gpus)
        return work_of_update(engine, gpus=gpus)

    monkeypatch.setattr(sizes, "gpus_of_training_rank", lambda rollout, dag: 2)
    monkeypatch.setattr(sizes, "gpus_of_job", lambda trainer, dag, rollout: 2)
    monkeypatch.setattr(stages, "work_of_update", work)
    words = (*SHORT, "pipeline=grpo", "env=math")
    found = run(tmp_path / "run", words)[-1].metrics
    steps = found["perf/env_steps_per_s"] * found["time/step_s"]
    assert steps * 2 == pytest.approx(found["env/steps"])
    assert gpus_of_update == [2]


def test_an_evaluated_policy_is_on_the_device_of_its_rank(tmp_path: Path):
    words = ("pipeline=grpo", "env=gymnasium", "env.id=CartPole-v1")
    spec = env_spec("gymnasium", id="CartPole-v1")
    with pretended_gpu() as gpu:
        make = EmbodiedBuilder(parse_config(words), spec, ranks=OneProcess(), device=gpu)
        weights = list(make.evaluated().parameters())
    assert weights
    assert all(isinstance(weight.data, OnGpu) for weight in weights)


def test_tied_weights_of_a_planned_reference_stay_tied():
    """`module.to` replaces parameters here; the second name of a tied weight is in no file."""
    config = parse_config(("pipeline=grpo", "env=math"))
    with pretended_gpu() as gpu:
        make = TextBuilder(config, describe_env(config), ranks=OneProcess(), device=gpu)
        planned = make.initial(None)
        assert all(weight.is_meta for weight in planned.parameters())
        move_to(planned, gpu)
        causal_lm = planned.causal_lm
        assert causal_lm.get_output_embeddings().weight is causal_lm.get_input_embeddings().weight
