"""Sources of a maths environment's questions: generators and files, behind one interface.

A question belongs to a task and a split. A seed selects a question, the same in every process.
"""

import functools
import itertools
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from envs.arguments import checked_choice
from envs.math.generators import WORDINGS, GeneratedTask, draw_question, held_out, prompt_row
from envs.math.grading import check_truth
from envs.prompt_files import open_prompts
from envs.prompt_rows import PromptFile, PromptRow

LUCKY_DRAWS = 200  # rows tried at random before all are searched


class QuestionSource(Protocol):
    """Source of questions for `MathEnv`."""

    tasks: tuple[str, ...]
    """Names of the tasks."""

    def draw(self, task: str, *, split: str, seed: int | None) -> PromptRow:
        """The row of `task` and `split` that `seed` selects; any row without a seed.

        Raises:
            ValueError: The split has no rows of this task.
        """


class GeneratedQuestions:
    """Questions from the generators of `envs.math.generators`."""

    def __init__(self, tasks: Sequence[str], *, wording: str, heldout_share: float) -> None:
        checked_choice("wording", wording, WORDINGS)
        self._generators = {name: GeneratedTask.of(name) for name in tasks}
        self.tasks = tuple(self._generators)
        self._wording, self._heldout_share = wording, heldout_share

    def draw(self, task: str, *, split: str, seed: int | None) -> PromptRow:
        """See `QuestionSource.draw`."""
        generator = self._generators[task]
        question = draw_question(
            generator, split=split, heldout_share=self._heldout_share, seed=seed
        )
        return prompt_row(generator, question, wording=self._wording, split=split)


class FileQuestions:
    """Rows of files; a task is a `data_source`, and a hash of the prompt chooses the split."""

    def __init__(
        self,
        files: Sequence[str],
        *,
        tasks: Sequence[str] | None,
        heldout_share: float,
        ungraded: bool = False,
    ) -> None:
        self._files = tuple(str(file) for file in files)
        self._heldout_share = heldout_share
        self._check = any_row if ungraded else check_row
        self._fingerprints = tuple(map(_fingerprint, self._files))
        places = _places(self._files, self._fingerprints)
        unknown = [task for task in tasks or () if task not in places]
        if unknown:
            raise ValueError(
                f"No row of {', '.join(self._files)} has the data_source {unknown[0]!r}; there "
                f"are: {', '.join(places)}."
            )
        self.tasks = tuple(tasks or places)
        self._places = places

    def draw(self, task: str, *, split: str, seed: int | None) -> PromptRow:
        """See `QuestionSource.draw`."""
        places = self._places[task]
        random = np.random.default_rng(
            None if seed is None else [seed, zlib.crc32(task.encode("utf-8", "surrogatepass"))]
        )
        for number in itertools.chain(
            random.integers(len(places), size=LUCKY_DRAWS), range(len(places))
        ):
            file, row_number = places[int(number)]
            row = _open(self._files[file], self._fingerprints[file]).row(row_number)
            if held_out(_key(row), share=self._heldout_share) == (split == "heldout"):
                return self._checked(row, file, row_number)
        raise ValueError(
            f"None of the {len(places)} rows of {task!r} is in the split {split} at "
            f"heldout_share={self._heldout_share}."
        )

    def _checked(self, row: PromptRow, file: int, row_number: int) -> PromptRow:
        try:
            return self._check(row)
        except ValueError as error:
            place = _open(self._files[file], self._fingerprints[file]).place(row_number)
            raise ValueError(
                f"{self._files[file]}, {place}: {error}. Correct or remove the row."
            ) from error


def check_row(row: PromptRow) -> PromptRow:
    """`row`, if it can be graded; raises ValueError if not."""
    check_truth(row.ground_truth, style=row.style)
    return row


def any_row(row: PromptRow) -> PromptRow:
    """`row`, graded or not: the `check_row` of an environment that does not grade."""
    return row


def can_grade(row: PromptRow) -> bool:
    """Whether `row` can be graded."""
    try:
        check_row(row)
    except ValueError:
        return False
    return True


def _key(row: PromptRow) -> str:
    return "\n".join(f"{entry['role']}: {entry['content']}" for entry in row.prompt)


def _fingerprint(file: str) -> tuple[int, int]:
    """Size and modification time: a changed file is read again."""
    if not Path(file).is_file():
        return (0, 0)  # `open_prompts` reports the fault
    status = Path(file).stat()
    return status.st_size, status.st_mtime_ns


# Cached because one server hosts many environments that read the same files.
@functools.lru_cache(maxsize=16)
def _open(file: str, fingerprint: tuple[int, int]) -> PromptFile:
    return open_prompts(file)


@functools.lru_cache(maxsize=4)
def _places(
    files: tuple[str, ...], fingerprints: tuple[tuple[int, int], ...]
) -> dict[str, list[tuple[int, int]]]:
    """(file, row) of every row by `data_source`, in order of appearance."""
    places: dict[str, list[tuple[int, int]]] = {}
    for number, (file, fingerprint) in enumerate(zip(files, fingerprints, strict=True)):
        for row, source in enumerate(_open(file, fingerprint).data_sources()):
            places.setdefault(source, []).append((number, row))
    return places
