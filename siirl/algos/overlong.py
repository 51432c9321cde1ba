"""Overlong shaping: a reward penalty that grows as a response approaches the length limit.

It is added to a sample's reward before advantages. The alternative, excluding truncated responses
from the loss, is `siirl.algos.filters.truncation_keep` (DAPO's overlong filtering).
"""

# B sample

import math

import torch

from siirl.algos.tensor_checks import require_counts
from siirl.errors import ConfigError


def overlong_penalty(
    *, length_B: torch.Tensor, max_length: int, buffer: int, factor: float = 1.0
) -> torch.Tensor:
    """Soft overlong punishment to add to the rewards, float64 [B].

    Source: DAPO, arXiv 2503.14476, section 3.4, equation 13. 0 up to `max_length - buffer` tokens,
    then linear, `(max_length - buffer - length) / buffer`, to -1 at `max_length`, and -1 beyond;
    all times `factor`.

    Args:
        length_B: Tokens of each response.
        max_length: Tokens at which a response is cut.
        buffer: Tokens over which the penalty falls; the paper has 4096 of 20480.
        factor: Penalty at the limit; 1 is the paper's, the size of its reward.

    Raises:
        ConfigError: A buffer outside [1, max_length], or a negative factor.
        TensorError: A length that is negative or not finite.
    """
    if not 1 <= buffer <= max_length:
        raise ConfigError(
            f"buffer={buffer}: the overlong penalty falls over 1 to max_length={max_length} tokens."
        )
    if not 0 <= factor < math.inf:
        raise ConfigError(
            f"factor={factor}: the overlong penalty is subtracted, so it must not be negative."
        )
    require_counts(length=length_B)
    return factor * ((max_length - buffer - length_B.to(torch.float64)) / buffer).clamp(-1.0, 0.0)
