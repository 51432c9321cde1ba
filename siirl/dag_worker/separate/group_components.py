"""Components of a training rank without rollouts, and of a rollout rank without training.

A training rank has no simulators and no rollout engine; a rollout rank has no optimiser, no critic
and no reference. `RankBuilder` (`siirl.dag_worker.components`) builds each object. Left out:
colocated ranks (`siirl.dag_worker.assembly`).
"""

import dataclasses
from pathlib import Path
from typing import Any, NoReturn, cast

import torch

from siirl.dag_worker import stages
from siirl.dag_worker.assembly import builder_of
from siirl.dag_worker.checkpoint import CheckpointManager
from siirl.dag_worker.components import (
    Learner,
    WorkerComponents,
    compute_dtype,
    make_kl_controller,
    make_pool,
)
from siirl.dag_worker.context import StageContext
from siirl.dag_worker.rollout_collector import RolloutCollector
from siirl.dag_worker.separate.line import Line
from siirl.dag_worker.separate.published_weights import WeightPublisher
from siirl.dag_worker.separate.rollout_ranks import Recording, RolloutParts, RolloutRanks
from siirl.dag_worker.separate.training_side import (
    DistantCollector,
    DistantLoader,
    DistantRollout,
    DistantValidator,
    NoEpisodeLog,
    TrainingSide,
)
from siirl.data_coordinator.redistribution import Redistribution, StayOnRank
from siirl.engine.training.collectives import Collectives, OneProcess
from siirl.engine.training.weight_sync import acting_copy
from siirl.errors import ConfigError
from siirl.execution.dag import TaskGraph
from siirl.params import SiiRLArguments, sizes
from siirl.params.dag_args import DagArguments
from siirl.params.env_spec import describe_env
from siirl.params.model_args import ModelArguments
from siirl.params.training_args import TrainingArguments


class UnavailableComponent:
    """Placeholder for a component of the other resource group; any access raises an error.

    Args:
        name: Attribute of the context.
        group: The group that has it.
    """

    def __init__(self, name: str, group: str) -> None:
        self._name, self._group = name, group

    def __getattr__(self, attribute: str) -> NoReturn:
        raise ConfigError(
            f"A node reads context.{self._name}.{attribute}, which only ranks of the group "
            f"{self._group!r} have: give the node group={self._group!r}."
        )


def build_training(
    *,
    config: SiiRLArguments,
    run_folder: Path,
    ranks: Collectives,
    redistribution: Redistribution,
    device: torch.device,
    first_step: int,
    with_critic: bool = False,
    line: Line,
) -> WorkerComponents:
    """Components of a training rank; arguments are those of `build_components`, and `line`."""
    spec = describe_env(config)
    make = builder_of(config, spec, ranks=ranks, device=device)
    learner = make.learner(make.load(), with_critic=with_critic)
    stream = make.loader(OneProcess())
    side = _training_side(config, learner, ranks=ranks, line=line)
    publisher = side.publisher
    publisher.step = max(first_step - 1, 0)
    checkpoints = CheckpointManager(
        folder=run_folder / "checkpoints",
        engines=learner.engines(),
        ranks=ranks,
        export=lambda checkpoint: make.describe(learner.module, checkpoint / "actor"),
        more_state=side.state,
    )
    context = StageContext(
        config=config,
        run_folder=run_folder,
        ranks=ranks,
        collector=cast(RolloutCollector, DistantCollector(side=side, spec=spec)),
        actor=learner.actor,
        reference=learner.reference,
        reward=make.reward(),
        weights=cast(Any, publisher),
        redistribution=redistribution,
        kl_controller=make_kl_controller(config.algorithm.kl_ctrl),
        critic=learner.critic,
        exchange=side,
        loader=cast(Any, DistantLoader(stream)),
    )
    publisher.after_first = lambda: side.open(
        step=publisher.step,
        position=stream.position,
        resumed={} if checkpoints.loaded is None else checkpoints.loaded.state,
    )
    return WorkerComponents(
        context,
        cast(Any, DistantRollout(side)),
        cast(Any, DistantValidator(side=side, kinds=make.kinds)),
        NoEpisodeLog(),
        checkpoints,
    )


def _training_side(
    config: SiiRLArguments, learner: Learner, *, ranks: Collectives, line: Line
) -> TrainingSide:
    publisher = WeightPublisher(
        trained=learner.actor.engine,
        ranks=ranks,
        line=line,
        acting_dtype=acting_dtype(config.actor_rollout_ref.model, config.trainer, config.dag),
    )
    return TrainingSide(
        line=line,
        ranks=ranks,
        publisher=publisher,
        max_failed_share=config.env.max_failed_share,
        max_staleness=config.trainer.max_staleness,
    )


def acting_dtype(
    model: ModelArguments, trainer: TrainingArguments, dag: DagArguments
) -> torch.dtype | None:
    """Type of the acting weights, which compute as the training ranks do; None: as loaded.

    One rank trains under autocast, and several with weights that FSDP2 casts.
    """
    casts = sizes.training_ranks(trainer, dag) > 1 or trainer.force_process_group
    return compute_dtype(model) if casts else None


def build_rollout(
    *,
    config: SiiRLArguments,
    graph: TaskGraph,
    run_folder: Path,
    device: torch.device,
    first_step: int,
    line: Line,
    rank: int,
    buffer: Any,
) -> RolloutParts:
    """Components of a rollout rank.

    Args:
        config: The checked job.
        graph: Graph of the group.
        run_folder: Output folder of the run.
        device: Device of this rank.
        first_step: First step of the run.
        line: Connection to the exchange.
        rank: Number of this rank in its group.
        buffer: Called by PUT_TO_BUFFER nodes.
    """
    ranks: Any = RolloutRanks(line, rank=rank, size=sizes.rollout_ranks(config.trainer, config.dag))
    pool = make_pool(config.env, cluster=config.cluster.mode, ranks=ranks)
    make = builder_of(config, pool.spec, ranks=OneProcess(), device=device)
    acting = acting_copy(
        make.load(), acting_dtype(config.actor_rollout_ref.model, config.trainer, config.dag)
    )
    rollouts = make.rollouts(
        acting, pool=pool, ranks=ranks, folder=run_folder, first_step=first_step
    )
    recording = Recording(rollouts.recorder)
    rollouts = dataclasses.replace(rollouts, recorder=recording)
    rollout: Any = rollouts.rollout
    rollout.workflow.marks_versions = config.trainer.max_staleness > 0
    loader = make.loader(OneProcess())
    scores = any(node.executable is stages.greedy_baseline for node in graph.get_nodes())
    reward = make.reward() if scores or make.evaluates_by_reward else None
    context = StageContext(
        config=config,
        run_folder=run_folder,
        ranks=OneProcess(),
        collector=make.collector(rollouts, ranks=ranks),
        actor=cast(Any, UnavailableComponent("actor", "train")),
        reference=None,
        reward=cast(Any, UnavailableComponent("reward", "train") if reward is None else reward),
        weights=cast(Any, UnavailableComponent("weights", "train")),
        redistribution=StayOnRank(),
        kl_controller=cast(Any, UnavailableComponent("kl_controller", "train")),
        exchange=buffer,
        loader=loader,
    )
    validator = make.validator(rollouts, ranks=ranks, loader=loader, reward=reward)
    closes = [rollouts.episode_log, loader, *([] if reward is None else [reward])]
    return RolloutParts(context, rollout, validator, recording, acting, closes)
