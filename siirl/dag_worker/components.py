"""Components of a DAGWorker, and the builders that VLA policies and text share."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from envs.registry import portable_name
from siirl.algos.kl import AdaptiveKLController, FixedKLController
from siirl.algos.log_probs import TokenScores
from siirl.dag_worker.checkpoint import CheckpointManager
from siirl.dag_worker.context import StageContext
from siirl.dag_worker.validator import Validator
from siirl.data_coordinator.learnable import LearnableTaskLoader
from siirl.data_coordinator.task_stream import TaskLoader
from siirl.engine.actor.actor import Actor
from siirl.engine.rollout.rollout import Rollout
from siirl.engine.training.collectives import Collectives
from siirl.engine.training.micro_batches import PrefixGrouping
from siirl.engine.training.train_engine import Scorer, TrainEngine
from siirl.env_server.pool import EnvPool
from siirl.params import SiiRLArguments, sizes


class Closeable(Protocol):
    """Something that is written to and in the end closed."""

    def close(self) -> None:
        """Finish pending output; may be called twice."""


@dataclass
class WorkerComponents:
    """Components of a DAGWorker: all that it holds in addition to its graph."""

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
            **({} if context.critic is None else {"critic": context.critic.state_dict()}),
        }

    def load_state(self, state: dict) -> None:
        """The inverse of `state`."""
        self.context.require_loader().load_state_dict(state["loader"])
        self.context.reward.load_state_dict(state["reward"])
        self.context.actor.load_state_dict(state["actor"])
        self.context.kl_controller.load_state_dict(state["kl_controller"])
        self.context.redistribution.load_state_dict(
            state.get("redistribution", {})
        )  # absent in the first checkpoints
        if self.context.critic is not None:
            self.context.critic.load_state_dict(state["critic"])

    def close(self) -> None:
        """Close environments, rewards, the prompt loader and the episode files.

        A checkpoint that is still being written has `trainer.grace_s` to become complete.
        """
        self.checkpoints.close(within_s=self.context.config.trainer.grace_s)
        self.rollout.close()
        self.episode_log.close()
        self.context.reward.close()
        self.context.require_loader().close()


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
        with ExitStack() as stack:  # an error of one does not keep the others open
            for part in (self.rollout, self.episode_log, self.reward):
                if part is not None:
                    stack.callback(part.close)


def make_pool(config: SiiRLArguments, ranks: Collectives) -> EnvPool:
    """Build this rank's share of the simulators; at least one server per rank."""
    env = config.env
    return EnvPool(
        portable_name(env.name),
        env.constructor_kwargs(),
        num_servers=max(
            1, env.num_servers // ranks.size + (ranks.rank < env.num_servers % ranks.size)
        ),
        envs_per_server=env.envs_per_server,
        cluster=config.cluster.mode,
        deadline_s=env.deadline_s,
        max_replays=env.max_replays,
    )


def make_task_loader(
    config: SiiRLArguments, *, tasks: Sequence[str], ranks: Collectives
) -> TaskLoader:
    """Build the stream of training prompts that an environment makes from seeds."""
    data = config.data
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
    )


def make_engine(
    config: SiiRLArguments,
    *,
    module: nn.Module,
    scorer: Scorer[TokenScores],
    ranks: Collectives,
    device: torch.device,
    trained: bool,
    prefix_groups: PrefixGrouping | None = None,
    sharers: Sequence[SiiRLArguments] = (),
) -> TrainEngine[TokenScores]:
    """Build the engine of a policy, with an optimizer if it is trained.

    Agent groups that share it (`sharers`) take optimiser steps of their own.
    """
    settings, total_steps = config.actor_rollout_ref, config.trainer.total_steps
    steps = sum(sizes.optimiser_steps_per_step(each) for each in (config, *sharers))
    return TrainEngine(
        module=module,
        scorer=scorer,
        ranks=ranks,
        optim=settings.actor.optim if trained else None,
        total_steps=None if total_steps is None else total_steps * steps,
        micro_batch_size=settings.actor.micro_batch_size,
        micro_batch_tokens=settings.actor.micro_batch_tokens,
        prefix_groups=prefix_groups,
        temperature=settings.rollout.temperature,
        max_grad_norm=settings.actor.max_grad_norm,
        device=device,
        compute_dtype=compute_dtype(config),
    ).initialize()


def make_actor(
    config: SiiRLArguments, *, engine: TrainEngine[TokenScores], horizon: int, agents: int = 1
) -> Actor:
    """Build the actor, or a reference policy, on an engine.

    Args:
        config: The job.
        engine: The policy's engine.
        horizon: Tokens of the longest possible response.
        agents: Agents per episode; mini-batches count prompts, and every agent adds one row.
    """
    settings = config.actor_rollout_ref
    rows = settings.rollout.n * agents
    return Actor(
        engine=engine,
        config=settings.actor,
        rollouts_per_prompt=rows,
        seed=config.trainer.seed,
        horizon=horizon,
    )


def compute_dtype(config: SiiRLArguments) -> torch.dtype | None:
    """Dtype of the forward and backward passes; None: the weights' own float32."""
    return torch.bfloat16 if config.actor_rollout_ref.model.dtype == "bfloat16" else None


def make_kl_controller(config: SiiRLArguments) -> FixedKLController:
    """Build the coefficient of the KL in the reward, fixed or adaptive."""
    control = config.algorithm.kl_ctrl
    if control.type == "fixed":
        return FixedKLController(control.kl_coef)
    return AdaptiveKLController(control.kl_coef, control.target_kl, control.horizon)
