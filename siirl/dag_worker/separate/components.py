"""Components of a training rank without rollouts, and of a rollout rank without training.

Each builder takes what its domain needs from `text_components` or `embodied_components`. A training
rank has no simulators and no rollout engine; a rollout rank has no optimiser, no critic and no
reference. Left out: colocated ranks, which those modules build.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from torch import nn

from envs.base import EnvSpec
from siirl.dag_worker import embodied_components as embodied
from siirl.dag_worker import stages
from siirl.dag_worker import text_components as text
from siirl.dag_worker.checkpoint import CheckpointManager
from siirl.dag_worker.components import (
    WorkerComponents,
    compute_dtype,
    make_actor,
    make_engine,
    make_kl_controller,
    make_pool,
    make_task_loader,
)
from siirl.dag_worker.context import StageContext
from siirl.dag_worker.rollout_collector import RolloutCollector, text_rollout_metrics
from siirl.dag_worker.separate.line import Line
from siirl.dag_worker.separate.published_weights import WeightPublisher
from siirl.dag_worker.separate.rollout_ranks import RolloutRanks
from siirl.dag_worker.separate.rollout_worker import Recording, RolloutParts
from siirl.dag_worker.separate.training_side import (
    DistantCollector,
    DistantLoader,
    DistantRollout,
    DistantValidator,
    NothingShown,
    TrainingSide,
)
from siirl.data_coordinator.prompts.prompt_loader import PromptLoader
from siirl.data_coordinator.redistribution import Redistribution, StayOnRank
from siirl.data_coordinator.task_stream import TaskLoader
from siirl.engine.actor.embodied_scorer import embodied_scorer
from siirl.engine.actor.packing import prefix_groups_of
from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.critic.critic import Critic
from siirl.engine.reward_manager import RewardManager, make_reward_manager
from siirl.engine.reward_manager.reward_model import make_reward_model
from siirl.engine.reward_manager.text_rewards import make_text_reward_manager
from siirl.engine.training.collectives import Collectives, OneProcess
from siirl.engine.training.train_engine import TrainEngine
from siirl.engine.training.weight_sync import acting_copy
from siirl.errors import ConfigError
from siirl.execution.dag import TaskGraph
from siirl.params import SiiRLArguments, sizes
from siirl.params.domains import is_text
from siirl.params.env_spec import describe_env
from siirl.reporting.finished_episodes import EpisodeRecorder
from siirl.reporting.recorder import VIDEOS_FOLDER, VideoRecorder
from siirl.reporting.rollout_files import ROLLOUTS_FOLDER, RolloutFiles

ONE_VALIDATION, GREEDY_AND_SAMPLED = (False,), text.GREEDY_AND_SAMPLED


class Elsewhere:
    """Stands for a part of the other resource group; whoever uses it is told so.

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
    """Components of a training rank; the arguments are those of `build_text`, and its line."""
    spec = describe_env(config)
    build = _text_learners if is_text(spec) else _embodied_learners
    learners = build(config, spec=spec, ranks=ranks, device=device, with_critic=with_critic)
    publisher = WeightPublisher(
        trained=learners.engine, ranks=ranks, line=line, acting_dtype=acting_dtype(config)
    )
    publisher.step = max(first_step - 1, 0)
    side = TrainingSide(
        line=line,
        ranks=ranks,
        publisher=publisher,
        max_failed_share=config.env.max_failed_share,
        max_staleness=config.trainer.max_staleness,
    )
    loader = DistantLoader(learners.loader)
    critic = learners.critic
    checkpoints = CheckpointManager(
        folder=run_folder / "checkpoints",
        engines={"actor": learners.engine, **({} if critic is None else {"critic": critic.engine})},
        ranks=ranks,
        export=learners.export,
        more_state=side.state,
    )
    context = StageContext(
        config=config,
        run_folder=run_folder,
        ranks=ranks,
        collector=cast(RolloutCollector, DistantCollector(side=side, spec=spec)),
        actor=learners.actor,
        reference=learners.reference,
        reward=learners.reward,
        weights=cast(Any, publisher),
        redistribution=redistribution,
        kl_controller=make_kl_controller(config),
        critic=critic,
        exchange=side,
        loader=cast(Any, loader),
    )
    publisher.after_first = lambda: side.open(
        step=publisher.step,
        position=learners.loader.position,
        resumed={} if checkpoints.loaded is None else checkpoints.loaded.state,
    )
    return WorkerComponents(
        context,
        cast(Any, DistantRollout(side)),
        cast(Any, DistantValidator(side=side, kinds=learners.kinds)),
        NothingShown(),
        checkpoints,
    )


def acting_dtype(config: SiiRLArguments) -> torch.dtype | None:
    """Type of the acting weights, which compute as the training ranks do; None: as loaded.

    One rank trains under autocast, and several with weights that FSDP2 casts.
    """
    casts = sizes.training_ranks(config) > 1 or config.trainer.force_process_group
    return compute_dtype(config) if casts else None


class _Learners:
    """What a domain trains with."""

    def __init__(
        self,
        *,
        engine: TrainEngine,
        actor: Any,
        critic: Critic | None,
        reference: Any,
        reward: RewardManager,
        loader: TaskLoader | PromptLoader,
        export: Callable[[Path], None],
        kinds: tuple[bool, ...],
    ) -> None:
        self.engine, self.actor, self.critic = engine, actor, critic
        self.reference, self.reward, self.loader = reference, reward, loader
        self.export, self.kinds = export, kinds


def _text_learners(
    config: SiiRLArguments,
    *,
    spec: EnvSpec,
    ranks: Collectives,
    device: torch.device,
    with_critic: bool,
) -> _Learners:
    model, tokenizer = text.make_language_model(config).to(device), text.make_tokenizer(config)
    engine = make_engine(
        config,
        module=model,
        scorer=text_scorer,
        ranks=ranks,
        device=device,
        trained=True,
        prefix_groups=prefix_groups_of(model),
    )
    agents = spec.num_agents
    actor = make_actor(
        config, engine=engine, horizon=config.data.max_response_length, agents=agents
    )
    place: dict[str, Any] = {"ranks": ranks, "device": device}
    return _Learners(
        engine=engine,
        actor=actor,
        critic=text.make_text_critic(config, agents=agents, **place) if with_critic else None,
        reference=text.make_text_reference(config, actor=actor, model=model, **place),
        reward=make_text_reward_manager(
            config, reward_model=make_reward_model(config, device=device, ranks=ranks)
        ),
        loader=text.make_loader(config, spec=spec, tokenizer=tokenizer, ranks=OneProcess()),
        export=functools.partial(text._describe, model, tokenizer, "actor"),
        kinds=GREEDY_AND_SAMPLED,
    )


def _embodied_learners(
    config: SiiRLArguments,
    *,
    spec: EnvSpec,
    ranks: Collectives,
    device: torch.device,
    with_critic: bool,
) -> _Learners:
    policy = embodied.make_trained_policy(config, spec).to(device)
    engine = make_engine(
        config, module=policy, scorer=embodied_scorer, ranks=ranks, device=device, trained=True
    )
    horizon = spec.max_episode_steps * policy.action_tokenizer.dimensions
    actor = make_actor(config, engine=engine, horizon=horizon)
    place: dict[str, Any] = {"ranks": ranks, "device": device, "spec": spec}
    encoder = None
    if config.reward.demonstrations is not None:
        encoder = embodied.make_encoder(config, device=device)
    tasks = embodied.tasks_learnt_by(config, spec)
    return _Learners(
        engine=engine,
        actor=actor,
        critic=embodied.make_embodied_critic(config, **place) if with_critic else None,
        reference=embodied.make_reference(config, actor=actor, policy=policy, **place),
        reward=make_reward_manager(
            config.reward,
            demonstrations=embodied.demonstration_embeddings(config, encoder),
            tasks=spec.tasks,
        ),
        loader=make_task_loader(config, tasks=spec.tasks, ranks=OneProcess()),
        export=lambda checkpoint: embodied._describe(policy, checkpoint / "actor", tasks=tasks),
        kinds=ONE_VALIDATION,
    )


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
        line: To the exchange.
        rank: Number of this rank in its group.
        buffer: What a PUT_TO_BUFFER node calls.
    """
    size = sizes.rollout_ranks(config)
    ranks = RolloutRanks(line, rank=rank, size=size)
    pool = make_pool(config, ranks)
    build = _text_rollout if is_text(pool.spec) else _embodied_rollout
    parts = build(
        config, pool=pool, ranks=ranks, device=device, folder=run_folder, first=first_step
    )
    parts.rollout.workflow.marks_versions = config.trainer.max_staleness > 0
    scores = any(node.executable is stages.greedy_baseline for node in graph.get_nodes())
    reward = parts.reward() if scores else Elsewhere("reward", "train")
    collector = RolloutCollector(
        config=config,
        rollout=parts.rollout,
        recorder=parts.recording,
        ranks=ranks,
        measure=parts.measure,
    )
    context = StageContext(
        config=config,
        run_folder=run_folder,
        ranks=OneProcess(),
        collector=collector,
        actor=cast(Any, Elsewhere("actor", "train")),
        reference=None,
        reward=cast(Any, reward),
        weights=cast(Any, Elsewhere("weights", "train")),
        redistribution=StayOnRank(),
        kl_controller=cast(Any, Elsewhere("kl_controller", "train")),
        exchange=buffer,
        loader=parts.loader,
    )
    closes = [parts.shown, parts.loader, *([reward] if scores else [])]
    return RolloutParts(
        context, parts.rollout, parts.validator, parts.recording, parts.acting, closes
    )


class _Rollouts:
    """What a domain rolls out with."""

    def __init__(
        self,
        *,
        rollout: Any,
        acting: nn.Module,
        recorder: Any,
        shown: Any,
        loader: Any,
        reward: Callable[[], RewardManager],
        measure: Any,
    ) -> None:
        self.rollout, self.acting, self.shown = rollout, acting, shown
        self.recording = Recording(recorder)
        self.loader, self.reward, self.measure = loader, reward, measure
        self.validator: Any = None


def _text_rollout(
    config: SiiRLArguments, *, pool: Any, ranks: Any, device: torch.device, folder: Path, first: int
) -> _Rollouts:
    tokenizer = text.make_tokenizer(config)
    model = acting_copy(text.make_language_model(config).to(device), acting_dtype(config))
    engine, _ = text.make_text_engine(
        config, model=model, tokenizer=tokenizer, at_once=pool.num_slots
    )
    rollout = text.make_text_rollout(config, engine=engine, pool=pool, tokenizer=tokenizer)
    files = RolloutFiles(
        folder / ROLLOUTS_FOLDER,
        count=config.trainer.save_rollouts,
        rank=ranks.rank,
        num_ranks=ranks.size,
        first_step=first,
    )
    loader = text.make_loader(config, spec=pool.spec, tokenizer=tokenizer, ranks=OneProcess())

    def reward() -> RewardManager:
        return make_text_reward_manager(
            config, reward_model=make_reward_model(config, device=device, ranks=OneProcess())
        )

    parts = _Rollouts(
        rollout=rollout,
        acting=model,
        recorder=files,
        shown=files,
        loader=loader,
        reward=reward,
        measure=text_rollout_metrics,
    )
    parts.validator = text.make_text_validator(
        config,
        rollout=rollout,
        ranks=ranks,
        files=cast(Any, parts.recording),
        loader=loader,
        reward=reward() if pool.spec.leaves_ungraded else None,
    )
    return parts


def _embodied_rollout(
    config: SiiRLArguments, *, pool: Any, ranks: Any, device: torch.device, folder: Path, first: int
) -> _Rollouts:
    spec = pool.spec
    acting = acting_copy(
        embodied.make_trained_policy(config, spec).to(device), acting_dtype(config)
    )
    encoder = embodied.make_encoder(config, device=device)
    rollout = embodied.make_rollout(config, pool=pool, acting=acting, encoder=encoder)
    videos = VideoRecorder(folder / VIDEOS_FOLDER, first_step=first, rank=ranks.rank)
    recorder = EpisodeRecorder(
        videos=videos, reports_success=spec.reports_success, notice=spec.notice
    )

    def reward() -> RewardManager:
        return make_reward_manager(config.reward, demonstrations={}, tasks=spec.tasks)

    parts = _Rollouts(
        rollout=rollout,
        acting=acting,
        recorder=recorder,
        shown=videos,
        loader=make_task_loader(config, tasks=spec.tasks, ranks=OneProcess()),
        reward=reward,
        measure=embodied.measure_of(spec),
    )
    parts.validator = embodied.make_validator(
        config, rollout=rollout, ranks=ranks, recorder=cast(Any, parts.recording)
    )
    return parts
