"""Tests on a few tokens whether training supports the architecture of a `LanguageModel`."""

import inspect
from typing import Any

import torch

from siirl.errors import ConfigError

TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
# For 16 bits: rounding changes a hidden state by a few percent, a leak between rows by as much as
# its size.
ROUGH_TOLERANCE = 0.1


@torch.no_grad()
def try_out(model: Any, source: str) -> None:
    """Test that logits equal hidden states times output weights, and that packed rows do not
    attend to each other.

    Raises:
        ConfigError: The head does more than a product, or packed rows attend to each other.
    """
    name = type(model.causal_lm).__name__
    if "position_ids" not in inspect.signature(model.causal_lm.base_model.forward).parameters:
        raise ConfigError(
            f"{source}: {name} takes no position_ids, which separate packed rows. Choose another "
            "architecture."
        )
    ids_1S = torch.arange(1, 7)[None] % model.vocab_size
    positions_1S = torch.tensor([[0, 1, 2, 0, 1, 2]])
    together = model(ids_1S, positions_1S)
    alone = torch.cat(
        [model(ids_1S[:, row], positions_1S[:, row]) for row in (slice(0, 3), slice(3, 6))], dim=1
    )
    tolerance = TOLERANCE.get(alone.dtype, ROUGH_TOLERANCE)
    if _relative_difference(together, alone) > tolerance:
        raise ConfigError(
            f"{source}: in {name} packed rows see each other (recurrent or convolutional layers "
            "ignore position ids), so log-probs would be wrong. Choose an architecture with "
            "attention only."
        )
    logits = model.causal_lm(
        input_ids=ids_1S[:, :3], position_ids=positions_1S[:, :3], use_cache=False
    ).logits
    product = alone[:, :3] @ model.output_weight.T
    if model.output_bias is not None:
        product = product + model.output_bias
    if _relative_difference(product, logits) > tolerance:
        raise ConfigError(
            f"{source}: the logits of {name} are not hidden states times output weights (they are "
            "scaled or capped), but log-probs without full logits support only that product. "
            "Choose another architecture."
        )


@torch.no_grad()
def supports_masks(model: Any) -> bool:
    """Whether two answers to one shared prompt score as they do alone, on a few tokens.

    Models with a sliding window get False without a test: the window is longer than these tokens,
    and a custom mask would lose it. So do attention functions other than torch's, which take other
    masks.
    """
    config = model.config.get_text_config()
    has_window = getattr(config, "sliding_window", None) is not None
    layer_types = set(getattr(config, "layer_types", None) or ())
    if (
        has_window
        or layer_types - {"full_attention"}
        or model.config._attn_implementation != "sdpa"
    ):
        return False
    ids_S = torch.arange(1, 8) % model.vocab_size  # three of the prompt, then two answers of two
    positions_S = torch.tensor([0, 1, 2, 3, 4, 3, 4])
    sees_SS = torch.ones(7, 7, dtype=torch.bool).tril()
    sees_SS[5:, 3:5] = False
    together = model(ids_S[None], positions_S[None], sees_SS[None, None])[0]
    rows = (torch.tensor([0, 1, 2, 3, 4]), torch.tensor([0, 1, 2, 5, 6]))
    tolerance = TOLERANCE.get(together.dtype, ROUGH_TOLERANCE)
    return all(
        _relative_difference(together[row], model(ids_S[None, row], positions_S[None, row])[0])
        <= tolerance
        for row in rows
    )


def _relative_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.float() - other.float()).norm() / other.float().norm().clamp(min=1e-12))
