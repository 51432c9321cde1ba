"""A checkpoint that is written while training continues.

Each rank has a thread that writes its shards and leaves a note with what it wrote. The thread of
rank 0 waits for the notes of all ranks, and completes the checkpoint. Threads make no collective
calls, which would mix with those of training; they communicate through files in the shared folder.
"""

import os
import pickle
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from siirl.dag_worker.manifest import Fingerprints, fingerprint
from siirl.engine.training.saved_state import SHARDS, StagedState, Written
from siirl.errors import CheckpointError

POLL_S = 0.05  # between two checks for a note; a shard takes longer


@dataclass(frozen=True)
class Note:
    """Files that a rank wrote."""

    written: dict[str, Written]
    """Write results by engine, for DCP's metadata."""
    files: Fingerprints


class Saving:
    """The threads' work on one checkpoint, on this rank.

    Args:
        folder: The unfinished checkpoint.
        staged: The state of each engine.
        rank: Number of this rank.
        ranks: Number of ranks.
        complete: On rank 0: writes the remaining files and renames the folder; gets the
            fingerprints of all shards, returns the checkpoint.
        stack: Closed at the end: removes unfinished files.
    """

    def __init__(
        self,
        *,
        folder: Path,
        staged: Mapping[str, StagedState],
        rank: int,
        ranks: int,
        complete: Callable[[Fingerprints], Path],
        stack: ExitStack,
    ) -> None:
        self.folder = folder
        self.staged = dict(staged)
        self.rank = rank
        self.ranks = ranks
        self.complete = complete
        self.stack = stack
        self.cancelled = threading.Event()
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self.written: Future[None] = thread.submit(self._write)
        self.finished: Future[Path | None] = thread.submit(self._finish)
        thread.shutdown(wait=False)

    @property
    def failed(self) -> bool:
        """Whether this rank's thread has failed."""
        return any(
            work.done() and work.exception() is not None for work in (self.written, self.finished)
        )

    def cancel(self) -> None:
        """Give up, and wait for the thread to end."""
        self.cancelled.set()
        wait([self.finished])

    def close(self, *, within_s: float) -> None:
        """Wait at most `within_s` for the thread, then give up; makes no collective call."""
        wait([self.finished], timeout=within_s)
        self.cancel()

    def _write(self) -> None:
        written = {name: staged.write(self.folder / name) for name, staged in self.staged.items()}
        names = [
            f"{name}/{SHARDS}/{staged.parts[SHARDS].file_name}"
            for name, staged in self.staged.items()
        ]
        note = Note(written, {name: fingerprint(self.folder / name) for name in names})
        unread = self.folder / f".unread-{self.rank}"
        unread.write_bytes(pickle.dumps(note))
        os.replace(unread, self._note(self.rank))  # atomic: rank 0 polls for this name

    def _finish(self) -> Path | None:
        with self.stack:
            if self.rank != 0 or self.written.exception() is not None:
                return None
            notes = [self._wait_for(rank) for rank in range(self.ranks)]
            for name, staged in self.staged.items():
                staged.complete(self.folder / name, [note.written[name] for note in notes])
            files: Fingerprints = {}
            for note in notes:
                files |= note.files
            return self.complete(files)

    def _wait_for(self, rank: int) -> Note:
        file = self._note(rank)
        while not file.is_file():
            if self.cancelled.wait(POLL_S):
                raise CheckpointError(
                    f"{self.folder} was not completed: rank {rank} wrote no shards."
                )
        note: Note = pickle.loads(file.read_bytes())  # of this run, in a folder of mode 0700
        file.unlink()
        return note

    def _note(self, rank: int) -> Path:
        return self.folder / f".written-{rank}"
