"""Builds the critic of a rank, for VLA policies and language models."""

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from siirl.dag_worker.components import sharding_of
from siirl.engine.critic.critic import Critic
from siirl.engine.critic.value_model import ValueModel
from siirl.engine.training.batch_loss import Scorer
from siirl.engine.training.collectives import Collectives
from siirl.engine.training.train_engine import TrainEngine
from siirl.execution.dag import NodeRole, TaskGraph
from siirl.params.critic_args import CriticArguments
from siirl.params.critic_sizes import critic_update
from siirl.params.model_args import ActorRolloutRefArguments
from siirl.params.training_args import TrainingArguments


def needs_critic(graph: TaskGraph, *, group: int | None = None) -> bool:
    """Whether a node that runs has the role CRITIC, in this agent group (None: in any)."""
    return any(
        node.node_role is NodeRole.CRITIC
        and node.skip_reason is None
        and group in (None, node.agent_group)
        for node in graph.get_nodes()
    )


def make_critic(
    settings: CriticArguments,
    *,
    policy: ActorRolloutRefArguments,
    trainer: TrainingArguments,
    steps: int,
    trunk: nn.Module,
    feature_size: int,
    scorer: Scorer[torch.Tensor],
    decisions: Callable[[TensorDict], torch.Tensor],
    ranks: Collectives,
    device: torch.device,
    compute_dtype: torch.dtype | None,
    agents: int = 1,
    observe: Callable[[TensorDict], None] | None = None,
    **engine_options: Any,
) -> Critic:
    """Build the critic: value model, optimiser and update.

    Args:
        settings: Settings of the critic.
        policy: Settings of the policy: sharding and offloading are the critic's too, and
            mini-batches by default.
        trainer: Length and seed of the run.
        steps: Optimiser steps of a training step (`siirl.dag_worker.components.Updates`).
        trunk: A copy of the policy without its head, used only by the critic: `PolicyFeatures` or a
            language model.
        feature_size: Size D of the trunk's features.
        scorer: `embodied_value_scorer` or `text_value_scorer`.
        decisions: `first_token_of_each_chunk` or `every_own_token`.
        ranks: The training processes.
        device: Device of this rank.
        compute_dtype: Type of the forward and backward passes; None: the weights' own.
        agents: Agents per episode; each adds one row.
        observe: Called with this rank's rows after an update, on every rank.
        engine_options: Further arguments of the engine, such as the token budget of micro-batches.
    """
    total_steps = trainer.total_steps
    update = critic_update(settings, policy.actor)
    model = ValueModel(
        trunk=trunk, feature_size=feature_size, normalize_returns=settings.normalize_returns
    )
    engine = TrainEngine[torch.Tensor](
        module=model,
        scorer=scorer,
        ranks=ranks,
        optim=settings.optim,
        total_steps=None if total_steps is None else total_steps * steps,
        micro_batch_size=update.micro_batch_size,
        temperature=1.0,
        max_grad_norm=settings.max_grad_norm,
        device=device,
        compute_dtype=compute_dtype,
        sharding=sharding_of(policy.actor),
        offload=policy.actor.offload_optimizer,
        **engine_options,
    ).initialize()
    return Critic(
        engine=engine,
        model=model,
        decisions=decisions,
        epochs=update.epochs,
        rows_per_mini_batch=update.prompts_per_mini_batch * policy.rollout.n * agents,
        clip_range=settings.cliprange_value,
        seed=trainer.seed,
        observe=observe,
    )
