"""Checkpoints: folders that are complete or absent, and a pointer to the newest.

    checkpoints/
      latest                    name of the newest folder, replaced in one step
      step_00000020/
        manifest.json           expected files, with size and SHA-256
        state.pt                counters, generators and memories of the run's components
        actor/                  one folder per engine
          model.safetensors     whole weights; with config.json a policy that `model.path` reads
          shards/               weights and moments, one file per rank, by
                                torch.distributed.checkpoint

Frozen weights have a file of their own (siirl.engine.training.saved_state), which is written once a
run; later checkpoints have a link to it (siirl.dag_worker.frozen_files).

A rank copies its shards to host memory, then a thread writes them while training continues; at
most one checkpoint is being written. It is written under a temporary name, flushed to disk and
renamed, so a crash leaves the previous one intact. A checkpoint loads on any number of ranks: each
reads its part. `state` is the same on every rank. No file is trusted: sizes and digests are checked
before anything is read, and reading executes no code from the file. Checkpoints of siirl 0.1, with
whole moments in `optimizer.safetensors`, load as well.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from siirl.dag_worker.frozen_files import FrozenFiles
from siirl.dag_worker.manifest import (
    EVALUATION_DUE,
    FORMAT,
    KEPT_CHECKPOINTS,
    LATEST,
    MANIFEST,
    STATE_FILE,
    Fingerprints,
    fingerprint,
    read_manifest,
    reading,
    require_engines,
    resolve_checkpoint,
    verify_files,
)
from siirl.dag_worker.plain_state import read_state, write_state
from siirl.dag_worker.saving import Saving
from siirl.dag_worker.temporary_checkpoint import POINTER, remove_unfinished, unfinished_folder
from siirl.engine.training.collectives import Collectives, raise_on_all_ranks
from siirl.engine.training.tensor_files import Types, let_others_read
from siirl.engine.training.train_engine import TrainEngine
from siirl.errors import CheckpointError, SiirlError
from siirl.files.weight_files import FROZEN_FILE
from siirl.occupation import OCCUPATION

FOLDER_NAME = re.compile(r"step_(\d{8,})(?:-(\d+))?")


@dataclass(frozen=True)
class Checkpoint:
    """Contents of a checkpoint other than weights and moments."""

    folder: Path
    step: int
    state: dict[str, Any]
    evaluation_due: bool = False
    """Whether a resumed run first repeats the evaluation of this step."""


class CheckpointManager:
    """Writes and reads the checkpoints of one run; every rank calls every method.

    Args:
        folder: `<run folder>/checkpoints`; created if missing.
        engines: Trained engines by the name of their folder.
        ranks: The ranks of the run; rank 0 reads and writes.
        keep: Number of checkpoints to keep; the oldest are deleted. None keeps all.
        export: Called on rank 0 with the unfinished folder to add files, for example the policy's
            config.json next to its weights.

    Raises:
        CheckpointError: The folder is not writable.
    """

    def __init__(
        self,
        *,
        folder: Path,
        engines: Mapping[str, TrainEngine],
        ranks: Collectives,
        keep: int | None = KEPT_CHECKPOINTS,
        export: Callable[[Path], None] = lambda folder: None,
        more_state: Callable[[int], dict[str, Any]] = lambda step: {},
    ) -> None:
        self.folder = folder
        self.engines = engines
        self.ranks = ranks
        self.keep = keep
        self.export = export
        self.more_state = more_state
        self.loaded: Checkpoint | None = None
        """Contents that `load` has read."""
        self._saving: Saving | None = None
        self._frozen_files = FrozenFiles()
        self._on_rank_0(self._prepare)

    def save(self, *, step: int, state: dict[str, Any], evaluation_due: bool = False) -> Path:
        """Write a checkpoint and make it the newest; returns its folder when it is complete.

        Takes the arguments of `start_saving` and raises its errors, but saves the memory of the
        copy.
        """
        self.start_saving(step=step, state=state, evaluation_due=evaluation_due, copy=False)
        folder = self.wait()
        assert folder is not None
        return folder

    def start_saving(
        self, *, step: int, state: dict[str, Any], evaluation_due: bool = False, copy: bool = True
    ) -> None:
        """Take a checkpoint now, and write it while the caller continues.

        Waits for the previous checkpoint if it is still being written.

        Args:
            step: Training step after which the checkpoint is taken.
            state: Everything else that the next step depends on: numbers, strings, tensors and
                numpy arrays in dicts, lists and tuples. It must be the same on every rank; owners
                gather values that differ.
            evaluation_due: Whether a resumed run first repeats the evaluation of this step.
            copy: Copy the shards to host memory, so that the weights may change before they are
                written.

        Raises:
            CheckpointError: This checkpoint cannot be written, or writing the previous one failed
                (disk full, unreadable state). Earlier checkpoints are untouched.
        """
        self.wait()
        state = state | self.more_state(step)
        frozen = {name: engine.frozen.types(self.ranks) for name, engine in self.engines.items()}
        with ExitStack() as stack:
            unfinished, linked = self.ranks.broadcast_object(
                self._on_rank_0(lambda: self._begin(stack, step, state, frozen))
            )
            staged = {
                name: engine.stage(copy=copy, frozen=frozen[name], linked=name in linked)
                for name, engine in self.engines.items()
            }
            known = {f"{name}/{FROZEN_FILE}": found for name, found in linked.items()}
            self._saving = Saving(
                folder=unfinished,
                staged=staged,
                rank=self.ranks.rank,
                ranks=self.ranks.size,
                complete=lambda files: self._complete(
                    unfinished, step, evaluation_due, files | known
                ),
                stack=stack.pop_all(),
            )

    def check(self) -> None:
        """Raise the error of a checkpoint that could not be written; every rank calls it.

        It does not wait.

        Raises:
            CheckpointError: See `start_saving`.
        """
        if self._saving is not None and any(self.ranks.gather_objects(self._saving.failed)):
            self.wait()

    def wait(self) -> Path | None:
        """Wait for the checkpoint that is being written; every rank calls it.

        Returns:
            Folder of the checkpoint; None if none is being written.

        Raises:
            CheckpointError: It could not be written.
        """
        saving, self._saving = self._saving, None
        return None if saving is None else self._wait_for(saving)

    def close(self, *, within_s: float) -> None:
        """Wait at most `within_s` for the checkpoint that is being written, without a collective
        call.

        Used when a run ends with an error, because other ranks may be gone.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.close(within_s=within_s)

    def load(self, checkpoint: Path | None = None) -> Checkpoint:
        """Load weights and moments of a checkpoint into the engines; return its other contents.

        Args:
            checkpoint: Folder of a checkpoint, of several checkpoints or of a run; None: the newest
                of this run.

        Raises:
            CheckpointError: No checkpoint, or one that is damaged, foreign or of another model.
        """
        folder = self.ranks.broadcast_object(
            self._on_rank_0(lambda: self._locate(checkpoint or self.folder))
        )
        with raise_on_all_ranks(self.ranks):
            verify_files(folder, rank=self.ranks.rank, ranks=self.ranks.size)
        found: Checkpoint = self.ranks.broadcast_object(self._on_rank_0(lambda: self._read(folder)))
        for name, engine in self.engines.items():
            engine.load(folder / name)
        self._on_rank_0(lambda: self._remember(folder))
        self.loaded = found
        return found

    def latest(self) -> Path | None:
        """The newest checkpoint of this run; None before the first.

        Raises:
            CheckpointError: Its pointer is damaged, or the disk fails.
        """
        return self.ranks.broadcast_object(self._on_rank_0(self._find_latest))

    def _on_rank_0(self, action: Callable[[], Any]) -> Any:
        """Run `action` on rank 0 and return its result there; its error is raised on all ranks."""
        with raise_on_all_ranks(self.ranks):
            return action() if self.ranks.rank == 0 else None

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """Raise an OSError of the block as a CheckpointError that names the folder and remedy."""
        try:
            yield
        except OSError as error:
            newest = "there is no earlier one"
            if (self.folder / LATEST).is_file():
                newest_name = (self.folder / LATEST).read_text(errors="replace").strip()
                newest = f"{self.folder / newest_name} is intact"
            raise CheckpointError(
                f"No checkpoint could be written to {self.folder}: {error}. Free disk space or "
                f"choose another trainer.output_dir; {newest}."
            ) from error

    def _wait_for(self, saving: Saving) -> Path:
        """Folder of a checkpoint when it is complete; all ranks fail if one could not write."""
        with OCCUPATION.doing("waits for a checkpoint to be written"):
            try:
                with raise_on_all_ranks(self.ranks), self._disk_errors():
                    saving.written.result()
            except SiirlError:
                saving.cancel()
                raise
            with raise_on_all_ranks(self.ranks), self._disk_errors():
                complete: Any = saving.finished.result() if self.ranks.rank == 0 else None
            return self.ranks.broadcast_object(complete)

    def _prepare(self) -> None:
        with self._disk_errors():
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_unfinished(self.folder)
            tempfile.TemporaryFile(dir=self.folder).close()

    def _begin(
        self, stack: ExitStack, step: int, state: dict[str, Any], frozen: Mapping[str, Types]
    ) -> tuple[Path, Fingerprints]:
        """Make the unfinished folder, with all files but the shards and those derived from them.

        Args:
            stack: Deletes the folder unless it is renamed.
            step: See `start_saving`.
            state: See `start_saving`.
            frozen: Frozen weights of each engine.

        Returns:
            The folder, and, by engine, the fingerprint of frozen weights that are already in it.
        """
        linked = {}
        with self._disk_errors():
            unfinished = stack.enter_context(unfinished_folder(self.folder))
            for name in self.engines:
                (unfinished / name).mkdir(parents=True)
                known = self._frozen_files.link(name, unfinished / name, frozen=frozen[name])
                if known is not None:
                    linked[name] = known
            write_state(unfinished / STATE_FILE, state)
            self.export(unfinished)
        return unfinished, linked

    def _remember(self, checkpoint: Path) -> None:
        """Link frozen weights from a checkpoint that this process wrote or verified."""
        files = read_manifest(checkpoint, verify=False)["files"]
        self._frozen_files.remember(checkpoint, files, engines=self.engines)

    def _complete(
        self, unfinished: Path, step: int, evaluation_due: bool, files: Fingerprints
    ) -> Path:
        """Write the manifest, and put the checkpoint in place; runs in the thread of rank 0."""
        for name in self.engines:
            let_others_read(unfinished / name)
        names = [
            str(path.relative_to(unfinished))
            for path in sorted(unfinished.rglob("*"))
            if path.is_file()
        ]
        all_files = {name: files.get(name) or fingerprint(unfinished / name) for name in names}
        manifest = {
            "format": FORMAT,
            "step": step,
            **({EVALUATION_DUE: True} if evaluation_due else {}),
            "engines": sorted(self.engines),
            "torch": torch.__version__,
            "files": all_files,
        }
        (unfinished / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        for path in [*unfinished.rglob("*"), unfinished]:
            _flush(path)
        unfinished.chmod(0o755)  # mkdtemp creates folders with mode 0700
        final = _free_name(self.folder, step)
        unfinished.rename(final)
        _flush(self.folder)
        self._frozen_files.remember(final, all_files, engines=self.engines)
        self._point_to(final)
        self._delete_old()
        return final

    def _point_to(self, final: Path) -> None:
        pointer = self.folder / POINTER
        pointer.write_text(final.name + "\n")
        _flush(pointer)
        pointer.replace(self.folder / LATEST)
        _flush(self.folder)

    def _delete_old(self) -> None:
        if self.keep is None:
            return
        newest = (self.folder / LATEST).read_text().strip()
        others = sorted(
            (
                path
                for path in self.folder.iterdir()
                if FOLDER_NAME.fullmatch(path.name) and path.name != newest
            ),
            key=_age,
        )
        for path in others[: max(0, len(others) + 1 - max(1, self.keep))]:
            shutil.rmtree(path)

    def _find_latest(self) -> Path | None:
        with reading(self.folder):
            exists = (self.folder / LATEST).exists()
        return resolve_checkpoint(self.folder) if exists else None

    def _locate(self, checkpoint: Path) -> Path:
        folder = resolve_checkpoint(checkpoint)
        require_engines(folder, sorted(self.engines))
        return folder

    def _read(self, folder: Path) -> Checkpoint:
        manifest = read_manifest(folder, verify=False)
        return Checkpoint(
            folder=folder,
            step=manifest["step"],
            state=read_state(folder / STATE_FILE),
            evaluation_due=manifest.get(EVALUATION_DUE, False),
        )


def _flush(path: Path) -> None:
    """Force a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _free_name(folder: Path, step: int) -> Path:
    """`step_<step>`, with a suffix if a resumed run repeats the step."""
    name, again = folder / f"step_{step:08d}", 0
    while name.exists():
        again += 1
        name = folder / f"step_{step:08d}-{again}"
    return name


def _age(path: Path) -> tuple[int, int]:
    match = FOLDER_NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2] or 0)
