"""Floating-point operations of training passes, for each row and for a whole micro-batch.

Ranks are balanced by the work of rows (`flops_of_rows`); MFU divides the work of micro-batches by
time (`training_flops`). Consider a causal transformer with N parameters besides embedding and head,
L layers, attention of width A and a head of V x D. Forward and backward pass over a row of S tokens
with a response of T tokens take

    6 N S  +  12 L A S^2  +  6 V D T    floating-point operations.

The first term is Kaplan et al. 2020 (https://arxiv.org/abs/2001.08361, section 2.1, times three for
the backward pass). Of a mixture of experts, N has those that a token uses. The second is PaLM's
(https://arxiv.org/abs/2204.02311, appendix B): as in `siirl.models.flops`, it counts every pair of
positions, although a token attends only to earlier ones. The head is applied only to the response.
A VLA policy makes one pass of a fixed size for each chunk.

`training_flops` counts a shared prompt once if the model computes it once. Frozen weights have no
gradient, so adapters take two thirds of the work. `flops_of_rows` ignores both, because they do not
change the balance, and counts the pairs that a causal kernel computes, because they do.

Left out: recomputed activations and second scoring passes (MFU does not count them), user policies
that do not override `Policy.observation_flops`, mixtures of experts whose configuration does not
state how many of them a token uses, and the recurrence of layers that pass on a state.
"""

# B row, C chunk, S token

import torch
from tensordict import TensorDict
from torch import nn

from siirl.data_coordinator.protocol.batch import extents_of
from siirl.models.flops import ADAPTERS, TRAINED_WEIGHTS
from siirl.models.language_model import LanguageModel
from siirl.models.policy import Policy

CAUSAL = 0.5
"""Share of the pairs that a causal kernel computes."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Keys of config.json for the number of experts of a layer, by family."""


def flops_of_rows(module: nn.Module, batch: TensorDict) -> list[float] | None:
    """Work of each row, float [B], comparable only within one model; None for an unknown kind of
    model.
    """
    if isinstance(module, LanguageModel) and "attention_mask" in batch.keys():
        flops_B = text_flops(
            module,
            tokens_B=batch["attention_mask"].sum(1).double(),
            response_B=batch["response_mask"].sum(1).double(),
            pairs=CAUSAL,
        )
        return None if flops_B is None else flops_B.tolist()
    if isinstance(module, Policy):
        chunks = [float(extent.chunks) for extent in extents_of(batch)]
        return chunks if all(chunks) else None
    return None


def text_flops(
    model: LanguageModel,
    *,
    tokens_B: torch.Tensor,
    response_B: torch.Tensor,
    pairs: float = 1.0,
) -> torch.Tensor | None:
    """Floating-point operations of a training pass over each row, float64 [B]; None for a mixture
    of experts of unknown use, and for a model without attention.

    Args:
        model: The language model.
        tokens_B: Tokens of each row.
        response_B: Tokens of each response.
        pairs: Share of attention's pairs of positions that counts.
    """
    config = model.config.get_text_config()
    head = config.vocab_size * config.hidden_size
    tables = head if model.config.tie_word_embeddings else 2 * head
    used = _used_parameters(model)
    if used is None or not hasattr(config, "num_attention_heads"):
        return None
    heads = config.num_attention_heads
    head_size = config.to_dict().get("head_dim") or config.hidden_size // heads
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    layers = sum("attention" in kind and kind != "linear_attention" for kind in kinds)
    attention = layers * heads * head_size
    return 6 * (
        (used - tables) * tokens_B + 2 * pairs * attention * tokens_B**2 + head * response_B
    )


def _used_parameters(model: LanguageModel) -> float | None:
    """Parameters that compute for a token; None for a mixture of experts of unknown use."""
    every = sum(weight.numel() for weight in model.parameters())
    experts = sum(
        weight.numel() for name, weight in model.named_parameters() if ".experts." in name
    )
    if not experts:
        return every
    sizes = model.config.get_text_config().to_dict()
    number = next((sizes[key] for key in EXPERTS if sizes.get(key)), None)
    of_a_token = sizes.get("num_experts_per_tok")
    if not number or not of_a_token:
        return None
    return every - experts * (1 - of_a_token / number)


def training_flops(module: nn.Module, batch: TensorDict) -> float | None:
    """Operations of the forward and backward passes over the rows of `batch`.

    None for a model without a formula.
    """
    if isinstance(module, LanguageModel):
        whole = _text_flops(module, batch)
        if whole is None:
            return None
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


def _text_flops(model: LanguageModel, batch: TensorDict) -> float | None:
    tokens_B = batch["attention_mask"].sum(1).double()
    response_B = batch["response_mask"].sum(1).double()
    flops_B = text_flops(model, tokens_B=tokens_B, response_B=response_B)
    if flops_B is None or not model.shares_prompts:
        return None if flops_B is None else float(flops_B.sum())
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
    assert own_B is not None
    return float(flops_B.sum() - own_B[~first_B].sum())
