"""The stream of training prompts: prompt i belongs to epoch i // prompts; each epoch has a
different order.

The order is a pure function of seed and epoch and so independent of the number of ranks; rank
r takes the numbers r, r + ranks, … and reads those rows only.
"""

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from envs.prompt_rows import PromptRow
from siirl.data_coordinator.prompts.index import PromptIndex, question_number
from siirl.data_coordinator.prompts.joined_files import PromptFiles
from siirl.data_coordinator.task_stream import EpisodeTask, training_seed
from siirl.errors import ConfigError, InvariantError

ALL_TASKS = "all"  # the total over tasks in metrics and tables


@dataclass(frozen=True)
class PromptTask(EpisodeTask):
    """A prompt of text training; `trial_id` is the number of its row in the files."""

    prompt_row: str
    """The row with the prompt columns, as JSON; `reset(options={"row": …})` takes it decoded."""


@dataclass(frozen=True)
class Prompts:
    """A subset of the rows of prompt files."""

    files: PromptFiles
    rows_N: NDArray[np.int64]
    """Row numbers, ascending."""
    question_N: NDArray[np.uint64]
    """Digest of each row's question when the files were indexed."""
    source_N: NDArray[np.int32]
    """Position of each row's data source in `sources`."""
    sources: tuple[str, ...]
    """Every data source; a task's id is its position here."""

    @classmethod
    def of(cls, files: PromptFiles, index: PromptIndex, rows: NDArray[np.int64]) -> "Prompts":
        """The part `rows` of indexed files."""
        check_task_names(index.sources)
        return cls(files, rows, index.question_N[rows], index.source_N[rows], index.sources)

    def read(self, places: Sequence[int]) -> dict[int, PromptRow]:
        """The rows at these positions of `rows_N`, by position; each is read once.

        Raises:
            InvariantError: A file was changed after it was indexed.
        """
        ordered = sorted(set(places))
        found = dict(zip(ordered, self.files.read(self.rows_N[ordered].tolist()), strict=True))
        for place, row in found.items():
            if not self._is_unchanged(row, place):
                raise InvariantError(
                    f"{self.files.key}: row {self.rows_N[place]} of "
                    f"{', '.join(map(str, self.files.paths))} differs from the question "
                    "at the start of the run: the files were changed. Start a new run, and do not "
                    "change the files while it runs."
                )
        return found

    def _is_unchanged(self, row: PromptRow, place: int) -> bool:
        try:
            return question_number(row) == int(self.question_N[place])
        except ValueError:  # a picture is gone
            return False

    def digest(self) -> str:
        """Fingerprint of the questions and their order."""
        return hashlib.sha256(self.question_N.astype("<u8").tobytes()).hexdigest()[:16]

    def task(self, row: PromptRow, place: int, *, seed: int, group_id: int) -> PromptTask:
        """The row at `place` as a task for a rollout."""
        return PromptTask(
            task=task_name(row.data_source),
            task_id=self.sources.index(row.data_source),
            trial_id=int(self.rows_N[place]),
            seed=seed,
            group_id=group_id,
            # parquet knows dates and decimals, JSON does not
            prompt_row=json.dumps(row.as_columns(), default=str),
        )


class PartitionedRLHFDataset(Dataset[PromptTask]):
    """The stream as a map-style dataset, indexed by position in the stream; `own_numbers` are the
    positions of this rank.

    Args:
        prompts: The training prompts.
        seed: Seed of the order.
        rank: This rank.
        ranks: Number of ranks.

    Raises:
        ConfigError: A rank out of range.
    """

    def __init__(self, prompts: Prompts, *, seed: int, rank: int = 0, ranks: int = 1) -> None:
        if not 0 <= rank < ranks:
            raise ConfigError(
                f"PartitionedRLHFDataset: rank {rank} of {ranks}; ranks count from 0."
            )
        self.prompts, self.seed = prompts, seed
        self.rank, self.ranks = rank, ranks

    def __len__(self) -> int:
        """Prompts of an epoch, over all ranks."""
        return len(self.prompts.rows_N)

    def __getitem__(self, number: int) -> PromptTask:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[PromptTask]:
        """Several prompts of the stream; rows are read in the order of the file, each once."""
        places = [self._place(number) for number in numbers]
        rows = self.prompts.read(places)
        return [
            self.prompts.task(
                rows[place],
                place,
                seed=training_seed(run_seed=self.seed, number=number),
                group_id=number,
            )
            for number, place in zip(numbers, places, strict=True)
        ]

    def own_numbers(self, start: int, end: int) -> range:
        """Numbers of the stream from `start` up to `end` that this rank takes."""
        return range(start + (self.rank - start) % self.ranks, end, self.ranks)

    def own_batches(self, start: int, *, size: int) -> Iterator[list[int]]:
        """This rank's numbers from `start` on, without end, `size` at a time."""
        first = self.own_numbers(start, start + self.ranks)[0]
        while True:
            yield [first + self.ranks * place for place in range(size)]
            first += self.ranks * size

    def _place(self, number: int) -> int:
        epoch, position = divmod(number, len(self))
        return int(epoch_order(self.seed, epoch, len(self))[position])


@functools.lru_cache(maxsize=2)  # a batch may lie across two epochs
def epoch_order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """The order of an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def task_name(data_source: str) -> str:
    """A data source as part of a metric's name, in which a slash separates: `openai/gsm8k` is
    `openai_gsm8k`, and `all`, the name of the total, is `all_`.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", data_source)
    return f"{name}_" if name == ALL_TASKS else name


def check_task_names(sources: Sequence[str]) -> None:
    """Refuse data sources with the same task name.

    Raises:
        ConfigError: Names the two.
    """
    by_name: dict[str, str] = {}
    for source in sources:
        other = by_name.setdefault(task_name(source), source)
        if other != source:
            raise ConfigError(
                f"The data sources {other!r} and {source!r} have the same name "
                f"{task_name(source)!r} in metrics. Rename one of them."
            )
