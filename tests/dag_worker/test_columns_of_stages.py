"""Stages declare what they read and add: a run whose stages are shown their declared columns alone
equals one that shows them all.

Each node gets a batch without the columns that other stages declare and its own does not; these
come back after it, row by row. Columns that no stage declares belong to the domain (observations,
prompts) and are listed here, so that a new one is noticed.
"""

import dataclasses
import hashlib
from pathlib import Path

import pytest
import torch
from one_process import TIMED
from tensordict import TensorDict

from siirl.dag_worker.dagworker import DAGWorker
from siirl.dag_worker.events import StepDone
from siirl.data_coordinator.protocol.batch import shallow_copy
from siirl.execution.dag import Node, TaskGraph
from siirl.params.parser import parse_config
from siirl.preflight.configured_graph import load_graph

SMALL = (
    "cluster=local", "data.train_batch_size=4", "trainer.val_episodes=0", "trainer.record_episodes=0", "trainer.max_minutes=null",
    "trainer.save_freq=-1", "trainer.total_steps=2", "trainer.deterministic=true", "trainer.threads_per_rank=1",
)  # fmt: skip
ROBOT = (
    *SMALL, "env=gymnasium", "env.id=CartPole-v1", "env.num_servers=1", "env.envs_per_server=6", "env.max_episode_steps=40",
    "actor_rollout_ref.rollout.n=3", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.optim.lr=1e-2",
    "actor_rollout_ref.model.options={chunk_length: 4, width: 16}",
)  # fmt: skip
TEXT = (
    *SMALL, "env=math", "data.max_response_length=6", "env.envs_per_server=16", "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.optim.warmup_steps=0",
)  # fmt: skip
# Short episodes: groups with equal returns, so that DAPO's filter refills.
REFILLED = (
    "env.max_episode_steps=11",
    "actor_rollout_ref.model.options={chunk_length: 1, width: 16}",
)
KL_IN_REWARD = ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.5")
KL_LOSS = ("actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.kl_loss_coef=0.5")
JOBS = {
    "grpo of robots": (*ROBOT, "pipeline=grpo", *KL_LOSS),
    "dapo of robots": (*ROBOT, "pipeline=dapo", *REFILLED),
    "embodied_srpo": (*ROBOT, "pipeline=embodied_srpo", "reward=return"),
    "ppo of robots": (*ROBOT, "pipeline=ppo", *KL_IN_REWARD),
    "remax of robots": (*ROBOT, "pipeline=remax"),
    "grpo of text": (*TEXT, "pipeline=grpo", *KL_LOSS),
    "dapo of text": (*TEXT, "pipeline=dapo"),
    "ppo of text": (*TEXT, "pipeline=ppo", *KL_IN_REWARD),
    "remax of text": (*TEXT, "pipeline=remax"),
}
OF_THE_DOMAIN = {
    *("pixel_values", "proprioception", "instruction_ids"),  # what the tiny policy sees
    *("prompts", "input_ids", "attention_mask", "position_ids"),  # what a language model sees
}
ROW = "row_of_test"


class NarrowGraph(TaskGraph):
    """Shows each node only the columns that its function declares, and those that no function
    declares.
    """

    def __init__(self, graph: TaskGraph) -> None:
        super().__init__(graph.graph_id)
        for node in graph.get_nodes():
            settings = {
                field.name: getattr(node, field.name)
                for field in dataclasses.fields(Node)
                if field.init
            }
            self.add_node(NarrowNode(**settings, graph=self))
        self.declared = frozenset().union(
            *(
                self.seen_by(name) | (node.provided_columns or set())
                for name, node in self.nodes.items()
            )
        )
        self.undeclared: set[str] = set()
        self.lacking: dict[str, set[str]] = {}

    def seen_by(self, node_id: str) -> frozenset[str]:
        return self.nodes[node_id].required_columns | self.nodes[node_id].optional_columns


@dataclasses.dataclass(kw_only=True)
class NarrowNode(Node):
    """A node of `NarrowGraph`."""

    graph: NarrowGraph

    def run(self, *, batch, **available):
        if self.skip_reason is not None:
            return super().run(batch=batch, **available)
        graph = self.graph
        numbered = shallow_copy(batch)
        numbered[ROW] = torch.arange(len(batch))
        seen = graph.seen_by(self.node_id)
        hidden = {name for name in batch.keys() if name in graph.declared - seen}
        graph.undeclared |= set(batch.keys()) - graph.declared - {ROW}
        output = super().run(batch=numbered.exclude(*hidden), **available)
        graph.lacking[self.node_id] = self.provided_columns - set(output.batch.keys())
        output.batch = with_hidden(output.batch, numbered.select(*hidden))
        return output


def with_hidden(after: TensorDict, hidden: TensorDict) -> TensorDict:
    """`after` with the columns of its rows that `hidden` has and it lacks; rows are found by their
    number before.
    """
    rows = after[ROW]
    for name in hidden.keys() - after.keys():
        after[name] = hidden[rows][name]
    return after


def train(
    folder: Path, words: tuple[str, ...], *, narrow: bool
) -> tuple[list[dict], str, TaskGraph]:
    """Untimed metrics of the steps, the digest of the final weights, and the graph."""
    folder.mkdir()
    config = parse_config(words)
    graph = load_graph(config)
    graph = NarrowGraph(graph) if narrow else graph
    worker = DAGWorker(
        config=config,
        graph=graph,
        rank=0,
        world_size=1,
        init_method="",
        backend="gloo",
        run_folder=folder,
    )
    steps, digest = [], ""
    for event in worker.run():
        if isinstance(event, StepDone):
            steps.append(
                {
                    name: value
                    for name, value in event.metrics.items()
                    if not name.startswith((*TIMED, "data/bytes"))
                }
            )
            weights = worker.components.context.actor.engine.module.state_dict()
            digest = hashlib.sha256(
                b"".join(tensor.numpy().tobytes() for tensor in weights.values())
            ).hexdigest()
    return steps, digest, graph


@pytest.mark.parametrize("job", JOBS)
def test_a_stage_reads_what_it_declares_and_nothing_else(tmp_path, job):
    whole, narrow = (
        train(tmp_path / str(narrow), JOBS[job], narrow=narrow) for narrow in (False, True)
    )
    assert narrow[:2] == whole[:2]
    graph = narrow[2]
    assert graph.undeclared <= OF_THE_DOMAIN
    assert {name: columns for name, columns in graph.lacking.items() if columns} == {}
    assert set(graph.lacking) == {
        node.node_id for node in graph.get_nodes() if node.skip_reason is None
    }
