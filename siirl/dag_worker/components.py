"""Components of a DAGWorker, and the builder of a rank's objects.

`RankBuilder` is the common base of text and VLA builders (`text_components`,
`embodied_components`). `assembly` combines the objects of a rank.
"""

import abc
import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from tensordict import TensorDict
from torch import nn

from envs.base import EnvSpec
from envs.registry import portable_name
from siirl.algos.kl import AdaptiveKLController, FixedKLController
from siirl.algos.log_probs import TokenScores
from siirl.dag_worker.checkpoint import CheckpointManager
from siirl.dag_worker.context import StageContext
from siirl.dag_worker.rollout_collector import Measure, RolloutCollector
from siirl.dag_worker.validator import Validator
from siirl.data_coordinator.learnable import LearnableTaskLoader
from siirl.data_coordinator.prompts.prompt_loader import PromptLoader
from siirl.data_coordinator.task_stream import TASKS_KEY, Loader, TaskLoader
from siirl.engine.actor.actor import Actor
from siirl.engine.actor.chunk_windows import chunk_windows
from siirl.engine.actor.reference import Reference, WithoutAdapter
from siirl.engine.critic.critic import Critic
from siirl.engine.reward_manager import RewardManager
from siirl.engine.rollout.rollout import Rollout
from siirl.engine.training.batch_cuts import PrefixGrouping, RowCutting
from siirl.engine.training.batch_loss import Scorer
from siirl.engine.training.collectives import Collectives
from siirl.engine.training.compiled_blocks import COMPILER
from siirl.engine.training.sharding import Sharding
from siirl.engine.training.train_engine import TrainEngine
from siirl.engine.training.weight_sync import ActingWeights, acting_copy
from siirl.env_server.pool import EnvPool
from siirl.models.adapters import narrow, narrow_frozen
from siirl.models.training_flops import training_flops
from siirl.models.weights import materialise, move_to
from siirl.params import SiiRLArguments, sizes
from siirl.params.agents import rows_per_episode
from siirl.params.algorithm_args import KLCtrlArguments
from siirl.params.data_args import DataArguments
from siirl.params.env_args import EnvArguments
from siirl.params.model_args import ActorArguments, ModelArguments
from siirl.reporting.finished_episodes import Recorder


class Closeable(Protocol):
    """An object that must be closed after its last use."""

    def close(self) -> None:
        """Finish pending output; may be called twice."""


@dataclass
class WorkerComponents:
    """Everything that a DAGWorker holds besides its graph."""

    context: StageContext
    rollout: Rollout
    validator: Validator
    episode_log: Closeable
    """Writes the recorded episodes: videos, or files of text."""
    checkpoints: CheckpointManager

    def set_progress(self, progress: float) -> None:
        """Set the completed share of the run, for learning rates (`TrainEngine.set_progress`)."""
        for learner in (self.context.actor, self.context.critic):
            if learner is not None:
                learner.engine.set_progress(progress)

    def state(self) -> dict:
        """State of the next step, except weights and moments; the same on every rank."""
        context = self.context
        return {
            "loader": context.require_loader().state_dict(),
            "reward": context.reward.state_dict(),
            "actor": context.actor.state_dict(),
            "kl_controller": context.kl_controller.state_dict(),
            "redistribution": context.redistribution.state_dict(),
            "rollout": context.collector.state_dict(),
            **({} if context.critic is None else {"critic": context.critic.state_dict()}),
        }

    def load_state(self, state: dict) -> None:
        """The inverse of `state`."""
        self.context.require_loader().load_state_dict(state["loader"])
        self.context.reward.load_state_dict(state["reward"])
        self.context.actor.load_state_dict(state["actor"])
        self.context.kl_controller.load_state_dict(state["kl_controller"])
        # absent in the first checkpoints
        self.context.redistribution.load_state_dict(state.get("redistribution", {}))
        # absent in old checkpoints
        self.context.collector.load_state_dict(state.get("rollout", {}))
        if self.context.critic is not None:
            self.context.critic.load_state_dict(state["critic"])

    def close(self) -> None:
        """Close environments, rewards, the prompt loader and the episode files, even if some raise.

        A checkpoint that is still being written gets `trainer.grace_s` seconds to finish.
        """
        with ExitStack() as closing:  # in reverse
            closing.callback(self.context.require_loader().close)
            closing.callback(self.context.reward.close)
            closing.callback(self.episode_log.close)
            closing.callback(self.rollout.close)
            self.checkpoints.close(within_s=self.context.config.trainer.grace_s)


def make_pool(env: EnvArguments, *, cluster: str, ranks: Collectives) -> EnvPool:
    """Build this rank's share of the simulators; at least one server per rank."""
    return EnvPool(
        portable_name(env.name),
        env.constructor_kwargs(),
        num_servers=max(
            1, env.num_servers // ranks.size + (ranks.rank < env.num_servers % ranks.size)
        ),
        envs_per_server=env.envs_per_server,
        cluster=cluster,
        deadline_s=env.deadline_s,
        max_replays=env.max_replays,
    )


def make_task_loader(
    data: DataArguments,
    *,
    tasks: Sequence[str],
    ranks: Collectives,
    tasks_from: str = TASKS_KEY,
) -> TaskLoader:
    """Build the stream of training prompts that an environment makes from seeds; see `TaskLoader`
    for `tasks_from`.
    """
    loader = (
        LearnableTaskLoader if data.task_sampling == LearnableTaskLoader.sampling else TaskLoader
    )
    return loader(
        tasks=tasks,
        weights=data.task_weights,
        prompts_per_step=data.train_batch_size,
        seed=data.seed,
        rank=ranks.rank,
        ranks=ranks.size,
        tasks_from=tasks_from,
    )


def compute_dtype(model: ModelArguments) -> torch.dtype | None:
    """Dtype of the forward and backward passes; None: the weights' own float32."""
    return torch.bfloat16 if model.dtype == "bfloat16" else None


def cut_by_chunk(actor: ActorArguments) -> RowCutting | None:
    """Function that cuts trajectories into micro-batches; None: rows stay whole."""
    chunks = actor.micro_batch_chunks
    return None if chunks is None else functools.partial(chunk_windows, chunks=chunks)


def sharding_of(actor: ActorArguments) -> Sharding:
    """How FSDP2 shards the policy, its reference and the critic."""
    return Sharding(
        reshard_after_forward=actor.reshard_after_forward,
        reduce_once=actor.reduce_once,
        shard_ranks=actor.fsdp_size,
    )


def make_kl_controller(control: KLCtrlArguments) -> FixedKLController:
    """Build the coefficient of the KL in the reward, fixed or adaptive."""
    if control.type == "fixed":
        return FixedKLController(control.kl_coef)
    return AdaptiveKLController(control.kl_coef, control.target_kl, control.horizon)


@dataclass(frozen=True)
class Updates:
    """Largest number of optimiser steps in a training step, over all nodes that update a model."""

    policy: int
    critic: int


@dataclass(frozen=True)
class TrainedModel:
    """Trained weights, with the objects that update and score them."""

    module: nn.Module
    actor: Actor
    critic: Critic | None
    reference: Reference | None

    def engines(self, ending: str = "") -> dict[str, TrainEngine[Any]]:
        """Trained engines by the names of their folders in a checkpoint."""
        engines: dict[str, TrainEngine[Any]] = {f"actor{ending}": self.actor.engine}
        if self.critic is not None:
            engines[f"critic{ending}"] = self.critic.engine
        return engines


@dataclass(frozen=True)
class Rollouts:
    """Runs and records the episodes of a policy."""

    rollout: Rollout
    acting: nn.Module | ActingWeights
    """Holds the weights that act."""
    recorder: Recorder
    episode_log: Closeable
    """Writes the episodes that `recorder` keeps."""
    measure: Measure


class RankBuilder(abc.ABC):
    """Builds the objects of one rank; those of text and of VLA policies differ.

    Args:
        config: The job, or an agent group's part of it.
        spec: Spec of the job's environment.
        ranks: The processes that train together.
        device: Device of this rank.
    """

    kinds: tuple[bool, ...]
    """Whether each evaluation is greedy."""
    scorer: Scorer[TokenScores]

    def __init__(
        self, config: SiiRLArguments, spec: EnvSpec, *, ranks: Collectives, device: torch.device
    ) -> None:
        self.config = config
        self.spec = spec
        self.ranks = ranks
        self.device = device
        self.model = config.actor_rollout_ref.model
        self.compute_dtype = compute_dtype(self.model)

    # Training

    @abc.abstractmethod
    def planned(self) -> Any:
        """The policy to train, with adapters if the job has some; large weights are not read yet
        (`siirl.models.weights.PlannedWeights`).
        """

    def load(self) -> Any:
        """`planned`, with its weights on the device; on several ranks a `TrainEngine` reads them,
        each rank its part.
        """
        policy = self.planned()
        return self.read(policy) if self.ranks.group is None else policy

    def read(self, policy: Any) -> Any:
        """Read all weights of a planned policy on the device, frozen ones in the compute dtype."""
        if self.compute_dtype is not None:
            narrow_frozen(policy, self.compute_dtype)
        materialise(policy, self.device)
        move_to(policy, self.device)  # what was not planned: buffers, adapters, small policies
        return policy

    @abc.abstractmethod
    def initial(self, path: str | None) -> Any:
        """A policy without adapters: that of `path`, or of the job; large weights are not read
        yet.
        """

    @abc.abstractmethod
    def critic(self, steps: int) -> Critic:
        """The critic: a value head on a separate copy of the initial policy; `steps` are those of
        `Updates.critic`.
        """

    @abc.abstractmethod
    def longest_response(self, module: Any) -> int:
        """Tokens of the longest possible response."""

    def decision_tokens(self, module: Any) -> int:
        """Tokens of a decision."""
        return 1

    @abc.abstractmethod
    def reward(self) -> RewardManager:
        """The job's reward."""

    @abc.abstractmethod
    def loader(self, ranks: Collectives) -> TaskLoader | PromptLoader:
        """The stream of prompts, divided among `ranks`."""

    @abc.abstractmethod
    def describe(self, module: Any, folder: Path) -> None:
        """Write the files that make a folder of saved weights loadable as a policy."""

    def prefix_groups(self, module: Any) -> PrefixGrouping | None:
        """Groups of rows that stay together in a micro-batch; None: each row alone."""
        return None

    def trained_model(self, module: Any, *, with_critic: bool, updates: Updates) -> TrainedModel:
        """Build actor, critic and reference to train `module`."""
        actor = self.actor(self.engine(module, trained=True, steps=updates.policy))
        critic = self.critic(updates.critic) if with_critic else None
        return TrainedModel(module, actor, critic, self.reference(actor, module))

    def engine(self, module: Any, *, trained: bool, steps: int = 0) -> TrainEngine[TokenScores]:
        """Build the engine of a policy, with an optimiser if it is trained; `steps` are those of
        `Updates.policy`.
        """
        settings, total_steps = self.config.actor_rollout_ref, self.config.trainer.total_steps
        return TrainEngine(
            module=module,
            scorer=self.scorer,
            ranks=self.ranks,
            optim=settings.actor.optim if trained else None,
            total_steps=None if total_steps is None else total_steps * steps,
            micro_batch_size=settings.actor.micro_batch_size,
            micro_batch_tokens=settings.actor.micro_batch_tokens,
            prefix_groups=self.prefix_groups(module),
            cut=cut_by_chunk(settings.actor),
            temperature=settings.rollout.temperature,
            max_grad_norm=settings.actor.max_grad_norm,
            device=self.device,
            compute_dtype=self.compute_dtype,
            sharding=sharding_of(settings.actor),
            offload=settings.actor.offload_optimizer if trained else settings.ref.offload,
            compiler=COMPILER if settings.actor.use_torch_compile else None,
            work=training_flops,
        ).initialize()

    def actor(self, engine: TrainEngine[TokenScores]) -> Actor:
        """Build the actor on an engine. Mini-batch sizes count prompts; each prompt has one row per
        agent.
        """
        return Actor(
            engine=engine,
            config=self.config.actor_rollout_ref.actor,
            rollouts_per_prompt=self.config.actor_rollout_ref.rollout.n
            * rows_per_episode(self.spec),
            seed=self.config.trainer.seed,
            horizon=self.longest_response(engine.module),
            decision_tokens=self.decision_tokens(engine.module),
            observe=self.observer(engine.module),
        )

    def observer(self, module: Any) -> Callable[[TensorDict], None] | None:
        """Callback that observes the rows of a step for `module`; None: no callback."""
        return None

    def reference(self, actor: Actor, module: Any) -> Reference | None:
        """Build the reference policy of the KL; None if no KL has a weight.

        With adapters and no `ref.path`, the reference is the policy without its adapters. Several
        ranks keep it in the compute dtype, to which FSDP2 would cast its weights in each pass.
        """
        if not sizes.needs_reference(self.config.actor_rollout_ref.actor, self.config.algorithm):
            return None
        path = self.config.actor_rollout_ref.ref.path
        if path is None and module.lora is not None:
            return WithoutAdapter(actor, module)
        reference = self.initial(path)
        if self.compute_dtype is not None and self.ranks.group is not None:
            narrow(reference.parameters(), self.compute_dtype)
        return self.actor(self.engine(reference, trained=False))

    # Acting

    @abc.abstractmethod
    def evaluated(self) -> Any:
        """The policy of the job's folder, to be evaluated."""

    @abc.abstractmethod
    def rollouts(
        self,
        acting: Any,
        *,
        pool: EnvPool,
        ranks: Collectives,
        folder: Path,
        first_step: int = 0,
        trains: bool = True,
    ) -> Rollouts:
        """Build the rollout and the recording of `acting`.

        Args:
            acting: The policy.
            pool: The environments.
            ranks: The ranks that share the recordings.
            folder: Folder of the run.
            first_step: Recordings of this and later steps are overwritten.
            trains: Whether the episodes get rewards for training, or are only evaluated.
        """

    @abc.abstractmethod
    def validator(
        self,
        rollouts: Rollouts,
        *,
        ranks: Collectives,
        loader: Loader | None,
        reward: RewardManager | None,
    ) -> Validator:
        """Build the evaluation on held-out episodes; `reward` scores ungraded ones."""

    def collector(self, rollouts: Rollouts, *, ranks: Collectives) -> RolloutCollector:
        """Build the collector that turns the prompts of a step into rows."""
        return RolloutCollector(
            policy=self.config.actor_rollout_ref,
            trainer=self.config.trainer,
            max_failed_share=self.config.env.max_failed_share,
            rollout=rollouts.rollout,
            recorder=rollouts.recorder,
            ranks=ranks,
            measure=rollouts.measure,
        )

    @property
    def evaluates_by_reward(self) -> bool:
        """Whether held-out episodes may need the job's reward."""
        return False

    def acting(self, module: Any) -> Any:
        """The acting module of a training rank: the trained module, or a copy if it is sharded."""
        if self.ranks.group is None:
            return module
        return acting_copy(module, self.compute_dtype, device=self.device)
