"""Log-probs and entropy from hidden states and output weights against log_softmax of all
logits, which are never materialised.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_batches import QUICK
from ragged import SEEDS

from siirl.algos import linear_log_probs
from siirl.algos.linear_log_probs import linear_token_scores
from siirl.algos.log_probs import token_scores
from siirl.errors import ConfigError, TensorError

VOCABULARY, SIZE = 23, 4


def example(seed, *, dtype=torch.float64, scale=3.0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    hidden = normal(3, 5, SIZE).to(dtype).requires_grad_()
    weight = (scale * normal(VOCABULARY, SIZE)).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(VOCABULARY, (3, 5), generator=generator), normal(2, 3, 5)


def reference(hidden, weight, tokens, temperature):
    log_p = torch.log_softmax(hidden @ weight.T / temperature, dim=-1)
    return log_p.gather(-1, tokens[..., None])[..., 0], -(log_p.exp() * log_p).sum(-1)


@settings(QUICK, max_examples=15)
@given(
    seed=SEEDS,
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    elements=st.sampled_from([1, 12, 1 << 22]),
    rows=st.sampled_from([1, 4, 99]),
)
def test_values_and_gradients_are_those_of_log_softmax_whatever_the_blocks(
    seed, temperature, elements, rows
):
    hidden, weight, tokens, weights = example(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear_log_probs, "BLOCK_ELEMENTS", elements)
        patch.setattr(linear_log_probs, "BLOCK_TOKENS", rows)
        scores = linear_token_scores(
            hidden=hidden, weight=weight, tokens=tokens, temperature=temperature
        )
        total = (weights[0] * scores.log_probs_BT + weights[1] * scores.entropy_BT).sum()
        found = torch.autograd.grad(total, (hidden, weight))
    expected = reference(hidden, weight, tokens, temperature)
    wanted = torch.autograd.grad(
        (weights[0] * expected[0] + weights[1] * expected[1]).sum(), (hidden, weight)
    )
    torch.testing.assert_close(
        (scores.log_probs_BT, scores.entropy_BT), expected, rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("place", [0, 1])
def test_gradient_of_log_probs_alone_and_of_entropy_alone(place):
    hidden, weight, tokens, _ = example(3)
    scores = linear_token_scores(hidden=hidden, weight=weight, tokens=tokens)
    found = torch.autograd.grad(
        (scores.log_probs_BT, scores.entropy_BT)[place].sum(), (hidden, weight)
    )
    wanted = torch.autograd.grad(
        reference(hidden, weight, tokens, 1.0)[place].sum(), (hidden, weight)
    )
    torch.testing.assert_close(found, wanted)


def test_the_same_scores_as_from_logits():
    hidden, weight, tokens, _ = example(4, dtype=torch.float32)
    found, expected = (
        linear_token_scores(hidden=hidden, weight=weight, tokens=tokens),
        token_scores(logits=hidden @ weight.T, tokens=tokens),
    )
    torch.testing.assert_close(found.log_probs_BT, expected.log_probs_BT)
    torch.testing.assert_close(found.entropy_BT, expected.entropy_BT)


def test_packed_rows_have_the_scores_of_padded_ones():
    hidden, weight, tokens, _ = example(5)
    padded = linear_token_scores(hidden=hidden, weight=weight, tokens=tokens)
    keep = torch.arange(5) < torch.tensor([1, 5, 3])[:, None]
    packed = linear_token_scores(hidden=hidden[keep], weight=weight, tokens=tokens[keep])
    torch.testing.assert_close(packed.log_probs_BT, padded.log_probs_BT[keep])
    torch.testing.assert_close(packed.entropy_BT, padded.entropy_BT[keep])


def test_a_frozen_head_costs_no_gradient():
    hidden, weight, tokens, _ = example(6)
    weight.requires_grad_(False)
    linear_token_scores(hidden=hidden, weight=weight, tokens=tokens).log_probs_BT.sum().backward()
    assert weight.grad is None
    assert hidden.grad is not None


def test_bfloat16_has_logits_and_sums_in_float32():
    hidden, weight, tokens, _ = example(7, dtype=torch.bfloat16)
    scores = linear_token_scores(hidden=hidden, weight=weight, tokens=tokens)
    scores.log_probs_BT.sum().backward()
    expected = torch.log_softmax(hidden.float() @ weight.float().T, -1).gather(
        -1, tokens[..., None]
    )[..., 0]
    torch.testing.assert_close(scores.log_probs_BT, expected, rtol=1e-5, atol=1e-5)
    assert (hidden.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.bfloat16)


def test_large_logits_neither_overflow_nor_lose_the_entropy():
    hidden = torch.tensor([[1.0]])
    weight = torch.tensor([[3e4], [3e4], [-3e4]])
    scores = linear_token_scores(hidden=hidden, weight=weight, tokens=torch.tensor([1]))
    assert scores.log_probs_BT.item() == pytest.approx(-0.693147, rel=1e-5)
    assert scores.entropy_BT.item() == pytest.approx(0.693147, rel=1e-5)


class _LargestTensor(torch.utils._python_dispatch.TorchDispatchMode):
    """Notices the largest tensor that any operation makes."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(getattr(self, "largest", 0), tensor.numel())
        return result


def test_no_tensor_is_as_large_as_all_logits_not_even_in_the_backward_pass(monkeypatch):
    monkeypatch.setattr(linear_log_probs, "BLOCK_ELEMENTS", 16)
    hidden, weight, tokens, _ = example(8)
    with _LargestTensor() as watch:
        scores = linear_token_scores(hidden=hidden, weight=weight, tokens=tokens)
        (scores.log_probs_BT + scores.entropy_BT).sum().backward()
    # the gradient of the weights; all logits would be 15 * 23
    assert watch.largest == VOCABULARY * SIZE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"tokens": torch.zeros(3, 4, dtype=torch.long)},
            r"hidden of shape \[3, 5, 4\] does not fit .* tokens of shape \[3, 4\]",
        ),
        ({"weight": torch.zeros(VOCABULARY, 3, dtype=torch.float64)}, r"weight of shape \[23, 3\]"),
        (
            {"weight": torch.zeros(VOCABULARY, SIZE)},
            "hidden is torch.float64 and weight is torch.float32",
        ),
        ({"tokens": torch.full((3, 5), 23)}, r"outside of \[0, 23\)"),
    ],
)
def test_tensors_of_other_shapes_are_refused(change, message):
    hidden, weight, tokens, _ = example(0)
    with pytest.raises(TensorError, match=message):
        linear_token_scores(**{"hidden": hidden, "weight": weight, "tokens": tokens, **change})


@pytest.mark.parametrize(
    ("name", "place", "message"),
    [("hidden", (2, 1, 0), r"row 2, place \[1, 0\]"), ("weight", (7, 3), r"row 7, place \[3\]")],
)
def test_nan_is_refused_with_its_tensor_and_row(name, place, message):
    hidden, weight, tokens, _ = example(0)
    given = {"hidden": hidden.detach().clone(), "weight": weight.detach().clone()}
    given[name][place] = torch.nan
    with pytest.raises(TensorError, match=f"{name} is nan in {message}"):
        linear_token_scores(**given, tokens=tokens)


def test_greedy_temperature_is_refused():
    hidden, weight, tokens, _ = example(0)
    with pytest.raises(ConfigError, match=r"temperature=0"):
        linear_token_scores(hidden=hidden, weight=weight, tokens=tokens, temperature=0)


def test_no_tokens_have_no_scores():
    scores = linear_token_scores(
        hidden=torch.zeros(0, SIZE),
        weight=torch.zeros(VOCABULARY, SIZE),
        tokens=torch.zeros(0, dtype=torch.long),
    )
    assert scores.log_probs_BT.shape == scores.entropy_BT.shape == (0,)
