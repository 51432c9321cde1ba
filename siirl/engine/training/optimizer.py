"""AdamW for a module: which weights decay, and optimiser state under the names of the weights.

Decay pulls matrices towards zero. Biases, scales of normalisation layers and looked-up embeddings
do not decay, as in the training of GPT-2 and LLaMA. A scale that shrinks changes the function of
the layer, not how well it generalises. State is saved by name, not by number, so that it fits a
module on any number of ranks.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from siirl.params import OptimizerArguments

MOMENTS = ("exp_avg", "exp_avg_sq")


def decayed_names(module: nn.Module) -> set[str]:
    """Names of the weights that decay: two axes or more, and no embedding."""
    embeddings = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    return {
        name
        for name, weight in module.named_parameters()
        if weight.ndim >= 2 and id(weight) not in embeddings
    }


def build_optimizer(module: nn.Module, settings: OptimizerArguments) -> torch.optim.AdamW:
    """AdamW over the weights of `module` that require gradients.

    One fused kernel updates all weights of a type. PyTorch's alternatives are a temporary of their
    size on a GPU, and on a CPU a loop that took 8 % of a step of small networks (CartPole).
    """
    decayed = decayed_names(module)
    weights: dict[float, list[nn.Parameter]] = defaultdict(list)  # by decay: one kernel each
    for name, weight in trained_parameters(module):
        weights[settings.weight_decay if name in decayed else 0.0].append(weight)
    return torch.optim.AdamW(
        [{"params": params, "weight_decay": decay} for decay, params in weights.items()],
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        fused=True,
    )


def trained_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Names and weights that the optimiser updates, in the module's order."""
    return ((name, weight) for name, weight in module.named_parameters() if weight.requires_grad)


def clip_gradients(gradients: Sequence[torch.Tensor], *, norm: float, limit: float | None) -> None:
    """Scale gradients with the joint norm `norm` down to the norm `limit`; None: no limit."""
    if limit is not None and norm > limit:
        for gradient in gradients:
            gradient.mul_(limit / norm)
