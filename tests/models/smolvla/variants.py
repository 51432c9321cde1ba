"""Configurations and types of the tiny SmolVLA, for LeRobot and for siirl."""

import torch

VARIANTS = {
    "self_attention": {"attention_mode": "self_attn"},
    "cross_attention_in_all_layers": {"self_attn_every_n_layers": 0},
}
"""Changes of config.json, by the tested kind of attention."""


def published(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """In the types of lerobot/smolvla_base: float32 outside of the two transformers, and for the
    layers that LeRobot replaces, keys and values from the other transformer.
    """
    return {
        name: tensor.float() if _is_single(name) else tensor.bfloat16()
        for name, tensor in state.items()
    }


def _is_single(name: str) -> bool:
    replaced = any(
        f"lm_expert.layers.{layer}.self_attn.{part}_proj" in name
        for layer in (1, 3)
        for part in "kv"
    )
    return "vlm_with_expert" not in name or replaced
