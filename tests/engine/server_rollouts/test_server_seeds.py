"""Inference servers that draw by the seed of a request, by one seed, or by seeds of their own."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from inference_server import InferenceServer
from inference_servers import engine_of, serving
from server_episodes import ask, model
from tiny_language_models import request, tokenizer

from siirl.errors import RunFailed
from siirl.models.language_model import LanguageModel


class Peaked(InferenceServer):
    """A server whose weights prefer one token, and that draws by the seed `seed_of(request)`."""

    def __init__(self, seed_of: Callable[[Mapping[str, Any]], int]) -> None:
        super().__init__(peaked_model(), tokenizer())
        self.seed_of = seed_of

    async def _continued(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return await super()._continued({**body, "seed": self.seed_of(body)})


def peaked_model() -> LanguageModel:
    made = model()
    with torch.no_grad():
        made.causal_lm.get_output_embeddings().weight.mul_(100.0)
    return made


def test_a_server_that_ignores_seeds_is_refused() -> None:
    refused = pytest.raises(RunFailed, match="ignores the `seed` of a request: it gives the same")
    with serving(Peaked(lambda body: 0).app()) as url, refused:
        engine_of(url, model=peaked_model(), tokenizer=tokenizer())


def test_a_policy_that_repeats_its_answers_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    """The seeds are used, but the weights leave no choice: its answers are equal."""
    with serving(Peaked(lambda body: body["seed"]).app()) as url:
        engine = engine_of(url, model=peaked_model(), tokenizer=tokenizer())
        try:
            answers = ask(engine, *(request(str(i), "x", tokens=8) for i in range(4)))
            assert len({tuple(answer.tokens.tolist()) for answer in answers}) == 1
        finally:
            engine.close()
    assert "two answers for one seed" not in caplog.text


def test_a_server_with_seeds_of_its_own_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    numbers = itertools.count()
    with serving(Peaked(lambda body: next(numbers)).app()) as url:
        engine_of(url, model=peaked_model(), tokenizer=tokenizer()).close()
    assert "gives two answers for one seed" in caplog.text
