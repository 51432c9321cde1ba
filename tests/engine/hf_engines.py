"""Makes HFEngine on tiny models, and sends it requests."""

import asyncio

import numpy as np
from tiny_language_models import language_model, tokenizer

from siirl.engine.rollout.generation import GenerationRequest, GenerationResponse
from siirl.engine.rollout.hf.hf_engine import HFEngine

PROMPTS = ("1+2=", "17+25=", "what is 3 times 4?", "x", "abcdefghij" * 4)


def engine(model=None, **options) -> HFEngine:
    settings = {"temperature": 1.0, "max_running": 8, "lockstep": False, **options}
    return HFEngine(model=model or language_model(), tokenizer=tokenizer(), **settings)


def ask(engine: HFEngine, *requests: GenerationRequest) -> list[GenerationResponse]:
    async def everybody():
        return await asyncio.gather(*(engine.agenerate(request) for request in requests))

    return asyncio.run(everybody())


def batches(model) -> list[tuple[int, int]]:
    """Rows and tokens of the forward passes from now on."""
    shapes: list[tuple[int, int]] = []
    model.causal_lm.get_input_embeddings().register_forward_hook(
        lambda module, inputs, output: shapes.append(tuple(inputs[0].shape))
    )
    return shapes


def never_ending(model=None, **options) -> HFEngine:
    unstoppable = engine(model, **options)
    unstoppable.stop_ids = np.array([], np.int64)
    return unstoppable
