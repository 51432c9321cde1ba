"""Drawing tokens: by inverting the cumulative distribution at numbers that the episode brings.

No generator is here. A row's tokens depend on its own logits and numbers alone, whatever it is
batched with, and whatever device computes. Top-k and top-p choose what may be drawn; log-probs stay
those of the whole distribution, which is what training scores.
"""

# N row, ... further axes, V token of the vocabulary

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Sampling:
    """From what tokens are drawn; the same for every request of an engine, because training divides
    by the same temperature.
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
    """Tokens [N] at the quantiles `uniforms_N`, numbers in [0, 1), of what `sampling` leaves of the
    rows' probabilities.

    The temperature is in the probabilities already. Leading axes may be more than one, the same for
    both.
    """
    kept_NV = nucleus(most_likely(probabilities_NV, top_k=sampling.top_k), top_p=sampling.top_p)
    cumulative_NV = kept_NV.cumsum(-1)
    quantiles_N1 = (uniforms_N * cumulative_NV[..., -1])[..., None]
    # The first token whose cumulative probability exceeds the quantile; rounding must not point
    # behind the last token.
    return torch.searchsorted(cumulative_NV, quantiles_N1, right=True)[..., 0].clamp(
        max=probabilities_NV.shape[-1] - 1
    )


def most_likely(probabilities: torch.Tensor, *, top_k: int | None) -> torch.Tensor:
    """Probabilities [..., V] of the `top_k` most likely tokens, zeros elsewhere, adding up to one
    again (Fan et al. 2018).

    Of equally likely tokens at the border, as many are kept as there is room for.
    """
    if top_k is None or top_k >= probabilities.shape[-1]:
        return probabilities
    values, places = probabilities.topk(top_k, dim=-1)
    return torch.zeros_like(probabilities).scatter(
        -1, places, values / values.sum(-1, keepdim=True)
    )


def nucleus(probabilities: torch.Tensor, *, top_p: float) -> torch.Tensor:
    """Probabilities [..., V] with zeros outside of the smallest set that reaches `top_p` (Holtzman
    et al. 2019); not normalised.
    """
    if top_p >= 1.0:
        return probabilities
    sorted_values, places = probabilities.sort(dim=-1, descending=True)
    before = sorted_values.cumsum(-1) - sorted_values
    return torch.zeros_like(probabilities).scatter(
        -1, places, torch.where(before < top_p, sorted_values, 0.0)
    )
