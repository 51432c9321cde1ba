"""Gradient of a loss with respect to the scores of whole rows, for rows that go through the module
in parts.

All parts are scored first. The loss gives the gradient with respect to the scores. In a second
pass, each part propagates its share of that gradient into the module (the gradient cache of arXiv
2101.06983).
"""

# B row, S kind of score (one of a critic; log-prob and entropy of a policy), T token

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict

from siirl.algos.log_probs import TokenScores
from siirl.data_coordinator.protocol.batch import without_texts
from siirl.engine.training.batch_cuts import row_of_zeros
from siirl.engine.training.batch_loss import LossSum, LossTally, require_gradient
from siirl.engine.training.collectives import Collectives, raise_on_all_ranks

TOKEN_AXES = 2  # row and token


def gradient_in_scores(
    scores_BST: torch.Tensor,
    batch: TensorDict,
    loss_fn: Callable[[Any, TensorDict], LossSum],
    *,
    tally: LossTally,
    ranks: Collectives,
) -> torch.Tensor:
    """Gradient of the loss's sum over this rank's rows with respect to their scores, [B, S, T].

    Args:
        scores_BST: Output of `stacked`, without gradient; no row on an empty rank.
        batch: The rows.
        loss_fn: Loss of rows as a sum.
        tally: Gets the loss.
        ranks: Fail together.

    Raises:
        TensorError: Bad numbers or a loss without a gradient on this rank; the other ranks raise
            InvariantError.
    """
    counts = len(batch) > 0
    rows = batch if counts else row_of_zeros(without_texts(batch))
    rows = _without_observations(rows).to(scores_BST.device)
    values = scores_BST if counts else scores_BST.new_zeros((1, *scores_BST.shape[1:]))
    values.requires_grad_()
    gradient_BST = torch.zeros_like(values)
    with raise_on_all_ranks(ranks):
        part = loss_fn(_unstacked(values), rows)
        require_gradient(part)
        (gradient_BST,) = torch.autograd.grad(part.loss, values, materialize_grads=True)
        tally.add(part, counts=counts)
    return gradient_BST


def stacked(scores: TokenScores | torch.Tensor) -> torch.Tensor:
    """Scores as one tensor [B, S, T]."""
    if isinstance(scores, torch.Tensor):
        return scores[:, None]
    return torch.stack([scores.log_probs_BT, scores.entropy_BT], dim=1)


def _unstacked(scores_BST: torch.Tensor) -> TokenScores | torch.Tensor:
    """The inverse of `stacked`."""
    if scores_BST.shape[1] == 1:
        return scores_BST[:, 0]
    return TokenScores(log_probs_BT=scores_BST[:, 0], entropy_BT=scores_BST[:, 1])


def _without_observations(batch: TensorDict) -> TensorDict:
    """Columns with one entry per row or token, which a loss reads; leaves out images, which are
    large.
    """
    columns = {
        name: value
        for name, value in batch.items()
        if isinstance(value, torch.Tensor) and value.ndim <= TOKEN_AXES
    }
    return TensorDict(columns, batch_size=batch.batch_size)
