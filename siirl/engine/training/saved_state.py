"""Saves and restores the state of a training engine.

    model.safetensors    the whole weights, as other programs and `model.path` read them
    shards/              weights and both moments (siirl.engine.training.shard_files)

A resumed engine reads its part of `shards/`, on any number of ranks. `model.safetensors` is made
from the shards on disk, one tensor at a time. Earlier checkpoints have `optimizer.safetensors`
instead of `shards/`; their parts are read from the two files.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint.storage import WriteResult

from siirl.engine.training.collectives import Collectives, fail_together
from siirl.engine.training.optimizer import MOMENTS, trained_parameters
from siirl.engine.training.shard_files import ShardFolder, StagedParts, write_metadata, write_parts
from siirl.engine.training.tensor_files import listing, require_fitting, write_tensors_in_turn
from siirl.errors import CheckpointError
from siirl.files.weight_files import WEIGHTS_FILE
from siirl.models.stored_tensors import StoredTensors

SHARDS = "shards"
OLD_OPTIMIZER_FILE = "optimizer.safetensors"
MODEL = "model/"
PROGRESS = "progress"


def saved_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """Weights and buffers of a checkpoint; a tied weight appears once."""
    names = module.state_dict().keys()
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor for name, tensor in tensors if name in names}


def state_tensors(
    module: nn.Module, optimizer: torch.optim.AdamW | None, *, steps: int
) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, as the ranks hold them.

    `progress` holds the number of applied steps, and whether there are moments.
    """
    state = {} if optimizer is None else optimizer.state
    tensors = {f"{MODEL}{name}": tensor for name, tensor in saved_weights(module).items()}
    tensors[PROGRESS] = torch.tensor([steps, int(bool(state))])
    if state:
        for name, weight in trained_parameters(module):
            tensors |= {f"{kind}/{name}": state[weight][kind] for kind in (*MOMENTS, "step")}
    return tensors


class ShardedWeights:
    """The weights in an engine's shards; one whole tensor is read at a time.

    Args:
        folder: The folder `shards/` of an engine.

    Raises:
        CheckpointError: Damaged or foreign shards.
    """

    def __init__(self, folder: Path) -> None:
        self._shards = ShardFolder(folder)
        self.types = {
            name.removeprefix(MODEL): place
            for name, place in self._shards.stored().items()
            if name.startswith(MODEL)
        }
        """Type and shape of each weight."""

    def whole(self, name: str) -> torch.Tensor:
        """A whole weight in its stored type, in host memory."""
        dtype, shape = self.types[name]
        tensor = torch.empty(shape, dtype=dtype)
        self._shards.read_into({f"{MODEL}{name}": tensor})
        return tensor


def export_weights(folder: Path) -> None:
    """Write `model.safetensors` from the shards of an engine's folder, one tensor at a time.

    Raises:
        OSError: It cannot be written.
    """
    weights = ShardedWeights(folder / SHARDS)
    in_turn = ((name, weights.whole(name)) for name in weights.types)
    write_tensors_in_turn(folder / WEIGHTS_FILE, weights.types, in_turn)


def write_state(staged: StagedParts, folder: Path, *, ranks: Collectives) -> None:
    """Write this rank's parts into `folder`; the first rank adds metadata and whole weights.

    Every rank calls it. It returns when the last file is written.

    Raises:
        CheckpointError: A rank cannot write. The others raise InvariantError.
    """
    results: list[WriteResult] = []
    failure: CheckpointError | None = None
    try:
        (folder / SHARDS).mkdir(parents=True, exist_ok=True)
        results = write_parts(staged, folder / SHARDS)
    except OSError as error:
        failure = CheckpointError(f"{folder} could not be written: {error}.")
    fail_together(ranks, failure)
    everywhere = ranks.gather_objects(results)
    if ranks.rank == 0:
        write_metadata(folder / SHARDS, staged, everywhere)
        export_weights(folder)
    ranks.gather_objects(None)  # all ranks wait for the last file


def load_state(folder: Path, module: nn.Module, optimizer: torch.optim.AdamW | None) -> int:
    """Fill the weights, and the moments of the optimizer; returns the number of applied steps.

    No rank waits for another; each reads its part.

    Raises:
        CheckpointError: Damaged files, or a state of another model, before anything is changed.
    """
    source: _Shards | _OldFiles = (
        _Shards(folder / SHARDS) if (folder / SHARDS).is_dir() else _OldFiles(folder)
    )
    weights = {f"{MODEL}{name}": tensor for name, tensor in saved_weights(module).items()}
    source.require(MODEL, {name: tensor.shape for name, tensor in weights.items()})
    if optimizer is None:
        source.read_into(weights)
        return 0
    progress = torch.zeros(2, dtype=torch.int64)
    source.require(PROGRESS, {PROGRESS: progress.shape})
    source.read_into({PROGRESS: progress})
    steps, has_moments = progress.tolist()
    moments: dict[str, torch.Tensor] = {}
    if has_moments:
        trained = dict(trained_parameters(module))
        fused = optimizer.defaults["fused"]  # the fused kernel reads the counts
        for kind in MOMENTS:
            names = {f"{kind}/{name}": weight for name, weight in trained.items()}
            source.require(f"{kind}/", {name: weight.shape for name, weight in names.items()})
            moments |= {name: torch.zeros_like(weight) for name, weight in names.items()}
        counts = {
            f"step/{name}": torch.zeros((), device=weight.device if fused else None)
            for name, weight in trained.items()
        }
        source.require("step/", {name: count.shape for name, count in counts.items()})
        moments |= counts
    source.read_into(weights | moments)
    optimizer.state.clear()
    for name, weight in trained_parameters(module) if has_moments else ():
        optimizer.state[weight] = {
            kind: moments[f"{kind}/{name}"].detach() for kind in (*MOMENTS, "step")
        }
    return steps


class _Shards:
    """The state in shards."""

    def __init__(self, folder: Path) -> None:
        self.folder = ShardFolder(folder)

    def require(self, prefix: str, expected: Mapping[str, torch.Size]) -> None:
        """Raise CheckpointError unless exactly these tensors have names with this prefix."""
        found = {
            name: shape
            for name, (_, shape) in self.folder.stored().items()
            if name.startswith(prefix)
        }
        require_fitting(self.folder.folder, found=found, expected=expected)

    def read_into(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Fill the tensors, or this rank's parts."""
        self.folder.read_into(tensors)


class _OldFiles:
    """The state in `model.safetensors` and `optimizer.safetensors`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, StoredTensors] = {}

    def require(self, prefix: str, expected: Mapping[str, torch.Size]) -> None:
        """See `_Shards.require`."""
        file = self._file(prefix)
        found = {
            name: torch.Size(shape)
            for name, shape in self._stored(file).shapes().items()
            if file == WEIGHTS_FILE or name.startswith(prefix)
        }
        if file == WEIGHTS_FILE:
            found = {f"{MODEL}{name}": shape for name, shape in found.items()}
        require_fitting(self.folder / file, found=found, expected=expected)

    def read_into(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """See `_Shards.read_into`."""
        for name, tensor in tensors.items():
            self._stored(self._file(name)).fill(name.removeprefix(MODEL), tensor)

    def _file(self, name: str) -> str:
        return WEIGHTS_FILE if name.startswith(MODEL) else OLD_OPTIMIZER_FILE

    def _stored(self, file: str) -> StoredTensors:
        if file not in self.files:
            path = self.folder / file
            if not path.is_file():
                raise CheckpointError(
                    f"{path} does not exist. Expected: {SHARDS}/ or a safetensors file. Found in "
                    f"{self.folder}: {listing(self.folder)}."
                )
            self.files[file] = StoredTensors([path])
        return self.files[file]
