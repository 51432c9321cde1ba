"""Draws tokens by inverting the cumulative distribution at random numbers of the episode.

This module has no generator. A row's tokens depend only on its own logits and numbers, not on the
other rows of the batch or the device. Top-k and top-p restrict the drawn tokens; log-probs remain
those of the whole distribution, which training scores.
"""

# N row, ... further axes, V token of the vocabulary

from dataclasses import dataclass

import torch

FIXED_POINT = 1 << 40  # 2**12 of them still have exact sums in a float64


@dataclass(frozen=True)
class Sampling:
    """Settings of the distribution that tokens are drawn from.

    They hold for every request of an engine, because training divides by the same temperature.
    """

    temperature: float = 1.0
    """Divides the logits, for drawing and for the log-probs alike."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens that reaches this probability."""
    top_k: int | None = None
    """Draw from this many most likely tokens; None: from all."""


def draw(
    probabilities_NV: torch.Tensor, uniforms_N: torch.Tensor, *, sampling: Sampling
) -> torch.Tensor:
    """Tokens [N] at the quantiles `uniforms_N` in [0, 1) of the distribution left by `sampling`.

    The probabilities already include the temperature. Both arguments may have several leading axes
    in common.
    """
    kept_NV = nucleus(most_likely(probabilities_NV, top_k=sampling.top_k), top_p=sampling.top_p)
    cumulative_NV = _cumulative(kept_NV)
    quantiles_N1 = (uniforms_N * cumulative_NV[..., -1])[..., None]
    # The first token whose cumulative probability exceeds the quantile; the clamp guards against
    # rounding beyond the last token.
    return torch.searchsorted(cumulative_NV, quantiles_N1, right=True)[..., 0].clamp(
        max=probabilities_NV.shape[-1] - 1
    )


def most_likely(probabilities: torch.Tensor, *, top_k: int | None) -> torch.Tensor:
    """Probabilities [..., V] of the `top_k` most likely tokens, renormalised; zeros elsewhere.

    Fan et al. 2018. If tokens at the border are equally likely, only as many as fit are kept.
    """
    if top_k is None or top_k >= probabilities.shape[-1]:
        return probabilities
    values, places = probabilities.topk(top_k, dim=-1)
    return torch.zeros_like(probabilities).scatter(
        -1, places, values / values.sum(-1, keepdim=True)
    )


def nucleus(probabilities: torch.Tensor, *, top_p: float) -> torch.Tensor:
    """Probabilities [..., V] with zeros outside of the smallest set that reaches `top_p`.

    Holtzman et al. 2019. The result is not normalised.
    """
    if top_p >= 1.0:
        return probabilities
    sorted_values, places = probabilities.sort(dim=-1, descending=True)
    before = _cumulative(sorted_values) - sorted_values
    return torch.zeros_like(probabilities).scatter(
        -1, places, torch.where(before < top_p, sorted_values, 0.0)
    )


def _cumulative(probabilities: torch.Tensor) -> torch.Tensor:
    """Running sums along the last axis.

    torch refuses to sum floats on a GPU this way in deterministic mode.
    """
    return in_fixed_point(probabilities) if probabilities.is_cuda else probabilities.cumsum(-1)


def in_fixed_point(probabilities: torch.Tensor) -> torch.Tensor:
    """Running sums of integers along the last axis, in float64: their order does not matter."""
    whole = (probabilities.double() * FIXED_POINT).long()
    return whole.cumsum(-1).double() / FIXED_POINT
