"""Floating-point operations of a training pass over a micro-batch: the numerator of MFU.

Work of the model: recomputed activations and a second pass of scores are none. A prompt that
several rows of the micro-batch share counts once if the model computes it once. Frozen weights have
no gradient, so adapters take two thirds of the work.

Left out: a user's policy that does not override `Policy.observation_flops`.
"""

# B row, C chunk, S token

import torch
from tensordict import TensorDict
from torch import nn

from siirl.models.flops import ADAPTERS, TRAINED_WEIGHTS
from siirl.models.language_model import LanguageModel
from siirl.models.policy import Policy
from siirl.models.row_flops import text_flops


def training_flops(module: nn.Module, batch: TensorDict) -> float | None:
    """Operations of the forward and backward passes over the rows of `batch`.

    None for a model without a formula.
    """
    if isinstance(module, LanguageModel):
        whole = _text_flops(module, batch)
    elif isinstance(module, Policy):
        forward = module.observation_flops(batch["instruction_ids"])
        if forward is None:
            return None
        whole = TRAINED_WEIGHTS * _chunks(batch) * forward
    else:
        return None
    return whole * (ADAPTERS / TRAINED_WEIGHTS if module.lora is not None else 1.0)


def _chunks(batch: TensorDict) -> int:
    """Chunks with an executed token."""
    chunks = next(
        batch[name].shape[1] for name in ("pixel_values", "proprioception") if name in batch
    )
    return int(batch["response_mask"].bool().unflatten(1, (chunks, -1)).any(-1).sum())


def _text_flops(model: LanguageModel, batch: TensorDict) -> float:
    tokens_B = batch["attention_mask"].sum(1).double()
    response_B = batch["response_mask"].sum(1).double()
    flops = text_flops(model, tokens_B=tokens_B, response_B=response_B).sum()
    if not model.shares_prompts:
        return float(flops)
    prompts = batch["prompts"]
    mask_BP = batch["attention_mask"][:, : prompts.shape[1]]
    _, groups_B = torch.unique(torch.where(mask_BP.bool(), prompts, -1), dim=0, return_inverse=True)
    prompt_B = mask_BP.sum(1).double()
    own_B = text_flops(model, tokens_B=prompt_B, response_B=torch.zeros_like(prompt_B))
    first_B = torch.ones_like(groups_B, dtype=torch.bool)
    seen: set[int] = set()
    for row, group in enumerate(groups_B.tolist()):
        first_B[row] = group not in seen
        seen.add(group)
    return float(flops - own_B[~first_B].sum())
