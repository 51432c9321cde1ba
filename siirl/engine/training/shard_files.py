"""Shards of tensors on disk, in the format of torch.distributed.checkpoint (DCP).

    .metadata       names, shapes, and which file holds which part of a tensor
    __0_0.distcp    the parts of rank 0
    __1_0.distcp    the parts of rank 1, and so on

Each rank writes the parts that it holds, and reads the parts that it needs: no tensor is gathered,
and the number of ranks may change in between. Writing has three steps. `stage` plans with the other
ranks and copies. `write_parts` needs neither the other ranks nor the tensors, so a thread runs it
while training continues. `write_metadata` joins the results of all ranks.

Reading runs no code from a file: DCP pickles its metadata, so only DCP's own classes are admitted.
"""

import contextlib
import io
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    FileSystemReader,
    FileSystemWriter,
)
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from siirl.engine.training.collectives import Collectives
from siirl.errors import CheckpointError
from siirl.files.documents import is_name
from siirl.models.stored_tensors import local_part

METADATA_FILE = ".metadata"

# Exceptions that torch raises for foreign bytes.
UNREADABLE = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError, OSError),
    *(pickle.UnpicklingError, RuntimeError, TypeError, ValueError),
    *(struct.error, tarfile.TarError, zipfile.BadZipFile, zlib.error),
)

# Classes in DCP's metadata; dtypes such as `torch.float32` are pickled as names in torch.
_METADATA_CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        *("Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata"),
        *("MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING"),
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {
        *("Size", "float64", "float32", "float16", "bfloat16"),
        *("int64", "int32", "int16", "int8", "uint8", "bool"),
    },
}


class _StagedPlanner(DefaultSavePlanner):
    """Plans for sharded tensors, and writes copies of the parts of this rank."""

    parts: dict[str, torch.Tensor]

    def resolve_data(self, write_item: WriteItem) -> Any:
        """The part of this rank: one for each tensor."""
        return self.parts[write_item.index.fqn]


@dataclass
class StagedParts:
    """This rank's parts of tensors, ready to be written."""

    planner: _StagedPlanner
    plan: SavePlan
    metadata: Metadata
    rank: int

    @property
    def file_name(self) -> str:
        """Name of the one file that this rank writes."""
        return f"__{self.rank}_0.distcp"


def stage(tensors: Mapping[str, torch.Tensor], *, ranks: Collectives, copy: bool) -> StagedParts:
    """Agree with the other ranks on the parts that this rank writes; every rank calls it.

    Args:
        tensors: Whole tensors or DTensors, under the same names on every rank. A whole tensor is
            the same on every rank, and one of them writes it.
        ranks: The ranks that hold the tensors.
        copy: Copy the parts to host memory, so that the tensors may change before they are written.
    """
    planner = _StagedPlanner()
    planner.set_up_planner(dict(tensors), is_coordinator=ranks.rank == 0)
    plans = ranks.gather_objects(planner.create_local_plan())
    # Every rank computes the same global plan, instead of the coordinator for all.
    plans, metadata = planner.create_global_plan(plans)
    [*plans] = FileSystemWriter(".").prepare_global_plan(plans)
    plan = planner.finish_plan(plans[ranks.rank])
    needed = {item.index.fqn for item in plan.items}
    planner.parts = {
        name: local_part(tensor).to("cpu", copy=copy)
        for name, tensor in tensors.items()
        if name in needed
    }
    planner.state_dict = {}  # the tensors themselves are no longer needed
    return StagedParts(planner, plan, metadata, rank=ranks.rank)


def write_parts(staged: StagedParts, folder: Path) -> list[WriteResult]:
    """Write this rank's file into an existing folder.

    Raises:
        OSError: It could not be written.
    """
    writer = FileSystemWriter(folder, single_file_per_rank=True)
    files = writer.fs = _Files()
    writer.set_up_storage_writer(staged.rank == 0)
    try:
        return writer.write_data(staged.plan, staged.planner).value()
    except RuntimeError as error:  # raised by torch.save, which hides the reason
        reason = files.failure or error
        raise OSError(f"{folder / staged.file_name} could not be written: {reason}") from error


class _Files(FileSystem):
    """DCP's file system, which remembers why a write failed."""

    failure: OSError | None = None

    @contextlib.contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        """See FileSystemBase."""
        with _Stream(io.FileIO(path, mode), self) as stream:
            yield stream


class _Stream(io.BufferedWriter):
    def __init__(self, raw: io.FileIO, files: _Files) -> None:
        super().__init__(raw)
        self.files = files

    def write(self, data: Any) -> int:
        """See BufferedWriter."""
        try:
            return super().write(data)
        except OSError as error:
            self.files.failure = error
            raise


def write_metadata(folder: Path, staged: StagedParts, results: list[list[WriteResult]]) -> None:
    """Write the metadata, from the results of all ranks in any order."""
    metadata = staged.metadata
    metadata.storage_data = {each.index: each.storage_data for part in results for each in part}
    metadata.storage_meta = StorageMeta()
    (folder / METADATA_FILE).write_bytes(pickle.dumps(metadata))


def read_metadata(folder: Path) -> Metadata:
    """Read the metadata of a folder of shards.

    Raises:
        CheckpointError: It is missing, damaged, or from another program.
    """
    file = folder / METADATA_FILE
    try:
        with file.open("rb") as stream:
            metadata = _Unpickler(stream).load()
    except UNREADABLE as error:
        raise _damaged(file, error) from error
    try:
        entries = metadata.state_dict_metadata.values()
        places = [each.relative_path for each in metadata.storage_data.values()]
        whole = all(isinstance(entry, TensorStorageMetadata) for entry in entries)
        sizes = [torch.Size(entry.size).numel() for entry in entries]
        types = [entry.properties.dtype for entry in entries]
    except UNREADABLE as error:
        raise _damaged(file, error) from error
    typed = all(type(dtype) is torch.dtype for dtype in types)
    if not whole or not typed or min(sizes, default=0) < 0 or not all(map(is_name, places)):
        raise _damaged(file, "it does not describe tensors in files of its folder")
    return metadata


class ShardFolder:
    """A folder of shards, to be read.

    Args:
        folder: Folder that `write_parts` and `write_metadata` wrote.

    Raises:
        CheckpointError: See `read_metadata`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metadata = read_metadata(folder)

    def stored(self) -> dict[str, tuple[torch.dtype, torch.Size]]:
        """Type and shape of each tensor."""
        return {
            name: (entry.properties.dtype, torch.Size(entry.size))
            for name, entry in self.metadata.state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }

    def read_into(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Fill tensors, or this rank's parts of DTensors, in place; no rank waits for another.

        Args:
            tensors: Tensors with stored names and shapes; filled in their own dtype, on their own
                device.

        Raises:
            CheckpointError: Damaged or foreign files.
        """
        reader = FileSystemReader(self.folder)
        planner = DefaultLoadPlanner()
        try:
            planner.set_up_planner(dict(tensors), self.metadata, is_coordinator=True)
            reader.set_up_storage_reader(self.metadata, is_coordinator=True)
            [plan] = planner.create_global_plan([planner.create_local_plan()])
            with torch.no_grad():
                reader.read_data(planner.finish_plan(plan), planner).wait()
        except UNREADABLE as error:
            raise _damaged(self.folder, error) from error


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in _METADATA_CLASSES.get(module, ()):
            raise pickle.UnpicklingError(f"{module}.{name} is not part of DCP's metadata")
        return super().find_class(module, name)


def _damaged(place: Path, reason: object) -> CheckpointError:
    return CheckpointError(
        f"{place} cannot be read as shards of torch.distributed.checkpoint: {reason}. Choose an "
        "earlier checkpoint."
    )
