"""Links the frozen weights of an earlier checkpoint into a new one.

A hard link is a second name of the same data on disk: deleting one of the two checkpoints leaves
the other whole, and a copy of a checkpoint has data of its own. A file is linked only if this
process wrote it or verified its digest, and nothing changed it since. Otherwise, or on a file
system without links, it is written again.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siirl.dag_worker.manifest import Fingerprints
from siirl.engine.training.tensor_files import Types
from siirl.errors import CheckpointError
from siirl.files.weight_files import FROZEN_FILE
from siirl.models.stored_tensors import StoredTensors


@dataclass(frozen=True)
class _KnownFile:
    """A file whose digest is known."""

    path: Path
    fingerprint: dict[str, Any]
    condition: tuple[int, ...]


class FrozenFiles:
    """The newest files of frozen weights that can be linked, by engine."""

    def __init__(self) -> None:
        self._known: dict[str, _KnownFile] = {}

    def remember(self, checkpoint: Path, files: Fingerprints, *, engines: Iterable[str]) -> None:
        """Take the files of a checkpoint.

        Args:
            checkpoint: Its folder.
            files: Fingerprints that this process computed from the files, or compared with them.
            engines: Names of the engines.
        """
        self._known = {}
        for engine in engines:
            known = files.get(f"{engine}/{FROZEN_FILE}")
            path = (checkpoint / engine / FROZEN_FILE).resolve()  # a link to a link is no copy
            with suppress(OSError):
                if known is not None:
                    self._known[engine] = _KnownFile(path, known, _condition(path))

    def link(self, engine: str, folder: Path, *, frozen: Types) -> dict[str, Any] | None:
        """Link the file into an engine's folder.

        Args:
            engine: Name of the engine.
            folder: The engine's folder in the new checkpoint.
            frozen: Its frozen weights.

        Returns:
            The file's fingerprint; None if it must be written.
        """
        known = self._known.get(engine)
        file = folder / FROZEN_FILE
        if known is None:
            return None
        try:
            if StoredTensors([known.path]).types != frozen:
                return None
            os.link(known.path, file)
        except (OSError, CheckpointError):  # no links here, deleted, or damaged
            return None
        if _condition(file) != known.condition:
            file.unlink()
            return None
        return known.fingerprint


def _condition(file: Path) -> tuple[int, ...]:
    """Numbers that change when a file is replaced or written to."""
    found = file.stat()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
