"""Sends weights to a server through a shared folder, one file per bucket.

A file is removed when the server has read it, so the folder needs room for one bucket. Every file
has a new name, because a network file system may serve an old file from its cache.
"""

import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from siirl.engine.rollout.server.handshake import call_workers
from siirl.engine.rollout.server.server_link import ServerError, ServerLink
from siirl.engine.training.weight_buckets import Entry, WeightTransport
from siirl.errors import RunFailed

FOLDER_KEY = "actor_rollout_ref.rollout.server.weights_folder"
MEMORY_FOLDER = "/dev/shm"
SERVER_FAULT = 500  # HTTP status of an exception in the server


class FolderRoute:
    """A `WeightRoute` through a folder.

    Args:
        folder: Shared, with the same path on both sides; None: a private one in this machine's
            memory.
    """

    def __init__(self, folder: Path | None) -> None:
        self._memory = tempfile.TemporaryDirectory(prefix="siirl-weights-", dir=MEMORY_FOLDER)
        self.folder = folder or Path(self._memory.name)

    @contextmanager
    def open(self, link: ServerLink) -> Iterator[WeightTransport]:
        """See `WeightRoute`."""

        def hand_over(file: str, entries: list[Any]) -> None:
            link.wait(call_workers(link, "siirl_take_file", file, json.dumps(entries)))

        try:
            yield FolderBuckets(self.folder, hand_over)
        except ServerError as error:
            remedy = (
                " The server must mount the folder at the same path and serve the trained model."
            )
            raise RunFailed(
                f"{error} The weights are in {FOLDER_KEY}={self.folder}."
                f"{remedy * (error.status == SERVER_FAULT)}"
            ) from error

    def close(self) -> None:
        """See `WeightRoute`."""
        self._memory.cleanup()


class FolderBuckets:
    """A `WeightTransport` whose buckets are files.

    Args:
        folder: Existing folder that both sides share.
        call: Carries the path of a bucket and its packed entries to the server; returns when the
            server has read it.
    """

    def __init__(self, folder: Path, call: Callable[[str, list[Any]], None]) -> None:
        self.folder = folder
        self.call = call
        self._numbers = itertools.count()

    def buffer(self, size: int) -> torch.Tensor:
        """See `WeightTransport`."""
        return torch.empty(size, dtype=torch.uint8)

    def deliver(self, entries: Sequence[Entry], buffer: torch.Tensor) -> None:
        """See `WeightTransport`.

        Raises:
            RunFailed: The folder cannot hold the bucket.
        """
        file = self.folder / f"{os.getpid()}-{next(self._numbers)}.bucket"
        try:
            self._write(file, buffer[: entries[-1].end])
            self.call(str(file), [entry.packed() for entry in entries])
        finally:
            file.unlink(missing_ok=True)

    def finish(self) -> None:
        """See `WeightTransport`."""

    def _write(self, file: Path, content: torch.Tensor) -> None:
        try:
            with file.open("wb") as stream:
                stream.write(content.numpy().data)
                stream.flush()
                os.fsync(stream.fileno())  # a server on another machine reads it next
        except OSError as error:
            raise RunFailed(
                f"{FOLDER_KEY}={self.folder} cannot hold a bucket of {len(content) >> 20} MiB "
                f"({error}): make room, name another folder, or lower "
                "actor_rollout_ref.rollout.update_weights_bucket_megabytes."
            ) from error


def read_bucket(file: str, entries: Sequence[Entry]) -> torch.Tensor:
    """The content of a bucket, uint8, memory-mapped.

    Raises:
        ValueError: The file is empty, or shorter than its entries.
        OSError: It cannot be read.
    """
    # private mapping: torch refuses read-only memory
    content = torch.from_numpy(np.memmap(file, np.uint8, mode="c"))
    if entries[-1].end > len(content):
        raise ValueError(
            f"{file} has {len(content)} bytes, but its weights take {entries[-1].end}."
        )
    return content
