"""Random weights of tiny policies, the same for LeRobot's and ours."""

import numpy as np
import torch

VARIANTS = {
    "self_attention": {"attention_mode": "self_attn"},
    "cross_attention_in_all_layers": {"self_attn_every_n_layers": 0},
}
"""Changes of config.json, by the name of what they show."""


def random_weights(
    state: dict[str, torch.Tensor], *, seed: int, around_0: tuple[str, ...] = ()
) -> dict[str, torch.Tensor]:
    """A weight of each name and shape: matrices of unit gain, norms around 1, other vectors 0.

    Norms with a part of `around_0` in their name are around 0: Gemma's, which add 1.
    """
    generator = np.random.default_rng(seed)
    weights = {}
    for name in sorted(state):
        shape = tuple(state[name].shape)
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 100
        values = generator.standard_normal(shape) / np.sqrt(fan_in)
        is_norm = "norm" in name and name.endswith("weight") and len(shape) == 1
        adds_1 = any(part in name for part in around_0)
        weights[name] = torch.from_numpy((values + (is_norm and not adds_1)).astype(np.float32))
    return weights


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
