"""Components of a training rank without rollouts, and of a rollout rank without training.

A training rank has no simulators and no rollout engine; a rollout rank has no optimiser, no critic
and no reference. `RankBuilder` (`siirl.dag_worker.components`) builds each object. Left out:
colocated ranks (`siirl.dag_worker.assembly`).
"""

import dataclasses
import functools
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch

from siirl.dag_worker import stages
from siirl.dag_worker.agent_groups import AgentPlace, assign_seats
from siirl.dag_worker.assembly import builder_of, with_weights_of
from siirl.dag_worker.checkpoint import CheckpointManager
from siirl.dag_worker.components import (
    Updates,
    WorkerComponents,
    compute_dtype,
    make_kl_controller,
    make_pool,
)
from siirl.dag_worker.context import StageContext
from siirl.dag_worker.rollout_collector import RolloutCollector
from siirl.dag_worker.separate.published_weights import WeightPublisher
from siirl.dag_worker.separate.rollout_ranks import Recording, RolloutParts, RolloutRanks
from siirl.dag_worker.separate.substitutes import (
    NoEpisodeLog,
    RemoteCollector,
    RemoteLoader,
    RemoteRollout,
    RemoteValidator,
)
from siirl.dag_worker.separate.training_side import SeparateRollouts, TrainingSide
from siirl.dag_worker.text_components import TextBuilder
from siirl.data_coordinator.redistribution import Redistribution, StayOnRank
from siirl.engine.rollout.generation import TextEngine
from siirl.engine.training.collectives import Collectives, OneProcess
from siirl.engine.training.weight_sync import await_weights
from siirl.errors import ConfigError
from siirl.execution.dag import TaskGraph
from siirl.models.adapters import narrow_frozen
from siirl.params import SiiRLArguments, sizes
from siirl.params.agents import config_of_group, owners
from siirl.params.domains import VLLM
from siirl.params.env_spec import describe_env

if TYPE_CHECKING:  # imports Ray
    from siirl.dag_worker.separate.ray_exchange import ExchangeLine


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
            f"A node reads context.{self._name}.{attribute}, which exists only on ranks of the "
            f"group {self._group!r}: give the node group={self._group!r}."
        )


def build_training(
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
    rollouts: SeparateRollouts,
    publishes: type[WeightPublisher],
) -> WorkerComponents:
    """Components of an agent group on a training rank.

    Arguments are those of `build_components`, plus `rollouts` and the class that publishes weights.
    """
    spec = describe_env(config)
    make = builder_of(config, spec, ranks=ranks, device=device)
    if shares is None:
        trained_model = make.trained_model(make.load(), with_critic=with_critic, updates=updates)
        publisher = publishes(
            group=place.group,
            trained=trained_model.actor.engine,
            ranks=ranks,
            line=rollouts.line,
            acting_dtype=acting_dtype(config),
            probe=functools.partial(cast(Any, make).probe, trained_model.module)
            if config.actor_rollout_ref.rollout.name == VLLM
            else None,
        )
    else:
        trained_model = with_weights_of(shares, make)
        publisher = cast(Any, shares.context.weights)
    stream = make.loader(OneProcess())
    side = TrainingSide(
        group=place.group,
        rollouts=rollouts,
        ranks=ranks,
        publisher=publisher,
        max_failed_share=config.env.max_failed_share,
        max_staleness=config.trainer.max_staleness,
    )
    publisher.step = max(first_step - 1, 0)
    manager = CheckpointManager(
        folder=place.checkpoints,
        engines=trained_model.engines(place.ending) if shares is None else {},
        ranks=ranks,
        export=lambda folder: make.describe(trained_model.module, folder / f"actor{place.ending}"),
        more_state=rollouts.state,
    )
    context = StageContext(
        config=config,
        run_folder=place.folder,
        ranks=ranks,
        collector=cast(RolloutCollector, RemoteCollector(side=side, spec=spec)),
        actor=trained_model.actor,
        reference=trained_model.reference,
        reward=make.reward(),
        weights=cast(Any, publisher),
        redistribution=redistribution,
        kl_controller=make_kl_controller(config.algorithm.kl_ctrl),
        critic=trained_model.critic,
        exchange=side,
        loader=cast(Any, RemoteLoader(stream)),
    )
    return WorkerComponents(
        context,
        cast(Any, RemoteRollout(side)),
        cast(Any, RemoteValidator(side=side, kinds=make.kinds)),
        NoEpisodeLog(),
        manager,
    )


def acting_dtype(config: SiiRLArguments) -> torch.dtype | None:
    """Dtype of the acting weights, so that they compute like the training ranks; None: as loaded.

    One rank trains under autocast, and several with weights that FSDP2 casts. vLLM has no autocast.
    """
    policy, trainer = config.actor_rollout_ref, config.trainer
    sharded = sizes.trains_sharded(trainer, config.dag)
    return compute_dtype(policy.model) if sharded or policy.rollout.name == VLLM else None


def build_rollouts(
    *,
    config: SiiRLArguments,
    graph: TaskGraph,
    run_folder: Path,
    device: torch.device,
    first_step: int,
    line: "ExchangeLine",
    rank: int,
) -> dict[int, RolloutParts]:
    """Components of a rollout rank by agent group, owners of shared weights first. Includes groups
    that draw prompts, groups that play in their environments, and groups whose weights they share.

    Args:
        config: The checked job.
        graph: Graph of the resource group.
        run_folder: Output folder of the run.
        device: Device of this rank.
        first_step: First step of the run.
        line: Connection to the exchange.
        rank: Number of this rank in its group.
    """
    owner_of = owners(config.agents)
    parts: dict[int, RolloutParts] = {}
    for group in sorted(_acting(config, graph), key=lambda number: (number in owner_of, number)):
        own = config_of_group(config, group)
        parts[group] = _rollout_parts(
            own,
            group=group,
            ranks=RolloutRanks(
                line, rank=rank, size=sizes.rollout_ranks(config.trainer, config.dag)
            ),
            scores=any(
                node.executable is stages.greedy_baseline and node.agent_group == group
                for node in graph.get_nodes()
            ),
            folder=AgentPlace.of(
                group, run_folder=run_folder, groups=config.agent_configs or [group]
            ).folder,
            device=device,
            first_step=first_step,
            shares=parts[owner_of[group]] if group in owner_of else None,
        )
    assign_seats(
        {group: found.rollout for group, found in parts.items()},
        played_by={group: config_of_group(config, group).env.played_by for group in parts},
        lockstep=config.trainer.deterministic,
    )
    return parts


def _acting(config: SiiRLArguments, graph: TaskGraph) -> Collection[int]:
    drawing = set(graph.agent_groups())
    playing = drawing.union(*(config_of_group(config, each).env.played_by for each in drawing))
    return playing | {owner for each, owner in owners(config.agents).items() if each in playing}


def _acting_module(planned: Any, config: SiiRLArguments, device: torch.device) -> Any:
    """The policy that awaits published weights; without memory if an engine holds them."""
    policy = config.actor_rollout_ref
    if policy.rollout.name == VLLM:
        return planned.to("meta")
    computes = compute_dtype(policy.model)
    if computes is not None:
        narrow_frozen(planned, computes)  # as the training rank does with frozen weights
    return await_weights(planned, acting_dtype(config), device=device)


def _rollout_parts(
    config: SiiRLArguments,
    *,
    group: int,
    ranks: Any,
    scores: bool,
    folder: Path,
    device: torch.device,
    first_step: int,
    shares: RolloutParts | None,
) -> RolloutParts:
    """Components of an agent group; `scores` says whether one of its nodes rewards rows."""
    pool = make_pool(config.env, cluster=config.cluster.mode, ranks=ranks)
    make = builder_of(config, pool.spec, ranks=OneProcess(), device=device)
    arguments: Any = {"pool": pool, "ranks": ranks, "folder": folder, "first_step": first_step}
    if shares is None:
        rollouts = make.rollouts(_acting_module(make.planned(), config, device), **arguments)
    else:
        assert isinstance(make, TextBuilder)
        rollouts = make.rollouts_of(cast(TextEngine, shares.engine), shares.acting, **arguments)
    recording = Recording(rollouts.recorder)
    rollouts = dataclasses.replace(rollouts, recorder=recording)
    rollout: Any = rollouts.rollout
    rollout.workflow.marks_versions = config.trainer.max_staleness > 0
    loader = make.loader(OneProcess())
    reward = make.reward() if scores or make.evaluates_by_reward else None
    context = StageContext(
        config=config,
        run_folder=folder,
        ranks=OneProcess(),
        collector=make.collector(rollouts, ranks=ranks),
        actor=cast(Any, UnavailableComponent("actor", "train")),
        reference=None,
        reward=cast(Any, UnavailableComponent("reward", "train") if reward is None else reward),
        weights=cast(Any, UnavailableComponent("weights", "train")),
        redistribution=StayOnRank(),
        kl_controller=cast(Any, UnavailableComponent("kl_controller", "train")),
        loader=loader,
    )
    return RolloutParts(
        context=context,
        rollout=rollout,
        engine=rollout.engine,
        validator=make.validator(rollouts, ranks=ranks, loader=loader, reward=reward),
        recording=recording,
        acting=rollouts.acting,
        owner=group if shares is None else shares.owner,
        closes=[rollouts.episode_log, loader, *([] if reward is None else [reward])],
    )
