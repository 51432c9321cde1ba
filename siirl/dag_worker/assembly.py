"""Combines the objects of a rank: one that rolls out and trains, or one that evaluates.

`RankBuilder` (`siirl.dag_worker.components`) builds each object. Left out: ranks of separate groups
(`siirl.dag_worker.separate.group_components`).
"""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, cast

import torch

from envs.base import EnvSpec
from siirl.dag_worker.agent_groups import AgentPlace
from siirl.dag_worker.checkpoint import CheckpointManager
from siirl.dag_worker.components import (
    Closeable,
    RankBuilder,
    Rollouts,
    TrainedModel,
    Updates,
    WorkerComponents,
    make_kl_controller,
    make_pool,
)
from siirl.dag_worker.context import StageContext
from siirl.dag_worker.embodied_components import EmbodiedBuilder
from siirl.dag_worker.text_components import TextBuilder
from siirl.dag_worker.validator import Validator
from siirl.data_coordinator.redistribution import Redistribution
from siirl.engine.rollout.generation import TextEngine
from siirl.engine.rollout.rollout import Rollout
from siirl.engine.training.collectives import Collectives
from siirl.engine.training.weight_sync import WeightSync
from siirl.env_server.pool import EnvPool
from siirl.errors import InvariantError
from siirl.params import SiiRLArguments
from siirl.params.domains import is_text


def builder_of(
    config: SiiRLArguments, spec: EnvSpec, *, ranks: Collectives, device: torch.device
) -> RankBuilder:
    """The builder of a job's domain."""
    builder = TextBuilder if is_text(spec) else EmbodiedBuilder
    return builder(config, spec, ranks=ranks, device=device)


def build_components(
    *,
    config: SiiRLArguments,
    place: AgentPlace,
    ranks: Collectives,
    redistribution: Redistribution,
    device: torch.device,
    first_step: int,
    with_critic: bool = False,
    shares: WorkerComponents | None = None,
    updates: Updates,
) -> WorkerComponents:
    """Build all components of a rank that rolls out and trains.

    Args:
        config: The job, or an agent group's part of it.
        place: The agent group's folders in the run.
        ranks: The processes that train together.
        redistribution: Moves rows between them.
        device: Device of this rank.
        first_step: First step to run.
        with_critic: Whether the graph has a critic node.
        shares: Components of the agent group whose weights these act with and train.
        updates: Steps of a training step on these weights, for the learning rate.

    Raises:
        InvariantError: VLA policies that share weights, which `siirl.preflight.agent_checks`
            refuses.
    """
    pool = make_pool(config.env, cluster=config.cluster.mode, ranks=ranks)
    make = builder_of(config, pool.spec, ranks=ranks, device=device)
    if shares is not None and not isinstance(make, TextBuilder):
        raise InvariantError("Agent groups of robots cannot share weights.")
    of_rollouts = _RolloutArguments(
        pool=pool, ranks=ranks, folder=place.folder, first_step=first_step
    )
    if shares is None:
        rollouts, trained_model, weights = _with_own_weights(
            make, of_rollouts, with_critic=with_critic, updates=updates
        )
    else:
        assert isinstance(make, TextBuilder)
        rollouts, trained_model, weights = _with_shared_weights(make, of_rollouts, owner=shares)
    loader, reward = make.loader(ranks), make.reward()
    context = StageContext(
        config=config,
        run_folder=place.folder,
        ranks=ranks,
        collector=make.collector(rollouts, ranks=ranks),
        actor=trained_model.actor,
        reference=trained_model.reference,
        reward=reward,
        weights=weights,
        redistribution=redistribution,
        kl_controller=make_kl_controller(config.algorithm.kl_ctrl),
        critic=trained_model.critic,
        loader=loader,
    )
    manager = CheckpointManager(
        folder=place.checkpoints,
        engines=trained_model.engines(place.ending) if shares is None else {},
        ranks=ranks,
        export=lambda folder: make.describe(trained_model.module, folder / f"actor{place.ending}"),
    )
    validator = make.validator(rollouts, ranks=ranks, loader=loader, reward=reward)
    return WorkerComponents(context, rollouts.rollout, validator, rollouts.episode_log, manager)


class _RolloutArguments(TypedDict):
    """Arguments that builders of rollouts have in common."""

    pool: EnvPool
    ranks: Collectives
    folder: Path
    first_step: int


def _with_own_weights(
    make: RankBuilder, arguments: _RolloutArguments, *, with_critic: bool, updates: Updates
) -> tuple[Rollouts, TrainedModel, WeightSync]:
    module = make.load()
    rollouts = make.rollouts(make.acting(module), **arguments)
    trained_model = make.trained_model(module, with_critic=with_critic, updates=updates)
    weights = WeightSync(
        trained=trained_model.actor.engine,
        acting=rollouts.acting,
        engine=rollouts.rollout.engine,
        ranks=arguments["ranks"],
    )
    return rollouts, trained_model, weights


def _with_shared_weights(
    make: TextBuilder, arguments: _RolloutArguments, *, owner: WorkerComponents
) -> tuple[Rollouts, TrainedModel, WeightSync]:
    trained_model = with_weights_of(owner, make)
    engine = cast(TextEngine, owner.rollout.engine)
    rollouts = make.rollouts_of(engine, trained_model.module, **arguments)
    return rollouts, trained_model, owner.context.weights


def with_weights_of(owner: WorkerComponents, make: RankBuilder) -> TrainedModel:
    """Trains the weights of `owner` with a separate actor."""
    context = owner.context
    engine = context.actor.engine
    return TrainedModel(engine.module, make.actor(engine), context.critic, context.reference)


@dataclass
class Evaluation:
    """Components of an evaluation; nothing is trained."""

    rollout: Rollout
    validator: Validator
    episode_log: Closeable
    reward: Closeable | None = None
    """Scores episodes that the environment leaves ungraded."""

    def close(self) -> None:
        """Close environments, files and reward functions; safe to call twice."""
        with ExitStack() as stack:  # closes the others if one raises
            for part in (self.rollout, self.episode_log, self.reward):
                if part is not None:
                    stack.callback(part.close)


def build_evaluation(
    *, config: SiiRLArguments, run_folder: Path, ranks: Collectives, device: torch.device
) -> Evaluation:
    """Build the components that evaluate the policy of a folder on `device`.

    The job's reward is built only if the environment may leave rows ungraded.
    """
    pool = make_pool(config.env, cluster=config.cluster.mode, ranks=ranks)
    make = builder_of(config, pool.spec, ranks=ranks, device=device)
    rollouts = make.rollouts(
        make.evaluated(), pool=pool, ranks=ranks, folder=run_folder, trains=False
    )
    reward = make.reward() if make.evaluates_by_reward else None
    validator = make.validator(rollouts, ranks=ranks, loader=make.loader(ranks), reward=reward)
    return Evaluation(rollouts.rollout, validator, rollouts.episode_log, reward=reward)
