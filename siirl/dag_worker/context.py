"""What a stage may use: the engines of this rank and the other ranks. One object, made once by the
DAGWorker.
"""

from dataclasses import dataclass
from pathlib import Path

from siirl.algos.kl import FixedKLController
from siirl.dag_worker.domain import Domain
from siirl.data_coordinator.redistribution import Redistribution
from siirl.data_coordinator.task_stream import Loader
from siirl.engine.actor.actor import Actor
from siirl.engine.actor.reference import Reference
from siirl.engine.critic.critic import Critic
from siirl.engine.reward_manager import RewardManager
from siirl.engine.training.collectives import Collectives
from siirl.engine.training.weight_sync import WeightSync
from siirl.errors import ConfigError
from siirl.params import SiiRLArguments


@dataclass
class StageContext:
    """Handed to every stage as `context`."""

    config: SiiRLArguments
    run_folder: Path
    ranks: Collectives
    """The processes that train together; every rank calls its methods in the same order."""
    domain: Domain
    """Turns prompts into trajectories."""
    actor: Actor
    reference: Reference | None
    """The policy that KL is measured against; None where no KL is used."""
    reward: RewardManager
    weights: WeightSync
    """Gives new weights to what acts."""
    redistribution: Redistribution
    """Moves rows between ranks."""
    kl_controller: FixedKLController
    """Coefficient of the KL in the reward."""
    critic: Critic | None = None
    """The value model; None where no node of the graph has one."""
    loader: Loader | None = None
    """The stream of prompts, for a graph whose first node is `load_prompts`."""
    step: int = 0
    round: int = 0
    """How often a node has asked for further prompts in this step."""
    drawn_prompts: int = 0
    """Prompts of this step so far, over all ranks."""

    def require_critic(self) -> Critic:
        """The critic; ConfigError where the run has none."""
        if self.critic is None:
            raise ConfigError(
                "A stage of the critic runs, but no critic was made, because no node of the graph has the role CRITIC: give its node "
                "node_role=NodeRole.CRITIC, as pipelines/ppo.py does."
            )
        return self.critic

    def require_loader(self) -> Loader:
        """The stream of prompts; ConfigError where the run was built without one."""
        if self.loader is None:
            raise ConfigError(
                "load_prompts runs, and this run was built without a loader of prompts."
            )
        return self.loader

    def require_reference(self) -> Reference:
        """The reference policy; ConfigError where the run has none."""
        if self.reference is None:
            raise ConfigError(
                "reference_log_prob runs, but no KL has a weight, so no reference was loaded: set actor_rollout_ref.actor.use_kl_loss=true "
                "or algorithm.use_kl_in_reward=true."
            )
        return self.reference
