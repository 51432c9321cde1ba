"""Frozen weights are written once a run: links, resumption, damage, and earlier layouts."""

import json
import os
import shutil

import pytest
import torch
from ranks_at_work import run_on_ranks
from safetensors.torch import load_file
from small_job import Job
from tiny_training import TinyPolicy, largest_difference, make_engine, weights, write_old_files
from torch import nn

from siirl.dag_worker.manifest import fingerprint, read_manifest
from siirl.engine.training import frozen_weights
from siirl.engine.training.frozen_weights import FrozenWeights
from siirl.engine.training.shard_files import ShardFolder
from siirl.errors import CheckpointError

FILE = "actor/frozen.safetensors"
FROZEN = {f"{part}.{kind}" for part in ("blocks.0", "head") for kind in ("weight", "bias")}


def partly_frozen(seed=0, **options):
    policy = TinyPolicy(seed=seed, **options)
    for part in (policy.blocks[0], policy.head):
        part.requires_grad_(False)
    return policy


def job(folder, ranks=None, *, seed=0, **options):
    return Job(folder, ranks, seed=seed, module=partly_frozen(seed), **options)


def inode(checkpoint):
    return (checkpoint / FILE).stat().st_ino


def test_the_second_checkpoint_links_to_the_frozen_weights_of_the_first(tmp_path):
    run = job(tmp_path).train(1)
    first = run.save()
    second = run.train(1).save()
    assert inode(first) == inode(second)
    assert sorted(path.name for path in (second / "actor").iterdir()) == [
        "frozen.safetensors",
        "model.safetensors.index.json",
        "shards",
        "trained.safetensors",
    ]
    assert load_file(second / FILE).keys() == FROZEN
    sharded = ShardFolder(second / "actor" / "shards").stored()
    assert not any(name.removeprefix("model/") in FROZEN for name in sharded)
    trained = load_file(second / "actor" / "trained.safetensors")
    expected = weights(run.engine)
    assert trained.keys() == expected.keys() - FROZEN
    assert all(torch.equal(tensor, expected[name]) for name, tensor in trained.items())
    digests = [read_manifest(folder)["files"][FILE] for folder in (first, second)]
    assert digests[0] == digests[1]


def test_the_digest_of_a_link_is_not_computed_again(tmp_path, monkeypatch):
    run, computed = job(tmp_path), []

    def recorded(path):
        computed.append(path.name)
        return fingerprint(path)

    monkeypatch.setattr("siirl.dag_worker.checkpoint.fingerprint", recorded)
    run.save()
    assert computed.count("frozen.safetensors") == 1
    run.save()
    assert computed.count("frozen.safetensors") == 1
    assert computed.count("trained.safetensors") == 2


def test_resumed_equals_uninterrupted_and_links_to_the_checkpoint_it_read(tmp_path):
    uninterrupted = job(tmp_path / "one").train(4)
    run = job(tmp_path / "two").train(1)
    run.save()
    second = run.train(1).save()
    resumed = job(tmp_path / "three", seed=9).resume(second)
    assert inode(resumed.save()) == inode(second)
    found = weights(resumed.train(2).engine)
    torch.testing.assert_close(weights(uninterrupted.engine), found, rtol=0, atol=0)


def test_a_deleted_checkpoint_leaves_the_links_of_later_ones(tmp_path):
    run = job(tmp_path, keep=1).train(1)
    first = inode(run.save())
    for _ in range(2):
        last = run.train(1).save()
    assert [path.name for path in tmp_path.glob("step_*")] == [last.name]
    assert inode(last) == first
    assert (
        largest_difference(weights(job(tmp_path, seed=9).resume().engine), weights(run.engine)) == 0
    )


def no_links(*_):
    raise OSError("Operation not permitted")


@pytest.mark.parametrize("obstacle", ["no links", "deleted", "changed", "replaced"])
def test_frozen_weights_that_cannot_be_linked_are_written_again(tmp_path, monkeypatch, obstacle):
    run = job(tmp_path).train(1)
    first = run.save()
    whole = (first / FILE).read_bytes()
    if obstacle == "no links":
        monkeypatch.setattr(os, "link", no_links)
    elif obstacle == "deleted":
        shutil.rmtree(first)
    elif obstacle == "changed":
        (first / FILE).write_bytes(whole[:-1] + b"?")
    else:
        (first / FILE).rename(tmp_path / "away")
        (first / FILE).write_bytes(whole[:-1] + b"?")
    second = run.train(1).save()
    assert (second / FILE).stat().st_nlink == 1
    assert (second / FILE).read_bytes() == whole
    assert (
        largest_difference(weights(job(tmp_path, seed=9).resume().engine), weights(run.engine)) == 0
    )


def test_frozen_weights_of_another_type_are_not_linked(tmp_path):
    first = job(tmp_path / "one").train(1).save()
    policy = partly_frozen()
    policy.blocks[0].bfloat16()
    other = Job(tmp_path / "two", module=policy)
    other.checkpoints.load(first)
    saved = other.save()
    assert inode(saved) != inode(first)
    assert load_file(saved / FILE)["blocks.0.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize("entries", ["all", "all of data", "one"])
def test_a_weight_without_gradient_that_a_module_changes_is_saved_each_time(
    tmp_path, monkeypatch, entries
):
    """A target network that follows the trained one, or a memory of which one row is written."""
    monkeypatch.setattr(frozen_weights, "SAMPLED", 1)  # of the first entry only
    run = job(tmp_path).train(1)
    first = run.save()
    bias = run.engine.module.head.bias
    with torch.no_grad():
        {"all": bias, "all of data": bias.data, "one": bias[-1:]}[entries].add_(1.0)
    run.train(1).save()
    assert inode(first) != inode(run.checkpoints.latest())
    resumed = job(tmp_path, seed=9).resume()
    assert torch.equal(resumed.engine.module.head.bias, bias)


def save_around_a_write_to_the_part_of_rank_1(ranks, folder):
    """Weights of a run whose second checkpoint follows a write to a part of a frozen weight."""
    run = job(folder, ranks).train(1)
    run.save()
    if ranks.rank == 1:
        run.engine.module.head.weight.to_local()[-1] += 1
    run.save()
    return weights(run.engine)


def test_a_write_to_the_part_of_one_rank_is_saved(tmp_path):
    expected, _ = run_on_ranks(save_around_a_write_to_the_part_of_rank_1, tmp_path, ranks=2)
    resumed = job(tmp_path, seed=9).resume()
    assert largest_difference(weights(resumed.engine), expected) == 0


def test_a_weight_that_changes_while_it_is_written_is_saved_as_it_was(tmp_path):
    engine = make_engine(module=partly_frozen())
    staged = engine.stage(copy=True, frozen=engine.frozen.types(engine.ranks))
    before = engine.module.head.bias.clone()
    with torch.no_grad():
        engine.module.head.bias.add_(1.0)
    staged.complete(tmp_path, [staged.write(tmp_path)])
    assert torch.equal(load_file(tmp_path / "frozen.safetensors")["head.bias"], before)


def test_a_tied_frozen_weight_is_saved_once_and_loaded_into_both(tmp_path):
    def tied(seed):
        policy = partly_frozen(seed)
        policy.blocks[1].weight = policy.blocks[0].weight
        return policy

    one, other = make_engine(module=tied(0)), make_engine(module=tied(1))
    one.save(tmp_path)
    assert load_file(tmp_path / "frozen.safetensors").keys() == FROZEN
    other.load(tmp_path)
    assert torch.equal(other.module.blocks[1].weight, one.module.blocks[0].weight)


def test_frozen_weights_are_not_copied_if_the_caller_waits_for_their_file(tmp_path):
    engine = job(tmp_path).engine
    held = engine.stage(copy=False, frozen=engine.frozen.types(engine.ranks)).held
    assert held.whole("head.weight").data_ptr() == engine.module.head.weight.data_ptr()


def go_on_and_save_twice(ranks, from_one, from_two):
    resumed = job(from_one, ranks, seed=3).resume()
    linked = inode(resumed.save())
    run = job(from_two, ranks).train(1)
    run.save()
    run.train(1).save()
    return {
        "linked": linked,
        "resumed": weights(resumed.train(2).engine),
        "uninterrupted": weights(run.train(2).engine),
    }


def test_a_checkpoint_with_frozen_weights_fits_any_number_of_ranks(tmp_path):
    one = job(tmp_path / "one").train(2).save()
    expected = weights(job(tmp_path / "three").train(4).engine)
    two_ranks = run_on_ranks(go_on_and_save_twice, tmp_path / "one", tmp_path / "two", ranks=2)
    first, second = sorted((tmp_path / "two").glob("step_*"))
    assert inode(first) == inode(second)
    assert sorted(path.name for path in (first / "actor").iterdir()) == sorted(
        path.name for path in (one / "actor").iterdir()
    )
    assert (first / FILE).read_bytes() == (one / FILE).read_bytes()
    resumed = weights(job(tmp_path / "two", seed=3).resume().train(2).engine)
    for rank in two_ranks:
        assert rank["linked"] == inode(one)
    for found in (
        resumed,
        *(rank[key] for rank in two_ranks for key in ("resumed", "uninterrupted")),
    ):
        # another order of sums, divided by Adam's small moments
        assert largest_difference(expected, found) < 1e-4


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-4]), "does not have the size"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1] + b"?"), "was changed after it was"),
        (lambda file: file.unlink(), "Found: no such file"),
    ],
)
def test_damaged_frozen_weights_are_refused_by_name(tmp_path, damage, message):
    run = job(tmp_path).train(1)
    damage(run.save() / FILE)
    with pytest.raises(CheckpointError, match=rf"frozen\.safetensors .*{message}.* shares this"):
        run.resume()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-4]), "is not a complete safetensors"),
        (lambda file: file.unlink(), "model.safetensors.index.json names 2 files"),
    ],
)
def test_an_engine_without_a_manifest_refuses_them_by_name(tmp_path, damage, message):
    engine = make_engine(module=partly_frozen())
    engine.save(tmp_path)
    damage(tmp_path / "frozen.safetensors")
    with pytest.raises(CheckpointError, match=rf"frozen\.safetensors.* {message}"):
        engine.load(tmp_path)


@pytest.mark.parametrize("name", ["frozen.safetensors", "trained.safetensors"])
def test_a_manifest_lists_each_file_of_the_index(tmp_path, name):
    run = job(tmp_path)
    file = run.save() / "manifest.json"
    manifest = json.loads(file.read_text())
    del manifest["files"][f"actor/{name}"]
    file.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=f"Expected: actor/{name} among its files"):
        run.resume()


def test_weights_of_another_model_are_refused_and_change_nothing(tmp_path):
    make_engine(module=partly_frozen()).save(tmp_path)
    other = make_engine(module=partly_frozen(width=4))
    before = weights(other)
    with pytest.raises(CheckpointError, match=r"another model. Expected 12 tensors, found 12; 10 "):
        other.load(tmp_path)
    assert largest_difference(before, weights(other)) == 0


@pytest.mark.parametrize("old", ["in shards", "in model.safetensors"])
def test_frozen_weights_of_an_earlier_layout_load(tmp_path, old):
    run = job(tmp_path / "old").train(2)
    if old == "in shards":
        run.engine.frozen = FrozenWeights(nn.Module())  # earlier versions had no such weights
        run.engine.save(tmp_path / "actor")
        assert (tmp_path / "actor" / "model.safetensors").is_file()
    else:
        write_old_files(run.engine, tmp_path / "actor")
    other = make_engine(module=partly_frozen(seed=9))
    other.load(tmp_path / "actor")
    assert largest_difference(weights(other), weights(run.engine)) == 0
    other.save(tmp_path / "new")
    assert load_file(tmp_path / "new" / "frozen.safetensors").keys() == FROZEN
