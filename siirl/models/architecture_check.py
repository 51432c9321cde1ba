"""Tests on a few tokens whether training supports the architecture of a `LanguageModel`."""

import warnings
from collections.abc import Callable
from typing import Any

import torch

from siirl.errors import ConfigError
from siirl.models.lane_attention import LaneMask, attend_in_lanes
from siirl.params.packages import has_compilers

TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
# For 16 bits: rounding changes a hidden state by a few percent, a leak between rows by as much as
# its size.
ROUGH_TOLERANCE = 0.1
CHUNKED = frozenset(
    {
        "chunked_attention",  # Llama 4
        "compressed_sparse_attention",  # DeepSeek V4
        "heavily_compressed_attention",
        "minimax_m3_sparse",
    }
)
"""Kinds of layers that cut a row of the batch into chunks, whatever texts it holds. Chunks are
longer than the few tokens of a test."""


@torch.no_grad()
def try_out(model: Any, source: str) -> None:
    """Test that logits equal hidden states times output weights, and whether packed rows have the
    hidden states of each alone: sets `LanguageModel.needs_mask` if that takes a mask, and `packs`
    to False if nothing keeps them apart.

    Raises:
        ConfigError: The head does more than a product, or a token sees later ones.
    """
    name = type(model.causal_lm).__name__
    if model.causal_lm.base_model is model.causal_lm:  # Llama 4's prefix names no part of it
        raise ConfigError(
            f"{source}: {name} gives no hidden states without logits, and training computes "
            "log-probs from hidden states. Choose another architecture."
        )
    model.packs = not CHUNKED & _layer_kinds(model) and (
        _separates_rows(model) or _separates_rows_by_mask(model)
    )
    if not model.packs and not _is_causal(model):
        raise ConfigError(
            f"{source}: in {name} tokens see later ones, so log-probs would be wrong. Choose "
            "another architecture."
        )
    ids_13 = torch.arange(1, 4)[None] % model.vocab_size
    positions_13 = torch.arange(3)[None]
    hidden = model(ids_13, positions_13)
    logits = model.causal_lm(input_ids=ids_13, position_ids=positions_13, use_cache=False).logits
    product = hidden @ model.output_weight.T
    if model.output_bias is not None:
        product = product + model.output_bias
    if _relative_difference(product, logits) > TOLERANCE.get(hidden.dtype, ROUGH_TOLERANCE):
        raise ConfigError(
            f"{source}: the logits of {name} are not hidden states times output weights (they are "
            "scaled or capped), but log-probs without full logits support only that product. "
            "Choose another architecture."
        )


def _separates_rows(model: Any) -> bool:
    """Whether two packed rows have the hidden states of each alone, on a few tokens."""
    ids_1S = torch.arange(1, 7)[None] % model.vocab_size
    positions_1S = torch.tensor([[0, 1, 2, 0, 1, 2]])
    together = model(ids_1S, positions_1S)
    alone = torch.cat(
        [model(ids_1S[:, row], positions_1S[:, row]) for row in (slice(0, 3), slice(3, 6))], dim=1
    )
    tolerance = TOLERANCE.get(alone.dtype, ROUGH_TOLERANCE)
    return _relative_difference(together, alone) <= tolerance


def _separates_rows_by_mask(model: Any) -> bool:
    """The same with a mask between the rows, which the model then gets."""
    model.needs_mask = True
    try:
        separates = _separates_rows(model)
    except Exception:  # noqa: BLE001 - a model's own code, for a mask that it may not expect
        separates = False
    model.needs_mask = separates
    return separates


def _is_causal(model: Any) -> bool:
    """Whether three tokens have the same hidden states with three more behind them."""
    ids_1S = torch.arange(1, 7)[None] % model.vocab_size
    positions_1S = torch.arange(6)[None]
    longer = model(ids_1S, positions_1S)[:, :3]
    alone = model(ids_1S[:, :3], positions_1S[:, :3])
    return _relative_difference(longer, alone) <= TOLERANCE.get(alone.dtype, ROUGH_TOLERANCE)


@torch.no_grad()
def supports_masks(model: Any) -> bool:
    """Whether two answers to one shared prompt score as they do alone, on a few tokens.

    Models with a sliding window get False without a test: the window is longer than these tokens,
    and a custom mask would lose it. So do attention functions other than torch's, which take other
    masks. If passes use a GPU's block masks, these are tested too, on the CPU: GPT-2 and Falcon
    accept dense ones only.
    """
    config = model.config.get_text_config()
    has_window = getattr(config, "sliding_window", None) is not None
    if (
        has_window
        or _layer_kinds(model) - {"full_attention"}
        or model.config._attn_implementation != "sdpa"
    ):
        return False
    ids_S = torch.arange(1, 8) % model.vocab_size  # three of the prompt, then two answers of two
    positions_S = torch.tensor([0, 1, 2, 3, 4, 3, 4])
    prompt = 2
    lanes = LaneMask(
        owner_LS=torch.tensor([[prompt, prompt, prompt, 0, 0, 1, 1]]),
        prefix_LS=torch.full((1, 7), prompt),
        shared=True,
    )
    rows = (torch.tensor([0, 1, 2, 3, 4]), torch.tensor([0, 1, 2, 5, 6]))
    alone = [model(ids_S[None, row], positions_S[None, row])[0] for row in rows]

    def agrees(mask: Any) -> bool:
        together = model(ids_S[None], positions_S[None], mask)[0]
        tolerance = TOLERANCE.get(together.dtype, ROUGH_TOLERANCE)
        return all(
            _relative_difference(together[row], expected) <= tolerance
            for row, expected in zip(rows, alone, strict=True)
        )

    if not agrees(lanes.dense_L1SS()):
        return False
    return not uses_blocks() or _takes_blocks(model, lambda: agrees(lanes.blocks()))


def uses_blocks() -> bool:
    """Whether passes of this process use block masks; see `LaneMask.for_model`."""
    return torch.cuda.is_available() and has_compilers(gpu=True)


def _takes_blocks(model: Any, agrees: Callable[[], bool]) -> bool:
    """Whether a model `agrees` with `siirl.models.lane_attention.attend`; it keeps its own."""
    if not model.causal_lm._can_set_attn_implementation():
        return False
    own = model.config._attn_implementation
    attend_in_lanes(model.causal_lm)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
            return agrees()
    except Exception:  # noqa: BLE001 - a model's own code, for a mask that it may not expect
        return False
    finally:
        model.causal_lm.set_attn_implementation(own)


def _layer_kinds(model: Any) -> set[str]:
    return set(getattr(model.config.get_text_config(), "layer_types", None) or ())


def _relative_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.float() - other.float()).norm() / other.float().norm().clamp(min=1e-12))
