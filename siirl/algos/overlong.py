"""Overlong shaping: a response that comes near the length limit pays for it, so that the cut at the limit is no cliff.

A penalty on the reward of a sample, before advantages. The other answer to cut responses, leaving them out of the loss, is
`siirl.algos.filters.truncation_keep` (DAPO's overlong filtering).
"""

# B sample

import torch

from siirl.algos.checks import require_axes, require_finite
from siirl.errors import ConfigError, TensorError


def overlong_penalty(*, length_B: torch.Tensor, max_length: int, buffer: int, factor: float = 1.0) -> torch.Tensor:
    """Soft overlong punishment (DAPO, arXiv 2503.14476, section 3.4, equation 13), float64 [B], to be added to the rewards.

    0 up to `max_length - buffer` tokens, then falling linearly, `(max_length - buffer - length) / buffer`, to -1 at `max_length`,
    and -1 beyond; all of it times `factor`.

    Args:
        length_B: Tokens of each response.
        max_length: Tokens at which a response is cut.
        buffer: Tokens over which the penalty falls; the paper has 4096 of 20480.
        factor: Penalty at the limit; 1 is the paper's, the size of its reward.

    Raises:
        ConfigError: A buffer that is not within 1 and max_length, a negative factor.
        TensorError: A length that is negative or not finite.
    """
    if not 1 <= buffer <= max_length:
        raise ConfigError(f"buffer={buffer}: the overlong penalty falls over 1 to max_length={max_length} tokens.")
    if not factor >= 0:
        raise ConfigError(f"factor={factor}: the overlong penalty is subtracted, so it must not be negative.")
    require_axes(1, length=length_B)
    exact_B = length_B.to(torch.float64)
    require_finite(length=exact_B)
    if bool((exact_B < 0).any()):
        row = int((exact_B < 0).nonzero()[0])
        raise TensorError(f"length is {float(exact_B[row])} in row {row}: a number of tokens is not negative.")
    return factor * ((max_length - buffer - exact_B) / buffer).clamp(-1.0, 0.0)
