"""Scores and columns of decisions instead of tokens, for losses of a decision's joint probability.

A VLA policy takes a decision for each observation: a chunk of actions, with a token for each of
their dimensions. The log-prob of the decision is the sum over its executed tokens, and so is its
entropy.
"""

# B row (trajectory), C decision, S token of a decision, T = C*S token

import torch
from tensordict import TensorDict

from siirl.algos.log_probs import TokenScores
from siirl.algos.tensor_checks import as_bool_mask

SUMMED = ("old_log_probs", "rollout_log_probs", "ref_log_prob")
"""Columns of log-probs."""


def executed_decisions(mask_BT: torch.Tensor, *, tokens: int) -> torch.Tensor:
    """Bool [B, C]: the decisions that were executed, even in part.

    Args:
        mask_BT: 1 at executed tokens.
        tokens: S.
    """
    return as_bool_mask(mask_BT).unflatten(1, (-1, tokens)).any(-1)


def of_decisions(
    scores: TokenScores, rows: TensorDict, *, tokens: int
) -> tuple[TokenScores, TensorDict]:
    """Scores [B, C] and columns [B, C] of the decisions in `rows`.

    Log-probs and entropies are summed over the executed tokens of a decision, advantages are
    averaged.

    Args:
        scores: [B, T].
        rows: `response_mask` and `advantages` [B, T], and any of `SUMMED`.
        tokens: S.
    """
    kept_BCS = as_bool_mask(rows["response_mask"]).unflatten(1, (-1, tokens))

    def sums(values_BT: torch.Tensor) -> torch.Tensor:
        values_BCS = values_BT.unflatten(1, (-1, tokens))
        return torch.where(kept_BCS, values_BCS, torch.zeros_like(values_BCS)).sum(-1)

    columns = {name: sums(rows[name]) for name in SUMMED if name in rows}
    columns["advantages"] = sums(rows["advantages"]) / kept_BCS.sum(-1).clamp(min=1)
    columns["response_mask"] = kept_BCS.any(-1)
    summed = TokenScores(log_probs_BT=sums(scores.log_probs_BT), entropy_BT=sums(scores.entropy_BT))
    return summed, TensorDict(columns, batch_size=[len(rows)])
