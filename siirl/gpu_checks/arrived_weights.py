"""Compares acting copies with the trained weights, without the code that transfers them."""

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from siirl.gpu_checks.check import CheckFailed


@torch.no_grad()
def change(module: nn.Module) -> None:
    """Change every weight, by enough to change it in bfloat16 too."""
    for weight in module.parameters():
        weight.add_(0.01)


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor of a state; PyTorch gathers a sharded one over the ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def require_arrived(trained: nn.Module, copied: nn.Module) -> None:
    """Fail unless every tensor of a copy has the bits of the trained one, in the copy's type.

    Every rank calls it.

    Raises:
        CheckFailed: The copy has other tensors or names.
    """
    own, sharded = copied.state_dict(), trained.state_dict()
    wrong = sorted(own.keys() ^ sharded.keys())
    for name in sharded:
        whole = gathered(sharded[name])
        if name in own and not torch.equal(own[name], whole.to(own[name].dtype)):
            wrong.append(name)
    if wrong:
        raise CheckFailed(
            f"after a sync {len(wrong)} of {len(own)} tensors of the acting copy are not the "
            f"trained ones, the first of them {wrong[0]}"
        )
