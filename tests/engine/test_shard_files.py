"""Shards on disk: on any number of ranks, without running code, and streamed into one file."""

import os
import pickle

import pytest
import torch
from damage import damaged_bytes
from hypothesis import HealthCheck, given, settings, strategies
from ranks_at_work import run_on_ranks
from safetensors.torch import load_file
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.shard_files import (
    METADATA_FILE,
    ShardFolder,
    stage,
    write_metadata,
    write_parts,
)
from siirl.engine.training.tensor_files import write_tensors_in_turn
from siirl.errors import CheckpointError

SIZES = {"matrix": (7, 3), "vector": (5,), "single": (1, 4), "half": (6, 2)}


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = {name: torch.randn(size, generator=generator) for name, size in SIZES.items()}
    return {**found, "half": found["half"].bfloat16(), "step": torch.tensor(3.0)}


def sharded(ranks, whole):
    mesh = DeviceMesh.from_group(ranks.group, "cpu")
    return {
        name: distribute_tensor(tensor, mesh, [Shard(0)]) if tensor.ndim else tensor
        for name, tensor in whole.items()
    }


def write(ranks, folder, parts=None):
    staged = stage(tensors() if parts is None else parts, ranks=ranks, copy=True)
    folder.mkdir(exist_ok=True)
    results = ranks.gather_objects(write_parts(staged, folder))
    if ranks.rank == 0:
        write_metadata(folder, staged, results)
    ranks.gather_objects(None)


def write_shards(ranks, folder):
    write(ranks, folder, sharded(ranks, tensors()))


def read_shards(ranks, folder):
    found = sharded(ranks, {name: torch.zeros_like(t) for name, t in tensors().items()})
    ShardFolder(folder).read_into(found)
    return {name: t.full_tensor() if hasattr(t, "full_tensor") else t for name, t in found.items()}


def same(found) -> bool:
    return all(torch.equal(found[name], tensor) for name, tensor in tensors().items())


def test_a_checkpoint_of_three_ranks_is_read_by_two_and_by_one(tmp_path):
    run_on_ranks(write_shards, tmp_path / "three", ranks=3)
    assert sorted(os.listdir(tmp_path / "three")) == [
        ".metadata",
        *(f"__{rank}_0.distcp" for rank in range(3)),
    ]
    found = {name: torch.zeros_like(tensor) for name, tensor in tensors().items()}
    ShardFolder(tmp_path / "three").read_into(found)
    assert same(found)
    assert all(map(same, run_on_ranks(read_shards, tmp_path / "three", ranks=2)))


def test_a_checkpoint_of_one_rank_is_read_by_three(tmp_path):
    write(OneProcess(), tmp_path / "one")
    assert all(map(same, run_on_ranks(read_shards, tmp_path / "one", ranks=3)))


def test_staged_copies_do_not_change_with_the_tensors(tmp_path):
    live = tensors()
    staged = stage(live, ranks=OneProcess(), copy=True)
    for tensor in live.values():
        tensor.zero_()
    results = write_parts(staged, tmp_path)
    write_metadata(tmp_path, staged, [results])
    found = {name: torch.zeros_like(tensor) for name, tensor in tensors().items()}
    ShardFolder(tmp_path).read_into(found)
    assert same(found)


def test_types_and_shapes_are_known_without_the_tensors(tmp_path):
    write(OneProcess(), tmp_path)
    assert ShardFolder(tmp_path).stored() == {
        name: (tensor.dtype, tensor.shape) for name, tensor in tensors().items()
    }


class Malicious:
    """Makes a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("harm",)


def test_metadata_that_would_run_code_is_not_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / METADATA_FILE).write_bytes(pickle.dumps(Malicious()))
    with pytest.raises(CheckpointError, match=r"posix\.mkdir is not part of DCP's metadata"):
        ShardFolder(tmp_path)
    assert not (tmp_path / "harm").exists()


def test_metadata_that_names_a_file_elsewhere_is_refused(tmp_path):
    write(OneProcess(), tmp_path)
    metadata = ShardFolder(tmp_path).metadata
    for place in metadata.storage_data.values():
        place.relative_path = "../secret"
    (tmp_path / METADATA_FILE).write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match="files of its folder"):
        ShardFolder(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    write(OneProcess(), folder)
    return folder


@pytest.mark.parametrize("name", [METADATA_FILE, "__0_0.distcp"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=strategies.data())
def test_damaged_shards_are_read_or_refused_by_name(whole, name, data):
    file = whole / name
    content = file.read_bytes()
    file.write_bytes(data.draw(damaged_bytes(content)))
    try:
        found = {name: torch.zeros_like(tensor) for name, tensor in tensors().items()}
        ShardFolder(whole).read_into(found)
    except CheckpointError as error:
        assert str(whole) in str(error)
    finally:
        file.write_bytes(content)


def test_tensors_are_written_in_turn_as_safetensors(tmp_path):
    stored = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors().items()}
    write_tensors_in_turn(tmp_path / "w.safetensors", stored, tensors().items())
    assert same(load_file(tmp_path / "w.safetensors"))
