"""Scorer of vision-language-action policies: all executed chunks of a micro-batch in one pass.

Trajectories differ in length, so a padded batch is mostly padding. Only chunks with at least one
executed token go through the policy, as independent observations; their log-probs are then
scattered to the positions of their tokens. All other positions are 0.
"""

# B trajectory, C chunk, S = K*A token of a chunk, T = C*S token, N executed chunk of any
# trajectory

import torch
from tensordict import TensorDict
from torch import nn

from siirl.algos.distributions import require_choices, require_distribution
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
        TensorError: Shapes of columns that disagree with each other or with the distribution.
    """
    choices_BT = micro_batch["responses"]
    kept_BT = as_bool_mask(micro_batch["response_mask"])
    inputs, executed_BC = inputs_of_executed_chunks(micro_batch, kept_BT=kept_BT)
    distribution = require_distribution(module(**inputs), policy=type(module).__name__)

    choices = choices_BT.unflatten(1, (executed_BC.shape[1], -1))[executed_BC]
    require_choices(distribution, choices)
    # The loss refuses numbers that are not finite, after all ranks have run the module.
    scores = distribution.tempered(temperature).scores(choices)
    return TokenScores(
        log_probs_BT=put_back(scores.log_probs_BT, executed_BC, kept_BT),
        entropy_BT=put_back(scores.entropy_BT, executed_BC, kept_BT),
    )


def inputs_of_executed_chunks(
    micro_batch: TensorDict, *, kept_BT: torch.Tensor
) -> tuple[dict[str, torch.Tensor | None], torch.Tensor]:
    """Arguments of the policy, one row per executed chunk, and which chunks these are: bool [B, C].

    On several ranks the policy must run, even for padding rows, so there is at least one row.
    """
    executed_BC = kept_BT.unflatten(1, (number_of_chunks(micro_batch), -1)).any(-1)
    if not bool(executed_BC.any()):
        executed_BC[0, 0] = True
    observations = {
        name: micro_batch[name][executed_BC] if name in micro_batch else None
        for name in CHUNK_COLUMNS
    }
    return {**observations, "instruction_ids": instructions(micro_batch, executed_BC)}, executed_BC


def observe_rows(rows: TensorDict, *, policy: Policy, ranks: Ranks) -> None:
    """Show `policy` the observations at which the decisions of this rank's rows were taken."""
    if "proprioception" not in rows:
        return
    kept_BT = as_bool_mask(rows["response_mask"])
    executed_BC = kept_BT.unflatten(1, (number_of_chunks(rows), -1)).any(-1)
    policy.observe(rows["proprioception"][executed_BC], ranks=ranks)


def instructions(micro_batch: TensorDict, executed_BC: torch.Tensor) -> torch.Tensor:
    """Instruction [N, L] of each executed chunk: its own, or that of its row."""
    if "chunk_instruction_ids" in micro_batch:
        return micro_batch["chunk_instruction_ids"][executed_BC]
    return micro_batch["instruction_ids"][executed_BC.nonzero()[:, 0]]


def put_back(
    values_NS: torch.Tensor, executed_BC: torch.Tensor, kept_BT: torch.Tensor
) -> torch.Tensor:
    """Scatter values of executed chunks [N, S] to the positions of their tokens [B, T].

    Tokens that were not executed get 0.
    """
    values_BCS = values_NS.new_zeros((*executed_BC.shape, values_NS.shape[1])).index_put(
        tuple(executed_BC.nonzero().unbind(1)), values_NS
    )
    return torch.where(kept_BT, values_BCS.flatten(1), torch.zeros_like(values_BCS.flatten(1)))


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
