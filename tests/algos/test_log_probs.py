"""Log-probs and entropy against log_softmax, values and gradients, and refused inputs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ragged import QUICK, SEEDS

from siirl.algos import log_probs
from siirl.algos.log_probs import token_scores
from siirl.errors import ConfigError, TensorError


def reference(logits, tokens, temperature):
    log_p = torch.log_softmax(logits / temperature, dim=-1)
    return log_p.gather(-1, tokens[..., None])[..., 0], torch.distributions.Categorical(
        logits=log_p
    ).entropy()


def example(seed, *, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    logits = (
        (3 * torch.randn(4, 5, 11, generator=generator, dtype=torch.float64))
        .to(dtype)
        .requires_grad_()
    )
    return (
        logits,
        torch.randint(11, (4, 5), generator=generator),
        torch.randn(2, 4, 5, generator=generator, dtype=torch.float64),
    )


def test_two_equal_logits_are_one_bit():
    scores = token_scores(logits=torch.zeros(1, 2), tokens=torch.tensor([1]))
    assert scores.log_probs_BT.item() == pytest.approx(-0.693147)
    assert scores.entropy_BT.item() == pytest.approx(0.693147)


def test_temperature_divides_the_logits():
    logits, tokens = torch.tensor([[0.0, 4.0]]), torch.tensor([0])
    cool = token_scores(logits=logits, tokens=tokens, temperature=2.0)
    assert (
        cool.log_probs_BT.item()
        == token_scores(logits=logits / 2, tokens=tokens).log_probs_BT.item()
    )


@QUICK
@given(
    seed=SEEDS,
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    chunk=st.sampled_from([1, 25, 1 << 22]),
)
def test_values_and_gradients_are_those_of_log_softmax_whatever_the_chunk(seed, temperature, chunk):
    logits, tokens, weights = example(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_probs, "CHUNK_ELEMENTS", chunk)
        scores = token_scores(logits=logits, tokens=tokens, temperature=temperature)
        (found,) = torch.autograd.grad(
            (weights[0] * scores.log_probs_BT + weights[1] * scores.entropy_BT).sum(), logits
        )
    expected = reference(logits, tokens, temperature)
    (wanted,) = torch.autograd.grad(
        (weights[0] * expected[0] + weights[1] * expected[1]).sum(), logits
    )
    torch.testing.assert_close((scores.log_probs_BT, scores.entropy_BT), expected)
    torch.testing.assert_close(found, wanted)


def test_gradient_of_log_probs_alone_and_of_entropy_alone():
    logits, tokens, _ = example(3)
    for place, name in enumerate(("log_probs_BT", "entropy_BT")):
        expected = reference(logits, tokens, 1.0)[place]
        (found,) = torch.autograd.grad(
            getattr(token_scores(logits=logits, tokens=tokens), name).sum(), logits
        )
        torch.testing.assert_close(found, torch.autograd.grad(expected.sum(), logits)[0])


def test_bfloat16_logits_are_computed_in_float32():
    logits, tokens, _ = example(1, dtype=torch.bfloat16)
    scores = token_scores(logits=logits, tokens=tokens)
    scores.log_probs_BT.sum().backward()
    torch.testing.assert_close(scores.log_probs_BT, reference(logits.float(), tokens, 1.0)[0])
    assert logits.grad.dtype == torch.bfloat16


def test_a_forbidden_entry_has_no_part_in_entropy_and_gradient():
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], requires_grad=True)
    scores = token_scores(logits=logits, tokens=torch.tensor([0]))
    (scores.log_probs_BT + scores.entropy_BT).sum().backward()
    assert scores.entropy_BT.item() == pytest.approx(0.693147)
    assert logits.grad.tolist() == [pytest.approx([0.5, -0.5, 0.0])]


def test_a_forbidden_entry_that_was_chosen_is_refused():
    with pytest.raises(TensorError, match="log_probs is -inf in row 1"):
        token_scores(
            logits=torch.tensor([[0.0, 0.0], [0.0, -torch.inf]]), tokens=torch.tensor([0, 1])
        )


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_are_refused_with_their_row(bad):
    logits = torch.zeros(3, 2)
    logits[2, 0] = bad
    with pytest.raises(TensorError, match=rf"logits is {bad} in row 2, place \[0\]"):
        token_scores(logits=logits, tokens=torch.tensor([0, 0, 1]))


def test_tokens_outside_of_the_vocabulary_are_refused():
    with pytest.raises(TensorError, match=r"from 0 to 7, outside of \[0, 5\)"):
        token_scores(logits=torch.zeros(2, 5), tokens=torch.tensor([0, 7]))


def test_one_rows_logits_are_not_broadcast():
    with pytest.raises(
        TensorError, match=r"logits of shape \[1, 5\] do not fit tokens of shape \[2\]"
    ):
        token_scores(logits=torch.zeros(1, 5), tokens=torch.tensor([0, 1]))


def test_greedy_temperature_is_refused():
    with pytest.raises(ConfigError, match=r"temperature=0.0"):
        token_scores(logits=torch.zeros(1, 5), tokens=torch.tensor([0]), temperature=0.0)
