"""Floating-point operations of training passes, for each row and for a whole micro-batch.

Ranks are balanced by the work of rows (`flops_of_rows`); MFU divides the work of micro-batches by
time (`training_flops`). Consider a causal transformer with N parameters besides embedding and head,
L layers, attention of width A and a head of V x D. Forward and backward pass over a row of S tokens
with a response of T tokens take

    6 N S  +  6 L A S^2  +  6 V D T    floating-point operations.

The first term is Kaplan et al. 2020 (https://arxiv.org/abs/2001.08361, section 2.1, times three for
the backward pass). The second is half of PaLM's (https://arxiv.org/abs/2204.02311, appendix B),
because a token attends only to earlier ones. The head is applied only to the response. A VLA policy
makes one pass of a fixed size for each chunk.

`training_flops` counts a shared prompt once if the model computes it once. Frozen weights have no
gradient, so adapters take two thirds of the work. `flops_of_rows` ignores both, because they do not
change the balance.

Left out: recomputed activations and second scoring passes (MFU does not count them), and user
policies that do not override `Policy.observation_flops`.
"""

# B row, C chunk, S token

import torch
from tensordict import TensorDict
from torch import nn

from siirl.data_coordinator.protocol.batch import extents_of
from siirl.models.flops import ADAPTERS, TRAINED_WEIGHTS
from siirl.models.language_model import LanguageModel
from siirl.models.policy import Policy


def flops_of_rows(module: nn.Module, batch: TensorDict) -> list[float] | None:
    """Work of each row, float [B], comparable only within one model; None for an unknown kind of
    model.
    """
    if isinstance(module, LanguageModel) and "attention_mask" in batch.keys():
        flops_B: list[float] = text_flops(
            module,
            tokens_B=batch["attention_mask"].sum(1).double(),
            response_B=batch["response_mask"].sum(1).double(),
        ).tolist()
        return flops_B
    if isinstance(module, Policy):
        chunks = [float(extent.chunks) for extent in extents_of(batch)]
        return chunks if all(chunks) else None
    return None


def text_flops(
    model: LanguageModel, *, tokens_B: torch.Tensor, response_B: torch.Tensor
) -> torch.Tensor:
    """Floating-point operations of a training pass over each row, float64 [B]."""
    config = model.config.get_text_config()
    head = config.vocab_size * config.hidden_size
    tables = head if model.config.tie_word_embeddings else 2 * head
    body = sum(parameter.numel() for parameter in model.parameters()) - tables
    heads = config.num_attention_heads
    head_size = config.to_dict().get("head_dim") or config.hidden_size // heads
    attention = config.num_hidden_layers * heads * head_size
    return 6 * (body * tokens_B + attention * tokens_B**2 + head * response_B)


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
    told_BP = torch.where(mask_BP.bool(), prompts, -1)
    if "picture_number" in batch:
        told_BP = torch.cat([told_BP, batch["picture_number"][:, None]], dim=1)
    _, groups_B = torch.unique(told_BP, dim=0, return_inverse=True)
    prompt_B = mask_BP.sum(1).double()
    own_B = text_flops(model, tokens_B=prompt_B, response_B=torch.zeros_like(prompt_B))
    first_B = torch.ones_like(groups_B, dtype=torch.bool)
    seen: set[int] = set()
    for row, group in enumerate(groups_B.tolist()):
        first_B[row] = group not in seen
        seen.add(group)
    return float(flops - own_B[~first_B].sum())
