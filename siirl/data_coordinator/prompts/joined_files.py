"""Several prompt files as one list of rows with random access; only the files' own indices are in
memory.

Pickling stores only the paths, so that a worker process opens the files itself. Errors name the
configuration's key, then file and row.
"""

import bisect
import os
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from envs.prompt_files import open_prompts
from envs.prompt_rows import PromptFile, PromptRow, require_truth
from siirl.errors import ConfigError, MissingAssetError
from siirl.files.hub_files import local_copy
from siirl.files.hub_place import DATASET, hub_place
from siirl.params.key_names import TRAIN_FILES

SPLITS = {"training": ("train",), "held-out": ("test", "validation", "val", "valid", "dev")}
"""Names of splits on the Hub, by their use in siirl."""
CheckRow = Callable[[PromptRow], object]
"""Raises ValueError for a row that the environment cannot use: `EnvSpec.check_row`."""


def check_truth(row: PromptRow) -> object:
    """Raises ValueError for a row without a ground truth: the default check."""
    return require_truth(row.ground_truth)


class PromptFiles:
    """The rows of `paths`, one file after another, numbered from 0.

    Args:
        paths: The files.
        key: The configuration key that names them, for messages.

    Raises:
        ConfigError: A file that is not a prompt file; with key, file, row and remedy.
        MissingAssetError: A missing file.
    """

    def __init__(self, paths: Sequence[Path], *, key: str) -> None:
        self.paths, self.key = tuple(paths), key
        self._files = [_open(path, key) for path in self.paths]
        self._starts = [0, *accumulate(len(file) for file in self._files)]

    def __len__(self) -> int:
        return self._starts[-1]

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths, "key": self.key}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def data_sources(self) -> set[str]:
        """Every `data_source`; reads this column of all rows.

        Raises:
            ConfigError: An invalid row.
        """
        try:
            return {source for file in self._files for source in file.data_sources()}
        except ValueError as error:
            raise ConfigError(f"{self.key}: {error}") from error

    def read(self, rows: Sequence[int], *, check: CheckRow | None = None) -> Iterator[PromptRow]:
        """The rows with these ascending numbers, each file in one pass.

        Args:
            rows: Numbers of rows.
            check: The environment's check of a row, in addition to its columns.

        Raises:
            ConfigError: An invalid row, or one that `check` refuses; with key, file, row and
                remedy.
        """
        for number, file in enumerate(self._files):
            first, end = self._starts[number], self._starts[number + 1]
            wanted = rows[bisect.bisect_left(rows, first) : bisect.bisect_left(rows, end)]
            if len(wanted):
                yield from self._checked(file, [int(row) - first for row in wanted], check)

    def _checked(
        self, file: PromptFile, rows: Sequence[int], check: CheckRow | None
    ) -> Iterator[PromptRow]:
        try:
            for number, row in zip(rows, file.select(rows), strict=True):
                if check is not None:
                    _check(row, check, file, number)
                yield row
        except ValueError as error:
            raise ConfigError(f"{self.key}: {error}") from error


def open_prompt_files(names: Sequence[str], *, key: str) -> PromptFiles:
    """The files that the configuration key `key` names, `~` and relative paths resolved.

    Raises:
        ConfigError: No file, a repeated file, or one that is not a prompt file.
        MissingAssetError: A missing file.
    """
    if not names:
        raise ConfigError(f"{key}=[] names no file with prompts.")
    paths = [path for name in names for path in prompt_paths(name, key=key)]
    resolved = [os.path.realpath(path) for path in paths]
    repeated = [path for path, end in zip(paths, resolved, strict=True) if resolved.count(end) > 1]
    if repeated:
        raise ConfigError(
            f"{key} names {repeated[0]} more than once: its prompts would count twice. Name it "
            "once."
        )
    return PromptFiles(paths, key=key)


def prompt_paths(name: str, *, key: str) -> list[Path]:
    """The files of an entry of `key`: the file itself, or a folder's files of the key's split.

    Files of a split begin with its name, as on the Hub (`train-00000-of-00001.parquet`), or lie in
    a folder of that name. `hf://...` is downloaded.

    Raises:
        ConfigError: A folder without files of the split, or with such files in several folders.
        MissingAssetError: A place that the Hub does not serve.
    """
    place = hub_place(name, place=key, kind=DATASET)
    # Path.resolve raises for a link to itself
    path = Path(os.path.realpath(Path(name).expanduser()))
    if place is not None:
        path = local_copy(place, key=key)[0]  # a link; its target has no file extension
    if not path.is_dir():
        return [path]
    split = "training" if key == TRAIN_FILES else "held-out"
    found = [
        file
        for file in sorted(path.rglob("*"))
        if file.suffix in (".parquet", ".jsonl")
        and _split_of(file.relative_to(path)) in SPLITS[split]
    ]
    folders = sorted({str(file.parent.relative_to(path)) for file in found})
    if len(folders) > 1:
        raise ConfigError(
            f"{key}={name} has {split} files in several folders: {', '.join(folders)}. Name one: "
            f"{name}/{folders[0]}"
        )
    if not found:
        names = ", ".join(sorted(entry.name for entry in path.iterdir())[:8]) or "nothing"
        raise ConfigError(
            f"{key}={name} is a folder without {split} files (*.parquet or *.jsonl whose name "
            f"begins with {', '.join(SPLITS[split])}). It contains {names}. Name one of its files."
        )
    return found


def _split_of(file: Path) -> str:
    """`train` of `train-00000-of-00001.parquet`, `train_1.jsonl` and `train/0.parquet`."""
    own = re.split(r"[-_.]", file.name)[0]
    known = {name for names in SPLITS.values() for name in names}
    return own if own in known else file.parent.name


def _open(path: Path, key: str) -> PromptFile:
    try:
        return open_prompts(path)
    except FileNotFoundError as error:
        raise MissingAssetError(f"{key}: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error


def _check(row: PromptRow, check: CheckRow, file: PromptFile, number: int) -> None:
    try:
        check(row)
    except ValueError as error:
        raise ValueError(
            f"{file.path}, {file.place(number)}: {error}. Correct or remove the row."
        ) from error
