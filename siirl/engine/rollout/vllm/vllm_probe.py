"""Logits of the trained module, to prove that vLLM acts with its weights."""

# S token of the probe, D hidden, V token of the vocabulary

from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from siirl.algos.products import wide_product


@torch.no_grad()
def next_token_logits(
    model: Any, ids_1S: torch.Tensor, *, compute_dtype: torch.dtype
) -> torch.Tensor:
    """Logits [S - 1, V] of all tokens but the first, in the type of the passes.

    Args:
        model: A `LanguageModel`, or what FSDP2 made of it: then it runs on all ranks.
        ids_1S: The text, int64 [1, S].
        compute_dtype: Type of the passes.
    """
    sharded = isinstance(model, FSDPModule)  # FSDP2 casts
    casts = not sharded and compute_dtype != next(model.parameters()).dtype
    with torch.autocast(ids_1S.device.type, compute_dtype, enabled=casts):
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
