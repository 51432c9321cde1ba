"""Shards weights over ranks with FSDP2 (`fully_shard`), and measures its gradient reduction.

The gradient of a batch is the *sum* over its micro-batches, so an engine must know whether its
backend sums or averages over ranks. FSDP2 asks for an average, but gloo can sum instead (PyTorch
issue 162338). The reduction is therefore measured, not assumed.
"""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from siirl.engine.training.collectives import Collectives, GroupOfProcesses
from siirl.errors import ConfigError, InvariantError
from siirl.models.checksum import checksum
from siirl.models.weight_rows import full_tensor
from siirl.models.weights import planned_weights


@dataclass(frozen=True)
class Sharding:
    """How FSDP2 shards a module; the gradient does not depend on it."""

    reshard_after_forward: bool = True
    """Free a block's whole weights after its forward pass, and gather them again for the backward
    pass.
    """
    reduce_once: bool = False
    """Reduce gradients over ranks only after the last micro-batch of an optimiser step."""
    shard_ranks: int | None = None
    """Ranks that share one copy of the module, which other ranks replicate; None: all."""


AS_SHIPPED = Sharding()


def repeated_blocks(module: nn.Module) -> list[nn.Module]:
    """Members of every `nn.ModuleList` that hold weights: the blocks of a transformer.

    Each becomes one unit of FSDP2. Inner lists come first, as `fully_shard` requires.
    """
    lists = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
    blocks = [block for part in reversed(lists) for block in part]
    return [block for block in blocks if next(block.parameters(), None) is not None]


def shard(
    module: nn.Module,
    *,
    ranks: Collectives,
    device: torch.device,
    compute_dtype: torch.dtype | None,
    blocks: Iterable[nn.Module],
    sharding: Sharding = AS_SHIPPED,
) -> None:
    """Shard `module` over the ranks in place: first its blocks, then the rest.

    Args:
        module: Module on `device`, with the same weights on every rank; or on the meta device.
        ranks: A process group; with one rank FSDP2 only gathers and casts.
        device: Device of this rank.
        compute_dtype: Type of weights and activations in the passes; None: the type of the weights.
            Gradients are summed in float32.
        blocks: Parts whose weights are gathered only while they compute.
        sharding: How FSDP2 shards the module.
    """
    require_equal_weights(module, ranks=ranks)
    # FSDP2 warns about every module that returns a view, because its output must not be changed in
    # place; no scorer changes it.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = mesh_of(ranks, device=device, shard_ranks=sharding.shard_ranks)
    for part in (*blocks, module):
        # the root computes first and last; by default FSDP2 keeps it gathered after the forward
        # pass
        reshard = None if part is module else sharding.reshard_after_forward
        _fully_shard(part, mesh=mesh, compute_dtype=compute_dtype, reshard_after_forward=reshard)


def mesh_of(ranks: Collectives, *, device: torch.device, shard_ranks: int | None) -> DeviceMesh:
    """Mesh of the ranks: one axis, or groups of `shard_ranks` neighbours with one copy per group.

    Raises:
        ConfigError: Copies of different size.
    """
    assert isinstance(ranks, GroupOfProcesses)
    if shard_ranks is not None and ranks.size % shard_ranks:
        raise ConfigError(
            f"actor_rollout_ref.actor.fsdp_size={shard_ranks} must divide the {ranks.size} ranks "
            "that train the model."
        )
    return ranks.mesh(device.type, shard_ranks=shard_ranks or ranks.size)


def _fully_shard(
    module: nn.Module,
    *,
    mesh: DeviceMesh,
    compute_dtype: torch.dtype | None,
    reshard_after_forward: bool | None = None,
) -> None:
    reduce_dtype = None if compute_dtype is None else torch.float32
    fully_shard(
        module,
        mesh=mesh,
        mp_policy=MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=reduce_dtype),
        reshard_after_forward=reshard_after_forward,
    )


def require_equal_weights(module: nn.Module, *, ranks: Collectives) -> None:
    """Raise InvariantError unless all ranks hold, or will read, the same weights.

    A sharded model would otherwise silently mix them.
    """
    prints: dict[str, Any] = {
        name: (
            tuple(tensor.shape),
            None if tensor.is_meta else checksum({name: tensor}),
        )
        for name, tensor in module.state_dict().items()
    }
    for name, part in module.named_modules():
        planned = planned_weights(part)
        if planned is not None:
            prints[f"files of {name or 'the module'}"] = planned.fingerprint
    for rank, others in enumerate(ranks.gather_objects(prints)):
        different = [name for name in {**prints, **others} if prints.get(name) != others.get(name)]
        if different:
            raise InvariantError(
                f"Ranks {ranks.rank} and {rank} start from different weights ({len(different)} "
                f"tensors, the first is {different[0]!r}): load the same file on every rank, or "
                "draw new weights from the same seed."
            )


class _Probe(nn.Module):
    """Two parameters of odd sizes, whose gradient is the input."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.ones(3, 5))
        self.vector = nn.Parameter(torch.ones(7))

    def forward(self, number: torch.Tensor) -> torch.Tensor:
        return (self.matrix * number).sum() + (self.vector * number).sum()


def measure_reduction(
    *,
    ranks: Collectives,
    device: torch.device,
    compute_dtype: torch.dtype | None = None,
    shard_ranks: int | None = None,
) -> float:
    """Factor of a loss that turns FSDP2's reduced gradient into the sum over ranks.

    1 if the backend sums, the number of ranks if it averages. Rank r has gradient r + 1 in the
    probe.

    Raises:
        InvariantError: The reduction is neither a sum nor an average.
    """
    probe = _Probe().to(device)
    mesh = mesh_of(ranks, device=device, shard_ranks=shard_ranks)
    _fully_shard(probe, mesh=mesh, compute_dtype=compute_dtype)
    probe(torch.tensor(float(ranks.rank + 1), device=device)).backward()
    gradients = [weight.grad for weight in probe.parameters() if weight.grad is not None]
    return reduction_factor(
        torch.cat([full_tensor(gradient).flatten() for gradient in gradients]), ranks=ranks.size
    )


def reduction_factor(entries: torch.Tensor, *, ranks: int) -> float:
    """The factor that turns each of `entries`, reduced from 1, 2, ... `ranks`, into their sum.

    See `measure_reduction`.
    """
    total = ranks * (ranks + 1) / 2
    for factor in (1.0, float(ranks)):
        if torch.allclose(entries * factor, torch.full_like(entries, total), rtol=1e-5, atol=0.0):
            return factor
    raise InvariantError(
        f"FSDP2 over {ranks} ranks reduced the gradients 1 to {ranks} to "
        f"{entries.unique().tolist()}; their sum is {total}, their average {total / ranks}. "
        f"Gradients are wrong with this PyTorch ({torch.__version__}) and backend: use other "
        "versions."
    )
