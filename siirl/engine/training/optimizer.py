"""AdamW for a module: which weights decay, and its state under the names of the weights.

Decay pulls matrices towards zero; biases, the scales of normalisation layers and embeddings that
are looked up by name are left alone, as GPT-2's and LLaMA's training does it: a scale that shrinks
changes what the layer computes, not how well it generalises. State is saved by name, not by number,
so that it fits a module on any number of ranks.
"""

from collections.abc import Iterator

import torch
from torch import nn

from siirl.params import OptimizerArguments

MOMENTS = ("exp_avg", "exp_avg_sq")


def decayed_names(module: nn.Module) -> set[str]:
    """Names of the weights that decay: those with two axes or more that are not embeddings."""
    embeddings = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    return {
        name
        for name, weight in module.named_parameters()
        if weight.ndim >= 2 and id(weight) not in embeddings
    }


def build_optimizer(module: nn.Module, settings: OptimizerArguments) -> torch.optim.AdamW:
    """AdamW over the weights of `module` that require gradients."""
    decayed = decayed_names(module)
    trained = [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]
    groups = [
        {
            "params": [weight for name, weight in trained if name in decayed],
            "weight_decay": settings.weight_decay,
        },
        {
            "params": [weight for name, weight in trained if name not in decayed],
            "weight_decay": 0.0,
        },
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
    )


def trained_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Names and weights that the optimiser moves, in the module's order."""
    return ((name, weight) for name, weight in module.named_parameters() if weight.requires_grad)
