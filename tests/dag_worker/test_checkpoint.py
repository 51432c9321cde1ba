"""Checkpoints: resumed equals uninterrupted, on other numbers of ranks too; crashes, full disks,
damaged and foreign files.
"""

import json
import os
import resource
import shutil
import signal
import threading
import time

import numpy as np
import pytest
import torch
from ranks_at_work import run_on_ranks
from small_job import Job
from tiny_training import (
    TinyPolicy,
    largest_difference,
    make_engine,
    weights,
    write_old_files,
)
from torch import multiprocessing

from siirl.dag_worker.checkpoint import CheckpointManager, resolve_checkpoint
from siirl.dag_worker.manifest import fingerprint
from siirl.engine.training.collectives import OneProcess
from siirl.errors import CheckpointError


def test_resumed_equals_uninterrupted_bit_for_bit(tmp_path):
    uninterrupted = Job(tmp_path / "one").train(4)
    Job(tmp_path / "two").train(2).save()
    resumed = Job(tmp_path / "two", seed=9).resume().train(2)
    assert resumed.step == 4
    expected, found = weights(uninterrupted.engine), weights(resumed.engine)
    torch.testing.assert_close(expected, found, rtol=0, atol=0)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_weights_have_the_permissions_of_the_manifest(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        folder = Job(tmp_path).save()
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in folder.rglob("*") if path.is_file()} == {
        oct(mode)
    }


def go_on_and_save(ranks, from_one, from_two):
    """On two ranks: resume from a checkpoint of one rank, and save one that was trained on two."""
    resumed = Job(from_one, ranks, seed=3).resume().train(2)
    job = Job(from_two, ranks).train(2)
    job.save()
    return {"resumed": weights(resumed.engine), "uninterrupted": weights(job.train(2).engine)}


def test_a_checkpoint_fits_any_number_of_ranks(tmp_path):
    Job(tmp_path / "one").train(2).save()
    expected = weights(Job(tmp_path / "three").train(4).engine)
    two_ranks = run_on_ranks(go_on_and_save, tmp_path / "one", tmp_path / "two", ranks=2)
    resumed = weights(Job(tmp_path / "two", seed=3).resume().train(2).engine)
    for found in (
        *(rank[key] for rank in two_ranks for key in ("resumed", "uninterrupted")),
        resumed,
    ):
        # another order of sums, divided by Adam's small moments
        assert largest_difference(expected, found) < 1e-4


def test_the_state_of_other_owners_is_restored(tmp_path):
    job = Job(tmp_path)
    state = {
        "loader": {
            "epoch": 3,
            "order": [2, 0, 1],
            "share": 0.25,
            "name": "reach",
            "done": False,
            "nothing": None,
        },
        "bank": {"reach": np.arange(6, dtype=np.float32).reshape(2, 3)},
        "draws": np.random.default_rng(7).bit_generator.state,
        "generator": torch.Generator().manual_seed(5).get_state(),
        "pairs": ((1, "a"), (2, b"b")),
    }
    job.checkpoints.save(step=7, state=state)
    found = job.checkpoints.load()
    assert found.step == 7
    assert np.array_equal(found.state["bank"]["reach"], state["bank"]["reach"])
    assert torch.equal(found.state["generator"], state["generator"])
    for name in ("loader", "draws", "pairs"):
        assert found.state[name] == state[name]


def test_a_state_that_could_not_be_loaded_is_refused_with_its_place(tmp_path):
    job = Job(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"state\['loader'\]\[1\] cannot be saved.*Found: TinyPolicy"
    ):
        job.checkpoints.save(step=1, state={"loader": [0, TinyPolicy()]})
    assert list(tmp_path.iterdir()) == []


def test_a_new_run_has_no_checkpoint(tmp_path):
    job = Job(tmp_path)
    assert job.checkpoints.latest() is None
    with pytest.raises(
        CheckpointError,
        match=r"is not a checkpoint\. Expected: .* that contains manifest\.json\. Found: an empty folder",
    ):
        job.checkpoints.load()


def test_a_checkpoint_is_found_from_itself_its_folder_and_the_run_folder(tmp_path):
    checkpoint = Job(tmp_path / "checkpoints").train(1).save()
    assert checkpoint == tmp_path / "checkpoints" / "step_00000001"
    for path in (checkpoint, tmp_path / "checkpoints", tmp_path):
        assert resolve_checkpoint(path) == checkpoint


def test_a_folder_that_the_disk_does_not_read_is_an_error_of_all_ranks(tmp_path):
    """`CheckpointError` is raised on all of them, an OSError only on rank 0."""
    checkpoints = Job(tmp_path).checkpoints
    checkpoints.folder = tmp_path / ("x" * 256)  # longer than a name may be
    for search in (checkpoints.load, checkpoints.latest):
        with pytest.raises(CheckpointError, match=r"x cannot be searched .*: File name too long"):
            search()


def test_the_newest_stay_and_the_oldest_go(tmp_path):
    job = Job(tmp_path, keep=2)
    for _ in range(4):
        job.train(1).save()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "latest",
        "step_00000003",
        "step_00000004",
    ]
    assert job.checkpoints.latest() == tmp_path / "step_00000004"


def test_a_repeated_step_does_not_overwrite_the_first(tmp_path):
    job = Job(tmp_path).train(1)
    first, second = job.save(), job.save()
    assert second.name == "step_00000001-1"
    assert first.is_dir()
    assert job.checkpoints.latest() == second


def test_a_resumed_run_that_is_behind_the_newest_keeps_what_it_saves(tmp_path):
    job = Job(tmp_path, keep=2).train(3)
    job.save()
    job.step = 1
    assert job.save() == job.checkpoints.latest() == tmp_path / "step_00000001"


def test_exported_files_are_part_of_the_checkpoint(tmp_path):
    job = Job(tmp_path, export=lambda folder: (folder / "actor" / "config.json").write_text("{}"))
    checkpoint = job.save()
    assert (checkpoint / "actor" / "config.json").read_text() == "{}"
    assert "actor/config.json" in json.loads((checkpoint / "manifest.json").read_text())["files"]


def die_while_saving(folder):
    """A process that is killed when everything but the manifest is written."""
    torch.set_num_threads(1)
    job = Job(folder).train(1)
    job.save()
    job.checkpoints.export = lambda unfinished: os.kill(os.getpid(), signal.SIGKILL)
    job.train(1).save()


def test_a_process_killed_while_saving_leaves_the_previous_checkpoint(tmp_path):
    process = multiprocessing.get_context("spawn").Process(
        target=die_while_saving, args=(tmp_path,)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert any(path.name.startswith(".unfinished-") for path in tmp_path.iterdir())
    assert Job(tmp_path).resume().step == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step_00000001"]


def test_training_continues_while_a_checkpoint_is_written(tmp_path):
    """An asynchronous save writes the state at its start."""
    job = Job(tmp_path).train(2)
    expected = weights(job.engine)
    job.checkpoints.start_saving(step=2, state={"actor": job.actor.state_dict()})
    job.train(2)
    assert job.checkpoints.wait() == tmp_path / "step_00000002"
    assert job.checkpoints.wait() is None
    assert largest_difference(expected, weights(job.engine)) > 0
    resumed = Job(tmp_path, seed=9).resume()
    assert largest_difference(expected, weights(resumed.engine)) == 0
    assert largest_difference(weights(resumed.train(2).engine), weights(job.engine)) == 0


class Stuck(CheckpointManager):
    """Writes everything but the manifest."""

    def _complete(self, *arguments):
        threading.Event().wait()


def die_in_an_asynchronous_save(folder):
    """A process that trains while it saves, and is killed before the checkpoint is complete."""
    torch.set_num_threads(1)
    job = Job(folder).train(1)
    job.save()
    job.checkpoints = Stuck(folder=folder, engines={"actor": job.engine}, ranks=job.ranks)
    job.train(1)
    job.checkpoints.start_saving(step=2, state={"actor": job.actor.state_dict()})
    job.train(1)
    exported = "*/actor/model.safetensors"
    while len([*folder.glob(exported)]) + len([*folder.glob(f".{exported}")]) < 2:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_killed_during_an_asynchronous_save_resumes_from_the_previous_checkpoint(tmp_path):
    process = multiprocessing.get_context("spawn").Process(
        target=die_in_an_asynchronous_save, args=(tmp_path,)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert any(path.name.startswith(".unfinished-") for path in tmp_path.iterdir())
    resumed = Job(tmp_path, seed=9).resume()
    assert resumed.step == 1
    expected = weights(Job(tmp_path / "other").train(2).engine)
    # the other process had one thread, and this one may have more: sums round differently
    assert largest_difference(weights(resumed.train(1).engine), expected) < 1e-6


def test_a_failed_run_gives_its_checkpoint_time_to_finish(tmp_path):
    job = Job(tmp_path).train(1)
    job.checkpoints.start_saving(step=1, state={"actor": job.actor.state_dict()})
    job.checkpoints.close(within_s=600)
    assert job.checkpoints.latest() == tmp_path / "step_00000001"


@pytest.mark.parametrize("asynchronous", [True, False])
def test_only_an_asynchronous_save_copies_the_shards(tmp_path, asynchronous):
    job = Job(tmp_path).train(1)
    copied, stage = [], job.engine.stage
    job.engine.stage = lambda *, copy, **frozen: copied.append(copy) or stage(copy=copy, **frozen)
    save = job.checkpoints.start_saving if asynchronous else job.checkpoints.save
    save(step=1, state={"actor": job.actor.state_dict()})
    assert (job.checkpoints.wait() is None) is not asynchronous
    assert copied == [asynchronous]
    assert Job(tmp_path).resume().step == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_checkpoint_of_an_earlier_version_loads(tmp_path, ranks):
    old = Job(tmp_path / "made").train(2)
    folder = old.save()
    shutil.rmtree(folder / "actor")
    write_old_files(old.engine, folder / "actor")
    manifest = json.loads((folder / "manifest.json").read_text())
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"]
    manifest["files"] = {str(path.relative_to(folder)): fingerprint(path) for path in files}
    manifest["format"] = "siirl-checkpoint-1"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    expected = weights(old.train(2).engine)
    for found in run_on_ranks(go_on, folder, ranks=2) if ranks == 2 else [go_on(None, folder)]:
        assert largest_difference(expected, found) < (1e-4 if ranks == 2 else 1e-12)


def go_on(ranks, checkpoint):
    job = Job(checkpoint.parent.parent / "resumed", ranks, seed=3).resume(checkpoint)
    return weights(job.train(2).engine)


@pytest.fixture
def small_files():
    """No file of this process may become larger than 2 kB: a write then fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_an_error_and_leaves_the_previous_checkpoint(tmp_path, small_files):
    job = Job(tmp_path).train(1)
    before = job.save()
    small_files()
    with pytest.raises(
        CheckpointError,
        match=r"No checkpoint could be written.*Free disk space.*step_00000001 is intact",
    ):
        job.train(1).save()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step_00000001"]
    assert Job(tmp_path).resume().checkpoints.latest() == before


def test_a_full_disk_under_a_thread_is_an_error_at_the_next_step(tmp_path, small_files):
    job = Job(tmp_path).train(1)
    job.save()
    small_files()
    job.train(1)
    job.checkpoints.start_saving(step=2, state={})
    with pytest.raises(CheckpointError, match=r"File too large.*step_00000001 is intact"):
        while True:
            job.checkpoints.check()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step_00000001"]


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        CheckpointError, match=r"No checkpoint could be written to .*file.*there is no earlier one"
    ):
        Job(tmp_path / "file")


@pytest.mark.parametrize(
    "name",
    [
        "actor/model.safetensors",
        "actor/shards/.metadata",
        "actor/shards/__0_0.distcp",
        "state.pt",
    ],
)
def test_a_truncated_file_is_refused_with_expected_and_found_size(tmp_path, name):
    job = Job(tmp_path).train(1)
    file = job.save() / name
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    with pytest.raises(
        CheckpointError,
        match=rf"{name} does not have the size that was saved. Expected: {len(whole)} bytes. Found: 100 bytes",
    ):
        job.resume()


def test_a_changed_file_is_refused(tmp_path):
    job = Job(tmp_path).train(1)
    file = job.save() / "actor" / "model.safetensors"
    whole = bytearray(file.read_bytes())
    whole[-1] ^= 1
    file.write_bytes(whole)
    with pytest.raises(
        CheckpointError,
        match=r"model.safetensors was changed after it was saved. Expected SHA-256: .*Found: ",
    ):
        job.resume()


def test_a_missing_file_is_refused(tmp_path):
    job = Job(tmp_path).train(1)
    (job.save() / "state.pt").unlink()
    with pytest.raises(
        CheckpointError,
        match=r"state.pt does not have the size that was saved.*Found: no such file",
    ):
        job.resume()


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is damaged"), ('{"format": "other"}', "Found: other"), ("[1]", "Found: list")],
)
def test_a_foreign_manifest_is_refused(tmp_path, text, message):
    job = Job(tmp_path).train(1)
    (job.save() / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        job.resume()


def test_a_checkpoint_of_another_model_is_refused_and_changes_nothing(tmp_path):
    Job(tmp_path).train(1).save()
    engine = make_engine(module=TinyPolicy(width=4))
    before = weights(engine)
    manager = CheckpointManager(
        folder=tmp_path / "other", engines={"actor": engine}, ranks=OneProcess()
    )
    with pytest.raises(
        CheckpointError,
        match=r"belongs to another model. Expected 12 tensors, found 12; 10 do not fit",
    ):
        manager.load(tmp_path)
    assert largest_difference(before, weights(engine)) == 0.0


def test_a_checkpoint_of_another_job_is_refused(tmp_path):
    Job(tmp_path).train(1).save()
    engines = {"actor": make_engine(), "critic": make_engine()}
    manager = CheckpointManager(folder=tmp_path / "other", engines=engines, ranks=OneProcess())
    with pytest.raises(CheckpointError, match="holds actor; this job trains actor and critic"):
        manager.load(tmp_path)


def test_a_state_that_would_run_code_is_not_read(tmp_path):
    job = Job(tmp_path).train(1)
    checkpoint = job.save()
    torch.save({"actor": os.system}, checkpoint / "state.pt")
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"]["state.pt"] = fingerprint(checkpoint / "state.pt")
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"state.pt cannot be read. Expected: plain data"):
        job.resume()
