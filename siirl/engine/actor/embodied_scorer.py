"""The scorer of vision-language-action policies: all executed chunks of a micro-batch of
trajectories in one forward pass.

Trajectories have different lengths, so most of a padded batch is padding. Only chunks of which at
least one token was executed go through the policy, side by side as if they were independent
observations (to the policy they are); their log-probs are then put back where their tokens stand.
Nothing is said of the rest, which is 0.
"""

# B trajectory, C chunk, S = K*A token of a chunk, T = C*S token, N executed chunk of any
# trajectory, V bin

import torch
from tensordict import TensorDict
from torch import nn

from siirl.algos.log_probs import TokenScores, token_scores
from siirl.algos.tensor_checks import as_bool_mask
from siirl.errors import TensorError

CHUNK_COLUMNS = ("pixel_values", "proprioception")
"""Observations at chunk boundaries, [B, C, ...]; a batch has at least one of them, and the policy
gets None for the other.
"""


def embodied_scorer(module: nn.Module, micro_batch: TensorDict, temperature: float) -> TokenScores:
    """Log-probs and entropy [B, T] of the action tokens of `micro_batch`; see
    `siirl.engine.training.train_engine.Scorer`.

    Args:
        module: `siirl.models.policy.Policy`.
        micro_batch: `responses` and `response_mask` [B, T], `instruction_ids` [B, L],
            `pixel_values` uint8 [B, C, cameras, H, W, 3] and `proprioception` [B, C, P] or one of
            the two.
        temperature: Divides the logits.

    Raises:
        TensorError: Columns whose shapes do not fit each other or the policy's logits.
    """
    tokens_BT, kept_BT = micro_batch["responses"], as_bool_mask(micro_batch["response_mask"])
    chunks = number_of_chunks(micro_batch)
    executed_BC = kept_BT.unflatten(1, (chunks, -1)).any(-1)
    if not bool(executed_BC.any()):
        executed_BC[0, 0] = (
            True  # on several ranks the module must run, also for rows that only pad
        )
    row_N = executed_BC.nonzero()[:, 0]
    observations = {
        name: micro_batch[name][executed_BC] if name in micro_batch else None
        for name in CHUNK_COLUMNS
    }
    logits_NSV = module(**observations, instruction_ids=micro_batch["instruction_ids"][row_N])

    tokens_NS = tokens_BT.unflatten(1, (chunks, -1))[executed_BC]
    if logits_NSV.shape[:2] != tokens_NS.shape:
        raise TensorError(
            f"The policy's logits have shape {list(logits_NSV.shape)} for {tokens_NS.shape[0]} chunks of {tokens_NS.shape[1]} tokens: the "
            "batch was acted by a policy with another chunk length or another number of action dimensions."
        )
    # Numbers that are not finite are refused by the loss, when all ranks have gone through the
    # module.
    scores = token_scores(logits=logits_NSV, tokens=tokens_NS, temperature=temperature, check=False)
    return TokenScores(
        log_probs_BT=put_back(scores.log_probs_BT, executed_BC, kept_BT),
        entropy_BT=put_back(scores.entropy_BT, executed_BC, kept_BT),
    )


def put_back(
    values_NS: torch.Tensor, executed_BC: torch.Tensor, kept_BT: torch.Tensor
) -> torch.Tensor:
    """Numbers of the executed chunks [N, S] at the places of their tokens [B, T]; 0 where no token
    was executed.
    """
    values_BCS = values_NS.new_zeros((*executed_BC.shape, values_NS.shape[1])).index_put(
        tuple(executed_BC.nonzero().unbind(1)), values_NS
    )
    return torch.where(kept_BT, values_BCS.flatten(1), torch.zeros_like(values_BCS.flatten(1)))


def number_of_chunks(micro_batch: TensorDict) -> int:
    """Chunks of each trajectory, padding included; TensorError where observations and tokens do not
    fit each other.
    """
    found = {name: micro_batch[name].shape[1] for name in CHUNK_COLUMNS if name in micro_batch}
    tokens = micro_batch["responses"].shape[1]
    if not found:
        known = ", ".join(map(str, micro_batch.keys()))
        raise TensorError(
            f"A batch of trajectories needs pixel_values or proprioception; it has: {known}."
        )
    chunks = next(iter(found.values()))
    if len(set(found.values())) > 1 or chunks == 0 or tokens % chunks:
        raise TensorError(f"{tokens} tokens a trajectory and {found} chunks do not fit each other.")
    return chunks
