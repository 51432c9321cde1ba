"""Log-probs and entropy from hidden states and output weights, without materialising all logits.

A language model's logits, [tokens, vocabulary], are by far the largest tensor of a training step.
Here they exist one block at a time: a slice of the vocabulary for a slice of the tokens. The
forward pass keeps three running numbers per token (the largest logit, the sum of exponentials, and
that sum weighted by the logits), so one pass suffices. The backward pass recomputes each block and
completes the gradient of one slice of weights before the next, so each slice is written once. The
cost: one of three products is computed twice.

With `z = hidden @ weight.T / temperature`, m its largest entry, `s = sum exp(z - m)` and
`t = sum exp(z - m) (z - m)`:
    log p(token) = (z_token - m) - log s        H = log s - t / s
Both terms of H are positive or zero, so nothing cancels.
"""

# N token (all leading axes flattened), D hidden size, V entry of the vocabulary; n, v a slice of
# tokens, of the vocabulary

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from siirl.algos.log_probs import TokenScores, check_scores, check_temperature, check_tokens
from siirl.algos.products import wide_product
from siirl.errors import TensorError

BLOCK_ELEMENTS = (
    1 << 22
    # logits in memory at a time: 16 MiB of float32, which mostly stays in a processor's last cache
)
# limit on the rows of a block: it leaves enough vocabulary entries that the product suits a matrix
# unit
BLOCK_TOKENS = 1024


def linear_token_scores(
    *,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    tokens: torch.Tensor,
    temperature: float = 1.0,
    check: bool = True,
) -> TokenScores:
    """Log-probs and entropy of `softmax(hidden @ weight.T / temperature)`.

    Both are differentiable in `hidden` and `weight`.

    Args:
        hidden: [..., D], the last hidden states, each at the position that predicts its token.
        weight: [V, D], the output weights, of the same dtype; no bias, as heads of language models
            have none.
        tokens: int64 [...], the chosen entries.
        temperature: Divides the logits.
        check: Refuse results that are not finite; see `siirl.algos.log_probs.token_scores`.

    Returns:
        Scores of the shape of `tokens`. Scores, logits and sums are float32 (float64 for float64
        inputs).

    Raises:
        ConfigError: A temperature that is not positive and finite.
        TensorError: Shapes or dtypes that do not fit, tokens outside of the vocabulary, NaN or
            infinity.
    """
    check_temperature(temperature)
    if (
        weight.ndim != 2
        or hidden.shape[-1:] != weight.shape[1:]
        or hidden.shape[:-1] != tokens.shape
    ):
        raise TensorError(
            f"hidden of shape {list(hidden.shape)} does not fit weight of shape "
            f"{list(weight.shape)} and tokens of shape {list(tokens.shape)}: [..., D], [V, D] and "
            "[...] are expected."
        )
    if hidden.dtype != weight.dtype:
        raise TensorError(
            f"hidden is {hidden.dtype} and weight is {weight.dtype}: cast one of them."
        )
    check_tokens(tokens, len(weight))
    log_probs_N, entropy_N = _LinearTokenScores.apply(
        hidden.reshape(-1, hidden.shape[-1]), weight, tokens.reshape(-1), temperature
    )  # type: ignore[no-untyped-call]
    scores = TokenScores(log_probs_N.view(tokens.shape), entropy_N.view(tokens.shape))
    if check:
        check_scores(scores, hidden=hidden, weight=weight)
    return scores


class _LinearTokenScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: torch.Tensor,
        weight_VD: torch.Tensor,
        tokens_N: torch.Tensor,
        temperature: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = torch.float64 if hidden_ND.dtype == torch.float64 else torch.float32
        log_probs_N = torch.empty(len(tokens_N), dtype=dtype, device=hidden_ND.device)
        entropy_N = torch.empty_like(log_probs_N)
        normalizer_N = torch.empty_like(log_probs_N)
        for n in _stretches(len(tokens_N), BLOCK_TOKENS):
            running = _RunningSoftmax(tokens_N[n], dtype)
            for v in _stretches(len(weight_VD), _width(tokens_N)):
                running.add(_logits(hidden_ND[n], weight_VD[v], temperature), v)
            log_probs_N[n], entropy_N[n], normalizer_N[n] = running.result()
        ctx.save_for_backward(hidden_ND, weight_VD, tokens_N, normalizer_N, entropy_N)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return log_probs_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_log_prob_N: torch.Tensor | None, of_entropy_N: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        """`d log p_token / dz = onehot - p` and `dH / dz = -p (log p + H)`, times the other factor
        of the product.
        """
        hidden_ND, weight_VD, tokens_N, normalizer_N, entropy_N = ctx.saved_tensors
        if of_log_prob_N is None and of_entropy_N is None:
            return None, None, None, None
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        dtype = normalizer_N.dtype
        hidden_gradient_ND = torch.zeros_like(hidden_ND, dtype=dtype) if needs_hidden else None
        weight_gradient_VD = torch.empty_like(weight_VD) if needs_weight else None
        for v in _stretches(len(weight_VD), _width(tokens_N)):
            of_weight_vD = torch.zeros_like(weight_VD[v], dtype=dtype) if needs_weight else None
            for n in _stretches(len(tokens_N), BLOCK_TOKENS):
                z_nv = _logits(hidden_ND[n], weight_VD[v], ctx.temperature)
                of_z_nv = _gradient_of_logits(
                    z_nv,
                    tokens_n=tokens_N[n] - v.start,
                    normalizer_n=normalizer_N[n],
                    entropy_n=entropy_N[n],
                    of_log_prob_n=None if of_log_prob_N is None else of_log_prob_N[n],
                    of_entropy_n=None if of_entropy_N is None else of_entropy_N[n],
                )
                of_product_nv = of_z_nv.div_(ctx.temperature).to(hidden_ND.dtype)
                if hidden_gradient_ND is not None:
                    _add_product(hidden_gradient_ND[n], of_product_nv, weight_VD[v])
                if of_weight_vD is not None:
                    _add_product(of_weight_vD, of_product_nv.T, hidden_ND[n])
            if weight_gradient_VD is not None:
                assert of_weight_vD is not None
                weight_gradient_VD[v] = of_weight_vD
        return (
            None if hidden_gradient_ND is None else hidden_gradient_ND.to(hidden_ND.dtype),
            weight_gradient_VD,
            None,
            None,
        )


class _RunningSoftmax:
    """Largest logit, sum of exponentials, and their sum weighted by the logits, over the vocabulary
    so far.
    """

    def __init__(self, tokens_n: torch.Tensor, dtype: torch.dtype) -> None:
        self.tokens_n = tokens_n
        self.largest_n = torch.full_like(tokens_n, -torch.inf, dtype=dtype)
        self.sum_n, self.weighed_n, self.chosen_n = (
            torch.zeros_like(self.largest_n) for _ in range(3)
        )

    def add(self, z_nv: torch.Tensor, v: slice) -> None:
        """Add the logits of a slice of the vocabulary; they are overwritten."""
        here_n = (self.tokens_n >= v.start) & (self.tokens_n < v.stop)
        place_n = torch.where(here_n, self.tokens_n - v.start, 0)
        self.chosen_n = torch.where(here_n, z_nv.gather(1, place_n[:, None])[:, 0], self.chosen_n)
        largest_n = torch.maximum(self.largest_n, z_nv.amax(1))
        moved_n = self.largest_n - largest_n  # shifts the sums so far; minus infinity at first
        factor_n = moved_n.exp()
        self.weighed_n = torch.where(
            self.sum_n > 0, factor_n * (self.weighed_n + self.sum_n * moved_n), self.weighed_n
        )
        below_nv = z_nv.sub_(largest_n[:, None])
        powers_nv = below_nv.exp()
        self.sum_n = factor_n * self.sum_n + powers_nv.sum(1)
        self.weighed_n += torch.linalg.vecdot(powers_nv, below_nv)
        self.largest_n = largest_n

    def result(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log-prob of the token, entropy, and log of the sum of exponentials."""
        log_sum_n = self.sum_n.log()
        return (
            (self.chosen_n - self.largest_n) - log_sum_n,
            log_sum_n - self.weighed_n / self.sum_n,
            self.largest_n + log_sum_n,
        )


def _gradient_of_logits(
    z_nv: torch.Tensor,
    *,
    tokens_n: torch.Tensor,
    normalizer_n: torch.Tensor,
    entropy_n: torch.Tensor,
    of_log_prob_n: torch.Tensor | None,
    of_entropy_n: torch.Tensor | None,
) -> torch.Tensor:
    """Gradient of the logits of a block, which are overwritten. Tokens outside of the block have
    numbers below 0 or above its width.
    """
    log_p_nv = z_nv.sub_(normalizer_n[:, None])
    p_nv = log_p_nv.exp()
    if of_entropy_n is None:
        gradient_nv = p_nv
        gradient_nv.mul_(-_column(of_log_prob_n))
    else:
        slope_n = (
            entropy_n * of_entropy_n
            if of_log_prob_n is None
            else entropy_n * of_entropy_n + of_log_prob_n
        )
        gradient_nv = log_p_nv.mul_(-of_entropy_n[:, None]).sub_(slope_n[:, None]).mul_(p_nv)
    if of_log_prob_n is not None:
        here_n = (tokens_n >= 0) & (tokens_n < z_nv.shape[1])
        place_n = torch.where(here_n, tokens_n, 0)
        gradient_nv.scatter_add_(
            1,
            place_n[:, None],
            torch.where(here_n, of_log_prob_n, torch.zeros_like(of_log_prob_n))[:, None],
        )
    return gradient_nv


def _column(numbers_n: torch.Tensor | None) -> torch.Tensor:
    assert numbers_n is not None
    return numbers_n[:, None]


def _logits(hidden_nD: torch.Tensor, weight_vD: torch.Tensor, temperature: float) -> torch.Tensor:
    z_nv = wide_product(hidden_nD, weight_vD.T)
    return z_nv if temperature == 1.0 else z_nv.div_(temperature)


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """`total += left @ right`, in one operation if the dtypes are equal."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _width(tokens_N: torch.Tensor) -> int:
    """Vocabulary entries per block."""
    return max(1, BLOCK_ELEMENTS // max(1, min(len(tokens_N), BLOCK_TOKENS)))


def _stretches(length: int, width: int) -> Iterator[slice]:
    return (slice(start, min(start + width, length)) for start in range(0, length, width))
