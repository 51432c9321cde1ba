"""The example of a user's policy runs as its docstring says."""

from siirl.dag_worker.dagworker import DAGWorker
from siirl.dag_worker.events import StepDone
from siirl.params.parser import parse_config
from siirl.preflight.prepare import load_graph

COMMAND = (
    "pipeline=grpo", "env=gymnasium", "env.id=CartPole-v1", "cluster=local",
    "actor_rollout_ref.model.policy=docs.examples.own_policy:make_policy", "actor_rollout_ref.model.options={width: 32}",
    "data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.ppo_epochs=1",
    "actor_rollout_ref.rollout.n=4",
    "trainer.total_steps=2", "trainer.max_minutes=null", "trainer.val_episodes=0", "trainer.record_episodes=0",
)  # fmt: skip


def test_a_policy_of_ones_own_is_trained(tmp_path):
    config = parse_config(COMMAND)
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
