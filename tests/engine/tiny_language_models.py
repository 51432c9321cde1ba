"""Decoders of a few thousand weights with the shipped tokenizer, for tests of text engines."""

import functools
from typing import Any

import numpy as np
import torch

from siirl.engine.rollout.generation import GenerationRequest
from siirl.models.chat import ChatTokenizer
from siirl.models.language_model import LanguageModel
from siirl.models.tiny_lm import tiny_tokenizer

SHAPE = {
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "pad_token_id": 256,
}
END = 257
"""The token that ends a turn in the shipped tokenizer."""


def language_model(
    family: str = "Qwen2", *, heads: int = 4, shared: int = 1, seed: int = 0, **options: Any
) -> LanguageModel:
    """A decoder of `family` in which `shared` query heads use one key head.

    Its logits are spread widely enough to differ.
    """
    import transformers

    config = getattr(transformers, f"{family}Config")(
        **SHAPE,
        num_attention_heads=heads,
        num_key_value_heads=heads // shared,
        eos_token_id=END,
        **options,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        causal_lm = getattr(transformers, f"{family}ForCausalLM")(config).eval()
        for weight in causal_lm.parameters():
            if weight.ndim == 2:
                torch.nn.init.normal_(weight, std=0.3)
    return LanguageModel(causal_lm)


@functools.cache
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer(tiny_tokenizer())


def request(
    uid: str, prompt: str | tuple[int, ...], tokens: int = 6, **options: Any
) -> GenerationRequest:
    """A request whose seed is derived from its uid, by default."""
    ids = tuple(prompt.encode()) if isinstance(prompt, str) else prompt
    return GenerationRequest(
        **{
            "uid": uid,
            "input_ids": ids,
            "max_new_tokens": tokens,
            "seed": tuple(uid.encode()),
            **options,
        }
    )


def scored(
    model: LanguageModel, prompt: tuple[int, ...], tokens: np.ndarray, *, temperature: float = 1.0
) -> torch.Tensor:
    """Log-probs of a continuation, by one forward pass without a cache."""
    ids = torch.tensor([[*prompt, *tokens.tolist()]])
    with torch.no_grad():
        logits = model.causal_lm(input_ids=ids).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(-1, torch.tensor(tokens)[:, None])[
        :, 0
    ]
