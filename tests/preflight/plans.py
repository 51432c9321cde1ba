"""Plans of a small job."""

from collections.abc import Sequence

from envs.base import EnvSpec
from siirl.execution.dag import NodeRole, NodeType, Pipeline, TaskGraph
from siirl.params.parser import parse_config
from siirl.preflight.make_plan import make_plan
from siirl.preflight.plan import Machine, Plan, ResumePoint
from tests.preflight.camera_spec import SPEC


def one_line(text: str) -> str:
    """A plan without its line breaks and indents."""
    return " ".join(text.split())


JOB = [
    "actor_rollout_ref.model.path=null",
    "data.train_batch_size=12",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=3",
    "actor_rollout_ref.actor.ppo_epochs=1",
    "actor_rollout_ref.actor.micro_batch_size=10",
    "env.num_servers=2",
    "env.envs_per_server=4",
    "trainer.total_steps=20",
    "trainer.max_minutes=null",
    "trainer.test_freq=5",
    "trainer.val_before_train=true",
    "trainer.val_episodes=30",
]


NO_VIDEOS = ["trainer.record_episodes=0", "trainer.record_val_episodes=0"]


def graph() -> TaskGraph:
    """rollout -> old log-probs -> reference -> update, whose functions only pass the batch on."""
    pipeline = Pipeline("own")
    pipeline.add_node(
        "rollout", None, node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT
    )
    pipeline.add_node(
        "old",
        None,
        ["rollout"],
        node_type=NodeType.MODEL_TRAIN,
        node_role=NodeRole.ACTOR,
        only_forward_compute=True,
    )
    pipeline.add_node(
        "reference", None, ["old"], node_type=NodeType.MODEL_TRAIN, node_role=NodeRole.REFERENCE
    )
    pipeline.add_node(
        "update", None, ["reference"], node_type=NodeType.MODEL_TRAIN, node_role=NodeRole.ACTOR
    )
    return pipeline.build()


MACHINE = Machine(free_memory_bytes=64e9, cores=2)


def plan_of(
    overrides: Sequence[str] = (),
    *,
    job_graph: TaskGraph | None = None,
    spec: EnvSpec = SPEC,
    begins: ResumePoint | None = None,
) -> Plan:
    return make_plan(
        parse_config([*JOB, *overrides]),
        job_graph or graph(),
        spec,
        machine=MACHINE,
        loss="vanilla, token-mean",
        begins=begins,
    )
