"""The part of a trained policy that a weight sync uses."""

from collections.abc import Iterator

import torch
from torch import nn

from siirl.models.weight_rows import Rows, in_rows


class Trained:
    """The part of a TrainEngine that a weight sync uses."""

    steps = 3
    device = torch.device("cpu")

    def __init__(self, module: nn.Module, *, steps: int = steps) -> None:
        self.module, self.steps = module, steps

    def weights_in_turn(self, *, without=(), dtypes=None) -> Iterator[Rows]:
        state = self.module.state_dict().items()
        return in_rows((each for each in state if each[0] not in without), dtypes=dtypes)


def half_frozen(*, seed: int = 0) -> nn.Sequential:
    """A frozen layer of 12 weights, one of 10 that is trained, and a buffer of 4."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    module.register_buffer("scale", torch.rand(4))
    return module


def train(model: nn.Module, *, seed: int) -> None:
    """Move every weight, as an optimiser would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
