"""StageContext: the objects of this rank that stages use."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensordict import TensorDict

from siirl.algos.kl import FixedKLController
from siirl.dag_worker.colocated_buffer import ColocatedBuffer
from siirl.dag_worker.rollout_collector import RolloutCollector
from siirl.data_coordinator.redistribution import Redistribution
from siirl.data_coordinator.sample import Sample, Samples2Dict
from siirl.data_coordinator.task_stream import Loader
from siirl.engine.actor.actor import Actor
from siirl.engine.actor.reference import Reference
from siirl.engine.critic.critic import Critic
from siirl.engine.reward_manager import RewardManager
from siirl.engine.training.collectives import Collectives
from siirl.engine.training.weight_sync import WeightSync
from siirl.errors import ConfigError
from siirl.execution.dag import Node
from siirl.params import SiiRLArguments


@dataclass
class StageContext:
    """The `context` argument of every stage; created once by the DAGWorker."""

    config: SiiRLArguments
    run_folder: Path
    ranks: Collectives
    """Collectives of the training processes; every rank calls them in the same order."""
    collector: RolloutCollector
    """Turns prompts into trajectories."""
    actor: Actor
    reference: Reference | None
    """Reference policy of the KL; None if no KL is used."""
    reward: RewardManager
    weights: WeightSync
    """Copies new weights to the acting model."""
    redistribution: Redistribution
    """Moves rows between ranks."""
    kl_controller: FixedKLController
    """Coefficient of the KL in the reward."""
    critic: Critic | None = None
    """Value model; None if no node of the graph has the role CRITIC."""
    buffer: ColocatedBuffer | None = None
    """Passes rows from PUT_TO_BUFFER to GET_FROM_BUFFER nodes; the worker sets it."""
    exchange: Any = None
    """Passes rows between resource groups (siirl.dag_worker.separate); None if colocated."""
    loader: Loader | None = None
    """Prompt stream; None only in a context built without one."""
    step: int = 0
    round: int = 0
    """Number of refills that a node has requested in this step."""
    drawn_prompts: int = 0
    """Prompts drawn in this step so far, over all ranks."""
    refills: Counter[str] = field(default_factory=Counter)
    """Refills of this step, by the id of the node that requested them."""

    def count_refill(self, node: Node) -> None:
        """Count a request for more prompts; ConfigError if the node requested too many."""
        self.refills[node.node_id] += 1
        most = self.config.algorithm.filter.max_refills
        if self.refills[node.node_id] > most:
            raise ConfigError(
                f"Node {node.node_id!r} still requests more prompts after {most} refills in step "
                f"{self.step}, and algorithm.filter.max_refills={most} permits no more: return "
                "more_prompts=0 when there are enough rows or the refills are used up, or raise "
                "the key."
            )

    def draw_prompts(self, more: int = 0) -> TensorDict:
        """This rank's prompts of the step, or of `more` additional ones for a refill."""
        if more:
            self.round += 1
            self.drawn_prompts += more
        tasks = self.require_loader().draw(more or self.config.data.train_batch_size)
        return Samples2Dict([Sample(task.columns()) for task in tasks])

    def require_critic(self) -> Critic:
        """The critic; ConfigError if the run has none."""
        if self.critic is None:
            raise ConfigError(
                "A stage of the critic runs, but no node of the graph has the role CRITIC, so no "
                "critic was built: give its node "
                "node_role=NodeRole.CRITIC, as pipelines/ppo.py does."
            )
        return self.critic

    def require_buffer(self) -> ColocatedBuffer:
        """The buffers between nodes; ConfigError if the run has none."""
        if self.buffer is None:
            raise ConfigError("The run has no buffer, which PUT_TO_BUFFER nodes need.")
        return self.buffer

    def require_exchange(self) -> Any:
        """The exchange between resource groups; ConfigError if the run has one group."""
        if self.exchange is None:
            raise ConfigError(
                "put_to_group or get_from_group runs, but all ranks form one group. siirl adds "
                "these nodes itself when it splits a graph between groups: remove them from the "
                "graph, and set dag.groups."
            )
        return self.exchange

    def require_loader(self) -> Loader:
        """The prompt stream; ConfigError if the run has none."""
        if self.loader is None:
            raise ConfigError("The run has no prompt loader, which a step needs.")
        return self.loader

    def require_reference(self) -> Reference:
        """The reference policy; ConfigError if the run has none."""
        if self.reference is None:
            raise ConfigError(
                "reference_log_prob runs, but no KL has a weight, so no reference was loaded: set "
                "actor_rollout_ref.actor.use_kl_loss=true "
                "or algorithm.use_kl_in_reward=true."
            )
        return self.reference
