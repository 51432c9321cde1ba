"""A small read-out that maps latents to an embedding in which distances count frames.

Latents encode the position of every object. So two clips that are one step from success may be far
apart only because their scenes differ. The read-out (trained by vjepa.train_readout on frozen
latents) removes such differences. Left out: training, attention over tokens.
"""

# Axes: B clip, T tubelet, Y row, X column, D channel of latents, F feature, E channel of the
# embedding.

import torch
from torch import Tensor, nn
from torch.nn import functional

from vjepa.pooling import last_grid

HIDDEN = 256
EMBEDDING_SIZE = 32


class ReadOut(nn.Module):
    """Maps the last tubelet on a coarse grid to an embedding [B, E]: a `vjepa.pooling.Pooling` with
    weights.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, *, num_features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("scale", torch.ones(()))
        self.fc1 = nn.Linear(num_features, HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, EMBEDDING_SIZE)

    def forward(self, latents_BTYXD: Tensor) -> Tensor:
        return self.embed(last_grid(latents_BTYXD))

    def embed(self, features_BF: Tensor, *, noise_BF: Tensor | None = None) -> Tensor:
        """Embeddings of `last_grid` features; training adds noise to the normalised features."""
        normalised_BF = (features_BF - self.mean) / self.scale
        if noise_BF is not None:
            normalised_BF = normalised_BF + noise_BF
        return self.fc2(functional.gelu(self.fc1(normalised_BF)))

    @torch.no_grad()
    def fit_normalisation(self, features_NF: Tensor) -> None:
        """Centre each feature, and scale all by one factor to a deviation of about one."""
        self.mean.copy_(features_NF.mean(0))
        self.scale.copy_(features_NF.std(0).mean())
