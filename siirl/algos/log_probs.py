"""Log-probs of chosen tokens and entropy of the distribution, from logits, a few rows at a time.

`log_softmax` of all logits in float32, kept for the backward pass, is the largest tensor of a
training step. Here only the logits are kept, and one number per token; softmax is recomputed in the
backward pass, chunk by chunk. The temperature divides the logits here and nowhere else, so training
log-probs are those of the distribution that acted. `siirl.algos.linear_log_probs` starts from
hidden states and never materialises all logits.
"""

# N token (all leading axes flattened), V entry of the vocabulary (action bin)

import math
from dataclasses import dataclass
from typing import Any

import torch

from siirl.algos.tensor_checks import require_finite
from siirl.errors import ConfigError, TensorError

CHUNK_ELEMENTS = 1 << 22  # 16 MiB of float32: large enough for speed, small next to any model


@dataclass(frozen=True)
class TokenScores:
    """A policy's scores of the chosen tokens; both have the shape of the tokens."""

    log_probs_BT: torch.Tensor
    """Log-prob of the chosen token."""
    entropy_BT: torch.Tensor
    """Entropy of the token's distribution in nats."""


def token_scores(
    *, logits: torch.Tensor, tokens: torch.Tensor, temperature: float = 1.0, check: bool = True
) -> TokenScores:
    """Log-probs and entropy, both differentiable, float32 (float64 for float64 logits).

    Args:
        logits: [..., V], of any floating dtype. Minus infinity excludes an entry; a chosen token
            must not be excluded.
        tokens: int64 [...], the chosen entries.
        temperature: Divides the logits.
        check: Refuse results that are not finite. False returns them: in a pass shared with other
            ranks, only the loss may raise.

    Raises:
        ConfigError: A temperature that is not positive and finite.
        TensorError: Shapes that do not fit, tokens outside of the vocabulary, NaN or infinity.
    """
    check_temperature(temperature)
    if logits.shape[:-1] != tokens.shape:
        raise TensorError(
            f"logits of shape {list(logits.shape)} do not fit tokens of shape {list(tokens.shape)}."
        )
    vocabulary = logits.shape[-1]
    check_tokens(tokens, vocabulary)
    log_probs_N, entropy_N = _TokenScores.apply(
        logits.reshape(-1, vocabulary), tokens.reshape(-1), temperature
    )  # type: ignore[no-untyped-call]
    scores = TokenScores(log_probs_N.view(tokens.shape), entropy_N.view(tokens.shape))
    if check:
        check_scores(scores, may_forbid=True, logits=logits)
    return scores


def check_scores(scores: TokenScores, *, may_forbid: bool = False, **inputs: torch.Tensor) -> None:
    """Raise TensorError for scores that are not finite; the message names the faulty input, if any.

    With `may_forbid`, minus infinity in an input is valid: it excludes an entry.
    """
    log_probs, entropy = scores.log_probs_BT.detach(), scores.entropy_BT.detach()
    if bool(torch.isfinite(log_probs).all() & torch.isfinite(entropy).all()):
        return
    for name, tensor in inputs.items():
        require_finite(mask=tensor != -torch.inf if may_forbid else None, **{name: tensor.detach()})
    require_finite(log_probs=log_probs, entropy=entropy)


def check_temperature(temperature: float) -> None:
    """Raise ConfigError for a temperature that is not positive and finite."""
    if not 0 < temperature < math.inf:
        raise ConfigError(
            f"temperature={temperature} must be positive: logits are divided by it. Greedy choice "
            "has no log-probs."
        )


def check_tokens(tokens: torch.Tensor, vocabulary: int) -> None:
    """Raise TensorError for tokens outside of the vocabulary."""
    if tokens.numel() and (int(tokens.min()) < 0 or int(tokens.max()) >= vocabulary):
        raise TensorError(
            f"tokens range from {int(tokens.min())} to {int(tokens.max())}, outside of "
            f"[0, {vocabulary})."
        )


class _TokenScores(torch.autograd.Function):
    """`log p = z - logsumexp(z)` and `H = -sum p log p`, with `z = logits / temperature`.

    Both are recomputed in the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, logits_NV: torch.Tensor, tokens_N: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = torch.float64 if logits_NV.dtype == torch.float64 else torch.float32
        log_probs_N = torch.empty(len(tokens_N), dtype=dtype, device=logits_NV.device)
        entropy_N = torch.empty_like(log_probs_N)
        normalizer_N = torch.empty_like(log_probs_N)
        for rows in _chunks(logits_NV):
            z_NV = logits_NV[rows].to(dtype) / temperature
            normalizer_N[rows] = z_NV.logsumexp(-1)
            log_p_NV = z_NV - normalizer_N[rows, None]
            log_probs_N[rows] = log_p_NV.gather(1, tokens_N[rows, None])[:, 0]
            entropy_N[rows] = -_p_log_p(log_p_NV).sum(-1)
        ctx.save_for_backward(logits_NV, tokens_N, normalizer_N, entropy_N)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return log_probs_N, entropy_N

    @staticmethod
    def backward(
        ctx: Any, *gradients: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, None, None]:
        """`d log p_token / dz = onehot - p` and `dH / dz = -p (log p + H)`."""
        logits_NV, tokens_N, normalizer_N, entropy_N = ctx.saved_tensors
        of_log_prob_N, of_entropy_N = gradients
        if of_log_prob_N is None and of_entropy_N is None:
            return None, None, None
        gradient_NV = torch.empty_like(logits_NV)
        for rows in _chunks(logits_NV):
            log_p_NV = (
                logits_NV[rows].to(normalizer_N.dtype) / ctx.temperature - normalizer_N[rows, None]
            )
            p_NV = log_p_NV.exp()
            chunk_NV = torch.zeros_like(p_NV)
            if of_log_prob_N is not None:
                chunk_NV -= of_log_prob_N[rows, None] * p_NV
                chunk_NV.scatter_add_(1, tokens_N[rows, None], of_log_prob_N[rows, None])
            if of_entropy_N is not None:
                chunk_NV -= of_entropy_N[rows, None] * (
                    _p_log_p(log_p_NV) + p_NV * entropy_N[rows, None]
                )
            gradient_NV[rows] = (chunk_NV / ctx.temperature).to(logits_NV.dtype)
        return gradient_NV, None, None


def _p_log_p(log_p_NV: torch.Tensor) -> torch.Tensor:
    """`p log p`, and its limit 0 where p is 0."""
    return torch.where(
        log_p_NV == -torch.inf, torch.zeros_like(log_p_NV), log_p_NV.exp() * log_p_NV
    )


def _chunks(logits_NV: torch.Tensor) -> list[slice]:
    rows = max(1, CHUNK_ELEMENTS // max(1, logits_NV.shape[1]))
    return [slice(start, start + rows) for start in range(0, len(logits_NV), rows)]
