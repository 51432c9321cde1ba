"""What a stage may use: the engines of this rank and the other ranks. One object, made once by the DAGWorker."""

from dataclasses import dataclass
from pathlib import Path

from siirl.algos.kl import FixedKLController
from siirl.dag_worker.domain import Domain
from siirl.data_coordinator.redistribution import Redistribution
from siirl.engine.actor.actor import Actor
from siirl.engine.collectives import Collectives
from siirl.engine.reward_manager import RewardManager
from siirl.engine.weight_sync import WeightSync
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
    reference: Actor | None
    """The policy that KL is measured against; None where no KL is used."""
    reward: RewardManager
    weights: WeightSync
    """Gives new weights to what acts."""
    redistribution: Redistribution
    """Moves rows between ranks."""
    kl_controller: FixedKLController
    """Coefficient of the KL in the reward."""
    step: int = 0

    def require_reference(self) -> Actor:
        """The reference policy; ConfigError where the run has none."""
        if self.reference is None:
            raise ConfigError(
                "reference_log_prob runs, but no KL has a weight, so no reference was loaded: set actor_rollout_ref.actor.use_kl_loss=true "
                "or algorithm.use_kl_in_reward=true."
            )
        return self.reference
