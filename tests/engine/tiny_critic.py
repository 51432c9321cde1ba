"""A critic on the features of the tiny policy, and trajectories with values and returns for it."""

# B trajectory, T token

from typing import Any

import torch
from tensordict import TensorDict
from tiny_training import RecordingEngine, TinyPolicy, make_engine, trajectories
from torch import nn

from siirl.engine.critic.critic import Critic
from siirl.engine.critic.value_model import ValueModel
from siirl.engine.critic.value_scorers import embodied_value_scorer, first_token_of_each_chunk
from siirl.engine.training.collectives import Collectives

WIDTH = 6


class TinyFeatures(nn.Module):
    """The features of the tiny policy."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__()
        self.policy = TinyPolicy(seed=seed, width=WIDTH)
        self.policy.head = nn.Identity()

    def forward(self, **observation: torch.Tensor | None) -> torch.Tensor:
        policy, pixels, feelings = (
            self.policy,
            observation["pixel_values"],
            observation["proprioception"],
        )
        assert pixels is not None and feelings is not None
        hidden = policy.inputs(torch.cat([pixels.flatten(1) * policy.scale, feelings], dim=1))
        hidden = hidden + policy.words(observation["instruction_ids"]).mean(1)
        for block in policy.blocks:
            hidden = hidden + torch.tanh(block(hidden))
        return policy.norm(hidden)


def make_critic(
    ranks: Collectives | None = None,
    *,
    epochs: int = 1,
    rows: int = 1000,
    clip_range: float | None = 0.5,
    normalize_returns: bool = True,
    head_seed: int | None = None,
    **engine: Any,
) -> Critic:
    """A critic whose mini-batch is the whole batch, by default.

    Its engine records its gradients.
    """
    model = ValueModel(
        trunk=TinyFeatures(), feature_size=WIDTH, normalize_returns=normalize_returns
    )
    if head_seed is not None:  # as if trained
        torch.nn.init.normal_(
            model.value_head.weight, generator=torch.Generator().manual_seed(head_seed)
        )
    made: RecordingEngine = make_engine(
        ranks, module=model, **{"scorer": embodied_value_scorer, "temperature": 1.0, **engine}
    )
    return Critic(
        engine=made,
        model=model,
        decisions=first_token_of_each_chunk,
        epochs=epochs,
        rows_per_mini_batch=rows,
        clip_range=clip_range,
        seed=0,
    )


def experience(rows: int, *, scale: float = 1.0, **options: Any) -> TensorDict:
    """Trajectories whose returns are the sum of the proprioception of their observations."""
    batch = trajectories(rows, **options)
    tokens = batch["responses"].shape[1] // batch["proprioception"].shape[1]
    batch["returns"] = scale * (3 + batch["proprioception"].sum(-1)).repeat_interleave(
        tokens, dim=1
    )
    batch["values"] = torch.zeros_like(batch["returns"])
    batch["value_mask"] = first_token_of_each_chunk(batch)
    return batch
