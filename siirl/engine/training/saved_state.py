"""Saves and restores the state of a training engine.

    model.safetensors    the whole weights, as other programs and `model.path` read them
    shards/              weights and both moments (siirl.engine.training.shard_files)

If some weights are frozen (siirl.engine.training.frozen_weights), they have a file of their own:

    model.safetensors.index.json    names both files; Hugging Face's form of a model in several
    frozen.safetensors              the frozen weights, the same in every checkpoint of a run
    trained.safetensors             all other weights, and buffers
    shards/                         those and both moments

A resumed engine reads its part of `shards/` and of `frozen.safetensors`, on any number of ranks.
The other files are made from the shards on disk, one tensor at a time. Earlier checkpoints have
frozen weights in `shards/`, or `optimizer.safetensors` instead of `shards/`; both are read.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint.storage import WriteResult

from siirl.engine.training.collectives import Collectives, raise_on_all_ranks
from siirl.engine.training.optimizer import MOMENTS, trained_parameters
from siirl.engine.training.shard_files import (
    ShardFolder,
    StagedParts,
    stage,
    write_metadata,
    write_parts,
)
from siirl.engine.training.tensor_files import (
    Types,
    listing,
    require_fitting,
    write_index,
    write_weight_file,
)
from siirl.errors import CheckpointError
from siirl.files.weight_files import (
    FROZEN_FILE,
    INDEX_FILE,
    TRAINED_FILE,
    WEIGHTS_FILE,
    weight_files,
)
from siirl.models.stored_tensors import StoredTensors, local_part

SHARDS = "shards"
FROZEN_SHARDS = ".frozen_shards"  # until they are joined in FROZEN_FILE
OLD_OPTIMIZER_FILE = "optimizer.safetensors"
MODEL = "model/"
PROGRESS = "progress"

Written = dict[str, list[WriteResult]]
"""What a rank wrote into each folder of shards."""


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
    if optimizer is not None and state:
        for name, weight in trained_parameters(module):
            # AdamW keeps nothing for a weight that no gradient has reached
            of_weight = state[weight] if weight in state else no_steps(weight, optimizer)
            tensors |= {f"{kind}/{name}": of_weight[kind] for kind in (*MOMENTS, "step")}
    return tensors


def no_steps(weight: nn.Parameter, optimizer: torch.optim.AdamW) -> dict[str, torch.Tensor]:
    """AdamW's state of a weight before its first step: both moments, and the number of steps."""
    fused = optimizer.defaults["fused"]  # the fused kernel reads the number of steps
    moments = {kind: torch.zeros_like(weight).detach() for kind in MOMENTS}
    return {**moments, "step": torch.zeros((), device=weight.device if fused else None)}


class HeldWeights:
    """Weights that a single rank holds whole.

    Args:
        weights: Under the names of the file.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._weights = weights
        self.types: Types = {name: (each.dtype, each.shape) for name, each in weights.items()}

    def whole(self, name: str) -> torch.Tensor:
        """A weight, on its device."""
        return self._weights[name]


class ShardedWeights:
    """The weights in shards; one whole tensor is read at a time.

    Args:
        folder: A folder of shards.

    Raises:
        CheckpointError: Damaged or foreign shards.
    """

    def __init__(self, folder: Path) -> None:
        self._shards = ShardFolder(folder)
        self.types: Types = {
            name.removeprefix(MODEL): place
            for name, place in self._shards.stored().items()
            if name.startswith(MODEL)
        }

    def whole(self, name: str) -> torch.Tensor:
        """A whole weight in its stored type, in host memory."""
        dtype, shape = self.types[name]
        tensor = torch.empty(shape, dtype=dtype)
        self._shards.read_into({f"{MODEL}{name}": tensor})
        return tensor


@dataclass
class StagedState:
    """An engine's state on this rank, ready to be written; a thread may write it."""

    parts: dict[str, StagedParts]
    """This rank's parts, by folder of shards."""
    frozen: Types
    """Weights of `frozen.safetensors`."""
    held: HeldWeights | None
    """The same, if this rank writes that file from memory."""

    def write(self, folder: Path) -> Written:
        """Write this rank's parts.

        Raises:
            OSError: They cannot be written.
        """
        written = {}
        for name, parts in self.parts.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            written[name] = write_parts(parts, folder / name)
            parts.planner.parts = {}  # the copies are as large as the shards
        return written

    def complete(self, folder: Path, written: list[Written]) -> None:
        """Add metadata and whole weights, on the first rank.

        Args:
            folder: The engine's folder, where all ranks have written.
            written: Results of `write` of all ranks.

        Raises:
            OSError: They cannot be written.
        """
        for name, parts in self.parts.items():
            write_metadata(folder / name, parts, [each[name] for each in written])
        changing = ShardedWeights(folder / SHARDS)
        if not self.frozen:
            write_weight_file(folder / WEIGHTS_FILE, changing)
            return
        if FROZEN_SHARDS in self.parts:
            write_weight_file(folder / FROZEN_FILE, ShardedWeights(folder / FROZEN_SHARDS))
            shutil.rmtree(folder / FROZEN_SHARDS)
        elif self.held is not None:
            write_weight_file(folder / FROZEN_FILE, self.held)
            self.held = None  # the copies are as large as the weights
        write_weight_file(folder / TRAINED_FILE, changing)
        write_index(folder, {FROZEN_FILE: self.frozen, TRAINED_FILE: changing.types})
        (folder / WEIGHTS_FILE).unlink(missing_ok=True)  # readers would prefer an earlier one


def stage_state(
    tensors: Mapping[str, torch.Tensor],
    *,
    frozen: Types,
    linked: bool,
    ranks: Collectives,
    copy: bool,
) -> StagedState:
    """Agree with the other ranks on who writes which part; every rank calls it.

    Args:
        tensors: See `state_tensors`.
        frozen: Weights that have not changed.
        linked: Whether the file of these is on disk already.
        ranks: The ranks that hold the tensors.
        copy: Copy to host memory what is not on disk already, so that it may change before it is
            written: a module may change a frozen weight itself.
    """
    unchanging = {f"{MODEL}{name}": tensors[f"{MODEL}{name}"] for name in frozen}
    changing = {name: tensor for name, tensor in tensors.items() if name not in unchanging}
    parts = {SHARDS: stage(changing, ranks=ranks, copy=copy)}
    held = None
    if frozen and not linked and ranks.size == 1:
        whole = {name: local_part(tensors[f"{MODEL}{name}"]) for name in frozen}
        held = HeldWeights({n: w.to("cpu", copy=True) if copy else w for n, w in whole.items()})
    elif frozen and not linked:
        parts[FROZEN_SHARDS] = stage(unchanging, ranks=ranks, copy=copy)
    return StagedState(parts, frozen, held)


def write_state(staged: StagedState, folder: Path, *, ranks: Collectives) -> None:
    """Write this rank's parts into `folder`; the first rank adds metadata and whole weights.

    Every rank calls it. It returns when the last file is written.

    Raises:
        CheckpointError: A rank cannot write. The others raise InvariantError.
    """
    with raise_on_all_ranks(ranks):
        try:
            written = staged.write(folder)
        except OSError as error:
            raise CheckpointError(f"{folder} could not be written: {error}.") from error
    everywhere = ranks.gather_objects(written)
    if ranks.rank == 0:
        staged.complete(folder, everywhere)
    ranks.gather_objects(None)  # all ranks wait for the last file


def load_state(folder: Path, module: nn.Module, optimizer: torch.optim.AdamW | None) -> int:
    """Fill the weights, and the moments of the optimizer; returns the number of applied steps.

    No rank waits for another; each reads its part.

    Raises:
        CheckpointError: Damaged files, or a state of another model, before anything is changed.
    """
    source: _Shards | _OldFiles = (
        _Shards(folder) if (folder / SHARDS).is_dir() else _OldFiles(folder)
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
    states = {
        name: no_steps(weight, optimizer)
        for name, weight in (trained_parameters(module) if has_moments else ())
    }
    moments: dict[str, torch.Tensor] = {}
    for kind in (*MOMENTS, "step") if has_moments else ():
        of_kind = {f"{kind}/{name}": state[kind] for name, state in states.items()}
        source.require(f"{kind}/", {name: tensor.shape for name, tensor in of_kind.items()})
        moments |= of_kind
    source.read_into(weights | moments)
    optimizer.state.clear()
    for name, weight in trained_parameters(module):
        if name in states:
            optimizer.state[weight] = states[name]
    return steps


class _Shards:
    """The state in shards, with frozen weights there or in a file of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shards = ShardFolder(folder / SHARDS)
        self.sharded = self.shards.stored()
        files = weight_files(folder) if (folder / INDEX_FILE).is_file() else []
        self.frozen = StoredTensors(file for file in files if file.name == FROZEN_FILE)

    def require(self, prefix: str, expected: Mapping[str, torch.Size]) -> None:
        """Raise CheckpointError unless exactly these tensors have names with this prefix."""
        frozen = {f"{MODEL}{name}": shape for name, (_, shape) in self.frozen.types.items()}
        stored = frozen | {name: shape for name, (_, shape) in self.sharded.items()}
        found = {name: shape for name, shape in stored.items() if name.startswith(prefix)}
        place = self.folder if frozen else self.folder / SHARDS
        require_fitting(place, found=found, expected=expected)

    def read_into(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Fill the tensors, or this rank's parts."""
        self.shards.read_into({n: tensor for n, tensor in tensors.items() if n in self.sharded})
        for name in tensors.keys() - self.sharded.keys():
            self.frozen.fill(name.removeprefix(MODEL), tensors[name])


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
