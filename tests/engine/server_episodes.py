"""Requests to the engine of an inference server, and measures of its answers."""

import asyncio

import numpy as np
import pytest
from tiny_language_models import language_model, request, scored
from tiny_policies import Trained

from siirl.engine.rollout.generation import GenerationRequest, GenerationResponse
from siirl.engine.rollout.server.server_engine import ServerEngine
from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.weight_sync import WeightSync
from siirl.errors import SimulationFailed
from siirl.models.language_model import LanguageModel

TEMPERATURE = 1.3
REQUESTS = [
    request(str(i), prompt, tokens=8)
    for i, prompt in enumerate(("1+2=", "what is 3 times 4?", "x"))
]
LONG = request("long", "x", tokens=120, seed=(3,))


def model(seed: int = 0) -> LanguageModel:
    return language_model("Qwen3", heads=2, head_dim=32, tie_word_embeddings=True, seed=seed)


def ask(engine: ServerEngine, *requests: GenerationRequest) -> list[GenerationResponse]:
    async def everybody() -> list[GenerationResponse]:
        return await asyncio.gather(*(engine.agenerate(request) for request in requests))

    return asyncio.run(everybody())


def gap(engine: ServerEngine, *requests: GenerationRequest) -> float:
    """Largest difference between the server's log-probs and those of the trained module."""
    return max(
        float(
            np.abs(
                answer.log_probs
                - scored(
                    engine.model, asked.input_ids, answer.tokens, temperature=TEMPERATURE
                ).numpy()
            ).max()
        )
        for asked, answer in zip(requests, ask(engine, *requests), strict=True)
    )


def failure(engine: ServerEngine) -> str:
    """The sentence with which an episode fails."""
    with pytest.raises(SimulationFailed) as failed:
        ask(engine, REQUESTS[0])
    return str(failed.value)


def sync(engine: ServerEngine) -> None:
    WeightSync(
        trained=Trained(engine.model),  # type: ignore[arg-type]
        acting=engine,
        engine=engine,
        ranks=OneProcess(),
    ).sync()
