"""What the engine on the training module samples, and what ends a continuation."""

import numpy as np
import pytest
import torch
from hf_engines import ask, engine
from tiny_language_models import END, language_model, request, tokenizer

from siirl.errors import ConfigError

# Sampling


def test_top_k_of_one_is_greedy():
    model = language_model()
    (sampled,) = ask(engine(model, top_k=1), request("a", "17+25=", tokens=8))
    (greedy,) = ask(engine(model), request("a", "17+25=", tokens=8, greedy=True))
    assert sampled.tokens.tolist() == greedy.tokens.tolist()


def test_top_p_never_draws_outside_of_the_nucleus():
    model = language_model()
    with torch.no_grad():
        probabilities = model.causal_lm(input_ids=torch.tensor([[5]])).logits[0, -1].softmax(-1)
    ordered = probabilities.sort(descending=True)
    likely = ordered.indices[: int((ordered.values.cumsum(0) < 0.5).sum()) + 1].tolist()
    answers = ask(
        engine(model, top_p=0.5, max_running=200),
        *(request(str(i), (5,), tokens=1) for i in range(200)),
    )
    assert {int(answer.tokens[0]) for answer in answers} <= set(likely)
    np.testing.assert_allclose(
        answers[0].log_probs, probabilities[answers[0].tokens].log(), atol=1e-5
    )  # of the whole distribution


def test_greedy_and_sampled_requests_share_a_pass():
    model = language_model()
    greedy, sampled = ask(
        engine(model), request("a", "17+", tokens=8, greedy=True), request("b", "17+", tokens=8)
    )
    assert (
        greedy.tokens.tolist()
        == ask(engine(model), request("a", "17+", tokens=8, greedy=True))[0].tokens.tolist()
    )
    assert (
        sampled.tokens.tolist()
        == ask(engine(model), request("b", "17+", tokens=8))[0].tokens.tolist()
    )


def test_first_tokens_are_drawn_as_often_as_they_are_likely():
    model = language_model()
    with torch.no_grad():
        probabilities = (
            model.causal_lm(input_ids=torch.tensor([[5]])).logits[0, -1].softmax(-1).numpy()
        )
    answers = ask(
        engine(model, max_running=1000),
        *(request(str(i), (5,), tokens=1, seed=(i,)) for i in range(1000)),
    )
    counts = np.bincount(
        [int(answer.tokens[0]) for answer in answers], minlength=len(probabilities)
    )
    likely = probabilities > 0.01
    deviation = (counts - 1000 * probabilities)[likely] / np.sqrt(
        1000 * probabilities * (1 - probabilities)
    )[likely]
    assert np.abs(deviation).max() < 4  # standard deviations


# Endings


def test_a_stop_token_ends_a_continuation_and_is_kept():
    model = language_model()
    (free,) = ask(engine(model), request("a", "17+25=", tokens=12))
    token = int(free.tokens[4])
    stopping = engine(model)
    stopping.stop_ids = np.array([token])
    (answer,) = ask(stopping, request("a", "17+25=", tokens=12))
    first = free.tokens.tolist().index(token)
    assert answer.finish_reason == "stop"
    assert answer.tokens.tolist() == free.tokens[: first + 1].tolist()


def test_the_tokens_that_end_a_turn_are_the_tokenizers():
    assert engine().stop_ids.tolist() == [END]


def test_a_limit_ends_a_continuation():
    (answer,) = ask(engine(), request("a", "17+25=", tokens=3))
    assert (answer.finish_reason, len(answer.tokens)) == ("length", 3)


def test_a_stop_string_over_several_tokens_ends_a_continuation():
    model = language_model()
    (free,) = ask(engine(model), request("a", "17+25=", tokens=30))
    stop = tokenizer().decode(free.tokens[6:9].tolist())
    (answer,) = ask(engine(model), request("a", "17+25=", tokens=30, stop=("never said", stop)))
    assert answer.finish_reason == "stop"
    assert tokenizer().decode(answer.tokens.tolist()).endswith(stop)
    assert answer.tokens.tolist() == free.tokens[: len(answer.tokens)].tolist()


def test_each_token_carries_the_version_of_its_weights():
    model = language_model()
    versioned = engine(model)
    versioned.update_weights(3)
    (answer,) = ask(versioned, request("a", "x", tokens=4))
    assert answer.versions.tolist() == [3] * len(answer.tokens)


@pytest.mark.parametrize(
    ("prompt", "tokens", "reason"),
    [("x" * 100, 29, "limit is 128"), ("", 4, "at least 1"), ("x", 0, "at least 1")],
)
def test_an_impossible_request_is_refused(prompt, tokens, reason):
    with pytest.raises(ConfigError, match=reason):
        ask(engine(), request("a", prompt, tokens=tokens))


def test_a_request_that_fills_the_model_is_served():
    (answer,) = ask(engine(), request("a", "x" * 100, tokens=28, greedy=True))
    assert len(answer.tokens) <= 28
