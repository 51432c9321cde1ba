"""The examples of a user's policy, flow and distribution run as their docstrings say."""

import pytest
import torch
from own_distribution import Laplace

from siirl.dag_worker.dagworker import DAGWorker
from siirl.dag_worker.events import StepDone
from siirl.params.parser import parse_config
from siirl.preflight.prepare import load_graph

COMMAND = (
    "pipeline=grpo", "env=gymnasium", "cluster=local", "data.train_batch_size=2", "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.ppo_epochs=1",
    "trainer.total_steps=2", "trainer.max_minutes=null", "trainer.val_episodes=0", "trainer.record_episodes=0",
)  # fmt: skip
PENDULUM = ("env.id=Pendulum-v1", "env.max_episode_steps=8")
POLICY = "actor_rollout_ref.model.policy"
OPTIONS = "actor_rollout_ref.model.options"


@pytest.mark.parametrize(
    "words",
    [
        ("env.id=CartPole-v1", f"{POLICY}=own_policy:make_policy", f"{OPTIONS}={{width: 32}}"),
        (*PENDULUM, f"{POLICY}=own_flow_policy:make_policy", f"{OPTIONS}={{steps: 4}}"),
        (*PENDULUM, f"{POLICY}=own_distribution:make_policy"),
    ],
    ids=["tokens", "flow", "distribution"],
)
def test_a_users_policy_is_trained(tmp_path, words):
    config = parse_config([*COMMAND, *words])
    worker = DAGWorker(
        config=config,
        graph=load_graph(config),
        rank=0,
        world_size=1,
        init_method="",
        backend="gloo",
        run_folder=tmp_path,
    )
    steps = [event for event in worker.run() if isinstance(event, StepDone)]
    assert [step.metrics["actor/updates"] for step in steps] == [1.0, 1.0]
    assert all(step.metrics["rollout/log_prob_gap_mean"] < 1e-4 for step in steps)


def test_the_examples_distribution_is_torchs_laplace():
    mean, log_scale = torch.tensor([[0.2, -1.0]]), torch.tensor([-0.5, 0.3])
    theirs, ours = torch.distributions.Laplace(mean, log_scale.exp()), Laplace(mean, log_scale)
    numbers = torch.tensor([[0.1, 0.9]])
    torch.testing.assert_close(ours.sample(numbers), theirs.icdf(numbers))
    torch.testing.assert_close(ours.log_prob(numbers), theirs.log_prob(numbers))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
