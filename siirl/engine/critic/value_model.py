"""Value model: a trainable copy of the policy without its head, and a linear value head.

The head starts at zero: random values would add noise to the first advantages and send random
gradients through the trunk.

With `normalize_returns` the head predicts returns in deviations from the mean of all returns so far
(`mean`, `std`). When these move, the head is rescaled so that no value changes (PopArt: van Hasselt
et al. 2016, arXiv 1602.07714, equation 9). Only the first returns move all values, from 0 to their
mean. Returns of a policy whose episodes are all alike have a small deviation, of which a failure
is many times as large; those of its whole history are a steadier unit (as in Gymnasium's
NormalizeReward).
"""

# N observation or token, D feature

import torch
from torch import nn

from siirl.algos.ranks import Ranks
from siirl.errors import ConfigError
from siirl.models.policy import Policy

SMALLEST_STD = 1e-2  # nearly equal returns do not determine their scale


class ValueModel(nn.Module):
    """Values of features.

    Args:
        trunk: Computes features; a separate copy, because it is trained.
        feature_size: D.
        normalize_returns: Whether the head predicts returns minus their running mean, divided by
            their running deviation.
    """

    mean: torch.Tensor
    std: torch.Tensor
    moments: torch.Tensor

    def __init__(self, *, trunk: nn.Module, feature_size: int, normalize_returns: bool) -> None:
        super().__init__()
        self.trunk = trunk
        self.value_head = nn.Linear(feature_size, 1)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)
        self.normalize_returns = normalize_returns
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("std", torch.ones(()))
        # sums over all returns so far: number, return, squared return
        self.register_buffer("moments", torch.zeros(3, dtype=torch.float64))

    def forward(
        self, *observation: torch.Tensor | None, **columns: torch.Tensor | None
    ) -> torch.Tensor:
        """Values float32 [N] (or [B, S]) in units of the return, one per feature vector of the
        trunk.

        Arguments are those of the trunk.
        """
        normalized_N = self.value_head(self.trunk(*observation, **columns)).squeeze(-1).float()
        return normalized_N * self.std + self.mean

    @property
    def has_seen_returns(self) -> bool:
        """Whether mean and deviation come from observed returns."""
        return float(self.moments[0]) > 0

    def normalized(self, numbers: torch.Tensor) -> torch.Tensor:
        """Values or returns in the units of the head's output."""
        return (numbers - self.mean) / self.std

    @torch.no_grad()
    def observe_returns(
        self, returns_BT: torch.Tensor, kept_BT: torch.Tensor, *, ranks: Ranks
    ) -> None:
        """Add these returns of all ranks to mean and deviation.

        Values do not change, except at the first call.

        Args:
            returns_BT: This rank's returns.
            kept_BT: Bool, the returns that count.
            ranks: Every rank calls it.
        """
        if not self.normalize_returns:
            return
        kept = returns_BT[kept_BT].double()
        found = ranks.sum(
            torch.stack([kept.new_tensor(len(kept)), kept.sum(), kept.square().sum()])
        )
        if found[0] == 0:
            return
        first_time = not self.has_seen_returns
        self.moments.add_(found.to(self.moments.device))
        count, total, squares = self.moments.tolist()
        mean = total / count
        std = max(0.0, squares / count - mean**2) ** 0.5
        self._set_statistics(mean=mean, std=max(std, SMALLEST_STD), keep_values=not first_time)

    def _set_statistics(self, *, mean: float, std: float, keep_values: bool) -> None:
        if keep_values:  # std * head + mean must not change
            self.value_head.weight.mul_(float(self.std) / std)
            self.value_head.bias.mul_(float(self.std) / std).add_((float(self.mean) - mean) / std)
        self.mean.fill_(mean)
        self.std.fill_(std)


class PolicyFeatures(nn.Module):
    """Trunk of a robot's value model: the policy's feature vector of an observation.

    Raises:
        ConfigError: A policy that defines no features.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        if policy.feature_size is None:
            raise ConfigError(
                f"{type(policy).__name__} has no features for a critic: set its feature_size and "
                "implement features and drop_head (siirl.models.Policy), or use a pipeline "
                "without critic, such as pipeline=grpo."
            )
        policy.drop_head()
        self.policy = policy
        self.feature_size = policy.feature_size

    def forward(
        self,
        *,
        pixel_values: torch.Tensor | None,
        proprioception: torch.Tensor | None,
        instruction_ids: torch.Tensor,
    ) -> torch.Tensor:
        """Features [N, D]; see `siirl.models.policy.Policy.features`."""
        return self.policy.features(
            pixel_values=pixel_values,
            proprioception=proprioception,
            instruction_ids=instruction_ids,
        )
