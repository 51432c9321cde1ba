"""What a DAGWorker holds beside its graph, and the parts that are made alike for robots and for
text.
"""

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
from siirl.data_coordinator.task_stream import Loader, TaskLoader
from siirl.engine.actor.actor import Actor
from siirl.engine.rollout.rollout import Rollout
from siirl.engine.training.collectives import Collectives
from siirl.engine.training.micro_batches import Units
from siirl.engine.training.train_engine import Scorer, TrainEngine
from siirl.env_server.pool import EnvPool
from siirl.params import SiiRLArguments, sizes


class Closeable(Protocol):
    """Something that is written to and in the end closed."""

    def close(self) -> None:
        """Finish what is left; may be called twice."""


@dataclass
class Rank:
    """What a DAGWorker holds beside its graph."""

    context: StageContext
    rollout: Rollout
    loader: Loader
    validator: Validator
    shown: Closeable
    """What episodes are shown by: videos, or files of text."""
    checkpoints: CheckpointManager

    def keep_up(self, share_of_run: float) -> None:
        """Let learning rates fall with the run (`TrainEngine.keep_up`)."""
        for learner in (self.context.actor, self.context.critic):
            if learner is not None:
                learner.engine.keep_up(share_of_run)

    def state(self) -> dict:
        """What the next step depends on beside weights and moments; the same on every rank."""
        context = self.context
        return {
            "loader": self.loader.state_dict(),
            "reward": context.reward.state_dict(),
            "actor": context.actor.state_dict(),
            "kl_controller": context.kl_controller.state_dict(),
            "redistribution": context.redistribution.state_dict(),
            **({} if context.critic is None else {"critic": context.critic.state_dict()}),
        }

    def load_state(self, state: dict) -> None:
        """The inverse of `state`."""
        self.loader.load_state_dict(state["loader"])
        self.context.reward.load_state_dict(state["reward"])
        self.context.actor.load_state_dict(state["actor"])
        self.context.kl_controller.load_state_dict(state["kl_controller"])
        self.context.redistribution.load_state_dict(
            state.get("redistribution", {})
        )  # the first checkpoints had none
        if self.context.critic is not None:
            self.context.critic.load_state_dict(state["critic"])


@dataclass
class Evaluation:
    """What an evaluation needs of a rank; nothing is trained."""

    rollout: Rollout
    validator: Validator
    shown: Closeable
    reward: Closeable | None = None
    """What scores episodes that the environment leaves without a grade."""

    def close(self) -> None:
        """End environments, files and reward functions; safe to call twice."""
        with ExitStack() as stack:  # what one of them raises does not keep the others open
            for part in (self.rollout, self.shown, self.reward):
                if part is not None:
                    stack.callback(part.close)


def make_pool(config: SiiRLArguments, ranks: Collectives) -> EnvPool:
    """This rank's share of the simulators; at least one server a rank."""
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
    """The stream of training prompts that an environment makes up from seeds."""
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
    units: Units | None = None,
) -> TrainEngine[TokenScores]:
    """The engine of a policy; with an optimiser where it is trained."""
    settings, total_steps = config.actor_rollout_ref, config.trainer.total_steps
    return TrainEngine(
        module=module,
        scorer=scorer,
        ranks=ranks,
        optim=settings.actor.optim if trained else None,
        total_steps=None
        if total_steps is None
        else total_steps * sizes.optimiser_steps_per_step(config),
        micro_batch_size=settings.actor.micro_batch_size,
        micro_batch_tokens=settings.actor.micro_batch_tokens,
        units=units,
        temperature=settings.rollout.temperature,
        max_grad_norm=settings.actor.max_grad_norm,
        device=device,
        compute_dtype=compute_dtype(config),
    ).initialize()


def make_actor(
    config: SiiRLArguments, *, engine: TrainEngine[TokenScores], horizon: int, agents: int = 1
) -> Actor:
    """The actor, or a reference policy, of an engine.

    Args:
        config: The job.
        engine: Of the policy.
        horizon: Tokens of the longest possible response.
        agents: Of an episode; mini-batches count prompts, and every agent makes a row of its own.
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
    """Type of the forward and backward passes; None is the weights' own float32."""
    return torch.bfloat16 if config.actor_rollout_ref.model.dtype == "bfloat16" else None


def make_kl_controller(config: SiiRLArguments) -> FixedKLController:
    """Coefficient of the KL in the reward, fixed or adaptive."""
    control = config.algorithm.kl_ctrl
    if control.type == "fixed":
        return FixedKLController(control.kl_coef)
    return AdaptiveKLController(control.kl_coef, control.target_kl, control.horizon)
