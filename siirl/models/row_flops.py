"""Work of a training pass over each row of a batch, by kind of model: what ranks are balanced by.

A causal transformer with N parameters beside embedding and head, L layers, attention of width A and
a head of V x D makes, forward and backward, for a row of S tokens with a response of T tokens,

    6 N S  +  6 L A S^2  +  6 V D T    floating-point operations.

The first term is Kaplan et al. 2020 (https://arxiv.org/abs/2001.08361, section 2.1, times three for
the backward pass). The second is half of that in PaLM (https://arxiv.org/abs/2204.02311, appendix
B), because a token attends only to those before it. The head is applied to the response alone.

A VLA policy makes one pass of a fixed size for each chunk, so chunks are counted.

Left out: work that rows share, as the prompt of a group that is computed once; and what balancing
does not depend on, such as adapters, which make the backward pass of every row cheaper alike.
"""

# B row

import torch
from tensordict import TensorDict
from torch import nn

from siirl.data_coordinator.protocol.batch import extents_of
from siirl.models.language_model import LanguageModel
from siirl.models.policy import Policy


def flops_of_rows(module: nn.Module, batch: TensorDict) -> list[float] | None:
    """Work of each row, float [B], comparable within one model only; None for a model of another
    kind.
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
    tables = head if config.tie_word_embeddings else 2 * head
    body = sum(parameter.numel() for parameter in model.parameters()) - tables
    heads = config.num_attention_heads
    head_size = config.to_dict().get("head_dim") or config.hidden_size // heads
    attention = config.num_hidden_layers * heads * head_size
    return 6 * (body * tokens_B + attention * tokens_B**2 + head * response_B)
