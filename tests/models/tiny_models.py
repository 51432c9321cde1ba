"""Tiny causal language models of several families, with random weights from a fixed seed."""

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    PhiConfig,
    Qwen3Config,
)

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
GPT2_SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 32,
    "eos_token_id": 1,
}
CONFIGS = {
    "tied": lambda: Qwen3Config(**SIZES, tie_word_embeddings=True),
    "separate": lambda: LlamaConfig(**SIZES, tie_word_embeddings=False),
    "learnt positions": lambda: GPT2Config(**GPT2_SIZES, bos_token_id=None),
    "biased head": lambda: PhiConfig(**{**SIZES, "num_key_value_heads": 2}),
    "capped logits": lambda: Gemma2Config(**SIZES, final_logit_softcapping=0.1),
    "recurrent": lambda: MambaConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, state_size=4
    ),
}


def tiny_causal_lm(kind: str, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A model of one of the `CONFIGS`; see `spread_causal_lm`."""
    return spread_causal_lm(CONFIGS[kind](), seed=seed, dtype=dtype)


def spread_causal_lm(config: Any, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A model in evaluation mode, with weights so large that tokens give different outputs."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.3 * torch.randn_like(weight))
    return model


def move_adapters(model, *, by=0.3, seed=2):
    """Draw random LoRA adapters, which change the output: peft starts them at no change."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".lora_" in name:
                weight.copy_(by * torch.randn(weight.shape, generator=generator))
