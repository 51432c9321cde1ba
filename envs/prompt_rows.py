"""One prompt of a file with its ground truth, and the interface of an open file.

A row has the prompt columns or GSM8K's two (`envs.prompt_files`). Every fault raises a ValueError
with file, row and remedy.
"""

import abc
import functools
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envs.names import nearest
from envs.question_pictures import PictureSource, picture_sources
from envs.surrogates import check_surrogates
from envs.text import Message, checked_messages, message, shortened

logger = logging.getLogger(__name__)

REQUIRED = ("data_source", "prompt", "reward_model")
IMAGES = "images"
COLUMNS = ("data_source", "prompt", "reward_model", "ability", "extra_info", IMAGES)
GSM8K_COLUMNS = ("question", "answer")
GSM8K_SOURCE = "openai/gsm8k"  # the name of the data set on the Hub
GSM8K_INSTRUCTION = "Think step by step, and write the final answer as a number after ####."
_TRUTH = "reward_model.ground_truth must be text or a finite number"
MAX_ROW_BYTES = 16 << 20  # per unpacked row or line: more text than any model takes


@dataclass(frozen=True)
class PromptRow:
    """One prompt with its ground truth."""

    data_source: str
    """Source, for example `openai/gsm8k`; rewards and accuracies are grouped by it."""
    prompt: tuple[Message, ...]
    """Chat messages, at least one."""
    ground_truth: str | None
    """Reference for grading; None or blank if there is none."""
    style: str = "rule"
    """Grading style; `envs.math.grading.STYLES` has those of MathEnv."""
    ability: str = "math"
    """Kind of task, for reports."""
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    """Additional data."""
    images: tuple[PictureSource, ...] = ()
    """Pictures, one for each placeholder in the prompt."""

    @classmethod
    def of(cls, columns: Mapping[str, Any], *, folder: Path | None = None) -> "PromptRow":
        """Read a row in the form of the prompt columns.

        Args:
            columns: The row.
            folder: Base of relative picture paths.

        Raises:
            ValueError: A missing or invalid column; the message names column and remedy.
        """
        missing = [name for name in REQUIRED if name not in columns]
        if missing:
            raise ValueError(
                f"column {missing[0]!r} is missing; it has {', '.join(map(str, columns)) or 'none'}"
            )
        reward_model = columns["reward_model"]
        if not isinstance(reward_model, Mapping):
            raise ValueError(
                f"reward_model must be {{style, ground_truth}}, got {shortened(reward_model)}"
            )
        try:
            prompt = checked_messages(columns["prompt"])
        except ValueError as error:
            raise ValueError(f"prompt {error}") from error
        return cls(
            data_source=_text(columns["data_source"], name="data_source"),
            prompt=tuple(prompt),
            ground_truth=_ground_truth(reward_model.get("ground_truth")),
            style=_text(reward_model.get("style", "rule"), name="reward_model.style"),
            ability=_text(columns.get("ability") or "math", name="ability"),
            extra_info=_entries(columns.get("extra_info"), name="extra_info"),
            images=(
                picture_sources(columns[IMAGES], prompt=prompt, folder=folder)
                if IMAGES in columns
                else ()
            ),
        )

    def as_columns(self) -> dict[str, Any]:
        """Return plain dicts and lists, as for `options={"row": …}`; the inverse of `of`."""
        pictures = {IMAGES: [picture.as_entry() for picture in self.images]} if self.images else {}
        return {
            "data_source": self.data_source,
            "prompt": [message(entry["role"], entry["content"]) for entry in self.prompt],
            "ability": self.ability,
            "reward_model": {"style": self.style, "ground_truth": self.ground_truth},
            "extra_info": dict(self.extra_info),
            **pictures,
        }


class PromptFile(abc.ABC):
    """An open file of prompts; `len` is its number of rows."""

    path: Path

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def data_sources(self) -> list[str]:
        """`data_source` of every row, in order."""

    @abc.abstractmethod
    def place(self, row: int) -> str:
        """Describe a row's position in the file, for messages."""

    @abc.abstractmethod
    def rows(self, start: int, stop: int) -> list[PromptRow]:
        """Read rows `start` to `stop` (exclusive) from disk.

        Raises:
            ValueError: A row that is wrong, with file, row and remedy.
        """

    @abc.abstractmethod
    def select(self, rows: Sequence[int]) -> Iterator[PromptRow]:
        """Yield rows by ascending numbers in one pass; holds a few hundred in memory.

        Raises:
            ValueError: A row that is wrong, with file, row and remedy.
        """

    def row(self, index: int) -> PromptRow:
        """Read one row, for random access; caches the decoded part of the file."""
        return self.rows(index, index + 1)[0]


def row_reader(path: Path, *, instruction: str | None) -> Callable[[Mapping[str, Any]], PromptRow]:
    """Reads a row of the file: GSM8K's form if there is an instruction, else prompt columns."""
    if instruction is None:
        return functools.partial(PromptRow.of, folder=path.parent.resolve())
    return functools.partial(_gsm8k_row, instruction)


def _gsm8k_row(instruction: str, entry: Mapping[str, Any]) -> PromptRow:
    for name in GSM8K_COLUMNS:
        if not isinstance(entry.get(name), str) or not entry[name].strip():
            raise ValueError(f"{name!r} must be text, got {shortened(entry.get(name))}")
    solution, mark, answer = entry["answer"].rpartition("####")
    if not mark or not answer.strip():
        raise ValueError(
            f"'answer' must end in a line `#### x`, got {shortened(entry['answer'][-60:])}"
        )
    return PromptRow(
        data_source=GSM8K_SOURCE,
        prompt=(message("user", f"{entry['question'].strip()}\n{instruction}".strip()),),
        ground_truth=answer.strip(),
        extra_info={"solution": solution.strip()},
    )


def of_row(read: Any, entry: Mapping[str, Any], *, path: Path, place: str) -> Any:
    """Return `read(entry)`; adds file and row to its ValueError."""
    try:
        return read(entry)
    except ValueError as error:
        raise ValueError(f"{path}, {place}: {error}. Correct or remove the row.") from error


def error_of_length(path: Path, place: str) -> ValueError:
    """The error for a row beyond `MAX_ROW_BYTES`."""
    return ValueError(
        f"{path}, {place}: more than {MAX_ROW_BYTES >> 20} MiB, the bound of a row. Shorten or "
        "remove the row."
    )


def json_object(line: bytes, *, place: str) -> dict[str, Any]:
    """The JSON object in a line; ValueError with `place`, file and row, for anything else."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        # broken JSON, not UTF-8, or a thousand nested lists
        raise ValueError(
            f"{place}: not JSON ({error}). One JSON object per line is expected."
        ) from error
    if b"\\u" in line:
        try:
            check_surrogates(line.decode(), entry)
        except UnicodeError as error:
            raise ValueError(
                f"{place}: a text has half of a surrogate pair, which no tokenizer reads "
                f"({error}). Correct or remove the row."
            ) from error
    if not isinstance(entry, dict):
        raise ValueError(f"{place}: a JSON object is expected, got {shortened(entry)}.")
    return entry


def check_columns(
    found: Sequence[str], *, required: Iterable[str], known: Sequence[str], path: Path
) -> None:
    """Raise ValueError if a required column is missing, or there twice; log columns that are not
    read.
    """
    missing = [name for name in required if name not in found]
    if missing:
        hint = nearest(missing[0], list(found))
        raise ValueError(
            f"{path} has no column {', '.join(map(repr, missing))}.{hint} It has: "
            f"{', '.join(found) or '(none)'}. Prompts need "
            f"{', '.join(known)} (the last three may be left out), or `question` and "
            "`answer` in jsonl as GSM8K ships."
        )
    twice = [name for name in known if list(found).count(name) > 1]
    if twice:
        raise ValueError(
            f"{path} has the column {twice[0]!r} more than once: rename or remove all but one."
        )
    foreign = [name for name in found if name not in known]
    if foreign:
        logger.warning("%s: columns that are not read: %s.", path, ", ".join(foreign))


def check_not_empty(rows: int, path: Path) -> None:
    """Raise ValueError for a file without rows."""
    if rows == 0:
        raise ValueError(f"{path} has no rows. Remove it from the list, or fill it.")


def source_of(columns: Mapping[str, Any]) -> str:
    """`data_source` of a row; ValueError if it is not text."""
    return _text(columns.get("data_source"), name="data_source")


def _entries(value: Any, *, name: str) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{name} must be values by name, got {shortened(value)}")
    return dict(value or {})


def _text(value: Any, *, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be text, got {shortened(value)}")
    return value


def require_truth(truth: str | None) -> str:
    """Return `truth`; raises ValueError if it is missing or blank."""
    if truth is None or not truth.strip():
        raise ValueError(f"{_TRUTH}, got {shortened(truth)}")
    return truth


def _ground_truth(value: Any) -> str | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{_TRUTH}, got {shortened(value)}")
    return value
