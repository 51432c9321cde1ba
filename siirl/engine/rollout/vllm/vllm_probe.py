"""A fixed text and its log-probs under the trained module, to verify that vLLM has the same
weights.
"""

# S token of the probe, D hidden, V token of the vocabulary

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from siirl.algos.products import wide_product
from siirl.engine.rollout.vllm.vllm_settings import PROBE_TOKENS
from siirl.models.language_model import LanguageModel
from siirl.models.weight_rows import Rows

Probe = tuple[list[int], float]
"""A text, and its mean log-prob by the trained module."""


def probe_text(*, vocab_size: int, longest: int) -> list[int]:
    """Token ids of the fixed text.

    Args:
        vocab_size: Ids are below this.
        longest: Tokens of the longest text; one follows the probe.
    """
    length = min(PROBE_TOKENS, longest - 1)
    ids: list[int] = np.random.default_rng(0).integers(0, vocab_size, length).tolist()
    return ids


def trained_probe(
    model: Any,
    *,
    vocab_size: int,
    longest: int,
    temperature: float,
    compute_dtype: torch.dtype,
    device: torch.device,
) -> Probe:
    """The fixed text and its log-prob by the trained module; see `probe_text` and
    `trained_log_prob`.
    """
    ids = probe_text(vocab_size=vocab_size, longest=longest)
    return ids, trained_log_prob(
        model, ids, temperature=temperature, compute_dtype=compute_dtype, device=device
    )


def trained_log_prob(
    model: Any,
    ids: list[int],
    *,
    temperature: float,
    compute_dtype: torch.dtype,
    device: torch.device,
) -> float:
    """Mean log-prob of all tokens of `ids` but the first, by the trained module.

    Args:
        model: A `LanguageModel`; if FSDP2 has sharded it, it runs on all ranks.
        ids: The text.
        temperature: Divides the logits.
        compute_dtype: Type of the passes.
        device: Device of the module.
    """
    ids_1S = torch.tensor([ids], device=device)
    logits_SV = next_token_logits(model, ids_1S, compute_dtype=compute_dtype)
    log_probs_SV = torch.log_softmax(logits_SV / temperature, dim=-1)
    return float(log_probs_SV.gather(-1, ids_1S[0, 1:, None]).mean())


def loadable(model: LanguageModel, weights: Iterable[Rows], dtype: torch.dtype) -> Iterator[Rows]:
    """The weights that vLLM loads, some rows at a time: adapters merged, tied weights once, in
    `dtype`.

    Args:
        model: The trained module.
        weights: Weights in the order of `TrainEngine.weights_in_turn`.
        dtype: Type of vLLM's weights.
    """
    names = model.exported_names
    for rows in model.exported_in_turn(weights):
        if rows.name in names:
            yield rows.with_values(rows.values.to(dtype))


def weight_dtypes(model: LanguageModel, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Types in which weights leave the module for an engine that computes in `dtype`; adapters and
    the weights below them keep theirs until they are merged.
    """
    if model.lora is not None:
        return {}
    return {name: dtype for name, _ in model.named_parameters(remove_duplicate=False)}


def has_weights(model: LanguageModel) -> bool:
    """Whether the module holds whole weights: none are on the meta device or sharded."""
    return not any(weight.is_meta or isinstance(weight, DTensor) for weight in model.parameters())


@torch.no_grad()
def next_token_logits(
    model: Any, ids_1S: torch.Tensor, *, compute_dtype: torch.dtype
) -> torch.Tensor:
    """Logits [S - 1, V] of all tokens but the first, in the compute dtype.

    Args:
        model: A `LanguageModel`; if FSDP2 has sharded it, it runs on all ranks.
        ids_1S: The text, int64 [1, S].
        compute_dtype: Type of the passes.
    """
    sharded = isinstance(model, FSDPModule)  # FSDP2 casts
    casts = not sharded and {weight.dtype for weight in model.parameters()} != {compute_dtype}
    device = ids_1S.device.type
    with torch.autocast(device, compute_dtype, enabled=casts, cache_enabled=False):
        hidden_SD = model(ids_1S, torch.arange(ids_1S.shape[1], device=ids_1S.device)[None])[0]
    weight_VD, bias_V = model.output_weight, model.output_bias
    logits_SV = wide_product(
        hidden_SD[:-1].to(compute_dtype), weight_VD.to(compute_dtype).T
    ).float()
    if bias_V is not None:
        logits_SV = logits_SV + bias_V
    if sharded:
        model.reshard()  # see TrainEngine.forward
    return logits_SV
