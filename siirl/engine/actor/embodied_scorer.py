"""Scorer of vision-language-action policies: all executed chunks of a micro-batch in one pass.

Trajectories differ in length, so a padded batch is mostly padding. Only chunks with at least one
executed token go through the policy, as independent observations; their log-probs are then
scattered to the positions of their tokens. All other positions are 0.
"""

# B trajectory, C chunk, S = K*A token of a chunk, T = C*S token, N executed chunk of any
# trajectory

from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import nn

from siirl.algos.distribution_checks import (
    require_choices,
    require_distribution,
    require_gradient,
    require_scores,
)
from siirl.algos.log_probs import TokenScores
from siirl.algos.ranks import Ranks
from siirl.algos.tensor_checks import as_bool_mask
from siirl.errors import TensorError
from siirl.models.policy import Policy

CHUNK_COLUMNS = ("pixel_values", "proprioception")
"""Observations at chunk boundaries, [B, C, ...].

A batch has at least one of them; the policy gets None for the other.
"""


def embodied_scorer(module: nn.Module, micro_batch: TensorDict, temperature: float) -> TokenScores:
    """Log-probs and entropy [B, T] of the action tokens of `micro_batch`.

    See `siirl.engine.training.batch_loss.Scorer`.

    Args:
        module: `siirl.models.policy.Policy`.
        micro_batch: `responses` [B, T] or [B, T, J], `response_mask` [B, T], `instruction_ids`
            [B, L] or `chunk_instruction_ids` [B, C, L], and `pixel_values` uint8
            [B, C, cameras, H, W, 3] or `proprioception` [B, C, P] or both.
        temperature: Temperature of the policy's distribution.

    Raises:
        ConfigError: The policy returned no distribution, or one whose scores have another shape or,
            in a training pass, no gradient.
        TensorError: Shapes of columns that disagree with each other or with the distribution.
    """
    choices_BT = micro_batch["responses"]
    kept_BT = as_bool_mask(micro_batch["response_mask"])
    inputs, executed = inputs_of_executed_chunks(micro_batch, kept_BT=kept_BT)
    distribution = require_distribution(module(**inputs), policy=type(module).__name__)

    choices = executed.of(choices_BT.unflatten(1, (executed.chunks, -1)))
    require_choices(distribution, choices)
    # The loss refuses numbers that are not finite, after all ranks have run the module.
    scores = distribution.tempered(temperature).scores(choices)
    require_scores(distribution, log_prob=scores.log_probs_BT, entropy=scores.entropy_BT)
    require_gradient(distribution, scores.log_probs_BT)
    return TokenScores(
        log_probs_BT=put_back(scores.log_probs_BT, executed, kept_BT),
        entropy_BT=put_back(scores.entropy_BT, executed, kept_BT),
    )


@dataclass(frozen=True)
class ExecutedChunks:
    """Chunks of a micro-batch that go through the policy."""

    places_N: tuple[torch.Tensor, torch.Tensor]
    """Row and chunk of each, int64 [N]."""
    chunks: int
    """Chunks of a row, C."""
    every: bool
    """Whether they are all chunks of all rows, in order: nothing is gathered or scattered."""

    def of(self, values_BC: torch.Tensor) -> torch.Tensor:
        """Entries [N, ...] of `values_BC` [B, C, ...], a copy: a policy may change its inputs."""
        return values_BC.flatten(0, 1).clone() if self.every else values_BC[self.places_N]


def inputs_of_executed_chunks(
    micro_batch: TensorDict, *, kept_BT: torch.Tensor
) -> tuple[dict[str, torch.Tensor | None], ExecutedChunks]:
    """Arguments of the policy, one row per executed chunk, and which chunks these are.

    On several ranks the policy must run, even for padding rows, so there is at least one row.
    """
    chunks = number_of_chunks(micro_batch)
    executed_BC = kept_BT.unflatten(1, (chunks, -1)).any(-1)
    row_N, chunk_N = executed_BC.nonzero().unbind(1)
    every = 0 < len(row_N) == executed_BC.numel()
    if not len(row_N):
        row_N = chunk_N = row_N.new_zeros(1)
    executed = ExecutedChunks(places_N=(row_N, chunk_N), chunks=chunks, every=every)
    inputs = {
        name: executed.of(micro_batch[name]) if name in micro_batch else None
        for name in CHUNK_COLUMNS
    }
    inputs["instruction_ids"] = (  # its own, or that of its row
        executed.of(micro_batch["chunk_instruction_ids"])
        if "chunk_instruction_ids" in micro_batch
        else micro_batch["instruction_ids"][row_N]
    )
    return inputs, executed


def observe_rows(rows: TensorDict, *, policy: Policy, ranks: Ranks) -> None:
    """Show `policy` the observations at which the decisions of this rank's rows were taken."""
    if "proprioception" not in rows:
        return
    kept_BT = as_bool_mask(rows["response_mask"])
    executed_BC = kept_BT.unflatten(1, (number_of_chunks(rows), -1)).any(-1)
    policy.observe(rows["proprioception"][executed_BC], ranks=ranks)


def put_back(
    values_NS: torch.Tensor, executed: ExecutedChunks, kept_BT: torch.Tensor
) -> torch.Tensor:
    """Scatter values of executed chunks [N, S] to the positions of their tokens [B, T].

    Tokens that were not executed get 0.
    """
    if executed.every:
        values_BT = values_NS.reshape(kept_BT.shape)
    else:
        values_BCS = values_NS.new_zeros((len(kept_BT), executed.chunks, values_NS.shape[1]))
        values_BT = values_BCS.index_put(executed.places_N, values_NS).flatten(1)
    return torch.where(kept_BT, values_BT, torch.zeros_like(values_BT))


def number_of_chunks(micro_batch: TensorDict) -> int:
    """Chunks of each trajectory, padding included.

    Raises:
        TensorError: Observations and tokens disagree.
    """
    found = {name: micro_batch[name].shape[1] for name in CHUNK_COLUMNS if name in micro_batch}
    tokens = micro_batch["responses"].shape[1]
    if not found:
        known = ", ".join(map(str, micro_batch.keys()))
        raise TensorError(
            f"A batch of trajectories needs pixel_values or proprioception; this one has: {known}."
        )
    chunks = next(iter(found.values()))
    if len(set(found.values())) > 1 or chunks == 0 or tokens % chunks:
        raise TensorError(f"{tokens} tokens per trajectory do not fit {found} chunks.")
    return chunks
