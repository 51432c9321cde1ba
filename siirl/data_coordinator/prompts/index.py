"""Index of prompt files, built before training: each row has a token length, a question hash and
a data source.

Ranks share the work: each reads a range of rows and sends numbers to the others, so a file is read
and tokenized once. An invalid row is found here, not hours later, and stops every rank with the
same message.
"""

# N row of all files together

import hashlib
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.prompt_rows import PromptRow
from envs.question_pictures import pictures_digest
from siirl.data_coordinator.prompts.joined_files import CheckRow, PromptFiles, check_truth
from siirl.data_coordinator.prompts.read_ahead import in_order
from siirl.errors import ConfigError

Encode = Callable[..., Sequence[int]]
"""Maps chat messages, with pictures if any, to the tokens of the prompt:
`siirl.models.chat.ChatTokenizer.encode_row`.
"""
Gather = Callable[[Any], list[Any]]
"""Every rank's object, in rank order: `Collectives.gather_objects`."""

ROWS_PER_PART = 4096  # a worker process tokenizes them in about a second


@dataclass(frozen=True)
class PromptIndex:
    """Index of every row, 24 bytes each; the same on every rank."""

    length_N: NDArray[np.int32]
    """Tokens of the prompt, with the chat template."""
    question_N: NDArray[np.uint64]
    """First eight bytes of a hash of the prompt: the same question has the same number in every
    file.
    """
    wording_N: NDArray[np.uint64]
    """The same, except that questions that differ only in case or blanks have equal numbers."""
    source_N: NDArray[np.int32]
    """Position in `sources`."""
    sources: tuple[str, ...]
    """Every `data_source`, sorted."""

    def __len__(self) -> int:
        return len(self.length_N)


@dataclass(frozen=True)
class _Part:
    """Index of a range of rows, or the error of one of them."""

    lengths: list[int]
    questions: list[int]
    wordings: list[int]
    sources: list[str]
    error: str | None = None


class _Parts:
    """The ranges of rows that this rank reads, each read on access."""

    def __init__(
        self, files: PromptFiles, encode: Encode, check: CheckRow, stretches: Sequence[range]
    ) -> None:
        self.files = files
        self.encode = encode
        self.check = check
        self.stretches = stretches

    def __len__(self) -> int:
        return len(self.stretches)

    def __getitem__(self, number: int) -> _Part:
        try:
            return _look_at(
                self.files, self.stretches[number], encode=self.encode, check=self.check
            )
        except ConfigError as error:
            return _Part([], [], [], [], error=str(error))


def build_index(
    files: PromptFiles,
    *,
    encode: Encode,
    check: CheckRow = check_truth,
    rank: int = 0,
    ranks: int = 1,
    gather: Gather = lambda thing: [thing],
    num_workers: int = 0,
) -> PromptIndex:
    """Read all rows once, in parallel over ranks and their worker processes; every rank calls it.

    Args:
        files: The files; every rank has the same.
        encode: Chat messages to tokens; must be picklable if worker processes are used.
        check: The environment's check of a row; also picklable.
        rank: This rank.
        ranks: Number of ranks.
        gather: Gathers an object of every rank.
        num_workers: Processes of this rank; 0: this one.

    Raises:
        ConfigError: An invalid row; the same on every rank.
    """
    begin, end = rank * len(files) // ranks, (rank + 1) * len(files) // ranks
    stretches = [
        range(first, min(first + ROWS_PER_PART, end)) for first in range(begin, end, ROWS_PER_PART)
    ]
    found = _joined(in_order(_Parts(files, encode, check, stretches), num_workers=num_workers))
    parts: list[_Part] = gather(found)
    for part in parts:
        if part.error is not None:
            raise ConfigError(part.error)
    return _index_of(parts)


def _index_of(parts: Sequence[_Part]) -> PromptIndex:
    sources = tuple(sorted({source for part in parts for source in set(part.sources)}))
    position = {source: number for number, source in enumerate(sources)}
    return PromptIndex(
        length_N=np.array([length for part in parts for length in part.lengths], np.int32),
        question_N=np.array([question for part in parts for question in part.questions], np.uint64),
        wording_N=np.array([wording for part in parts for wording in part.wordings], np.uint64),
        source_N=np.array(
            [position[source] for part in parts for source in part.sources], np.int32
        ),
        sources=sources,
    )


def question_number(row: PromptRow) -> int:
    """Digest that identifies a question with its pictures.

    It has the formula of `envs.math.question_sources` and `envs.math.generators.held_out`, so that
    both hold out the same questions.
    """
    text = "\n".join(f"{entry['role']}: {entry['content']}" for entry in row.prompt)
    return _number_of(text + _pictures(row))


def wording_number(row: PromptRow) -> int:
    """Digest of a question that ignores case, repeated blanks and Unicode variants of a letter."""
    text = unicodedata.normalize("NFKC", "\n".join(str(entry["content"]) for entry in row.prompt))
    return _number_of(" ".join(text.casefold().split()) + _pictures(row))


def _pictures(row: PromptRow) -> str:
    return f"\n{pictures_digest(row.images)}" if row.images else ""


def _number_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big")


def index_first_rows(
    files: PromptFiles, *, encode: Encode, check: CheckRow = check_truth, count: int
) -> PromptIndex:
    """Read the first `count` rows, with their pictures, in the way a run reads all rows.

    Raises:
        ConfigError: An invalid row.
    """
    rows = range(min(count, len(files)))
    return _index_of([_look_at(files, rows, encode=encode, check=check)])


def _look_at(files: PromptFiles, rows: range, *, encode: Encode, check: CheckRow) -> _Part:
    part = _Part([], [], [], [])

    def look(row: PromptRow) -> None:
        check(row)
        pictures = (row.images,) if row.images else ()
        part.lengths.append(len(encode(row.prompt, *pictures)))

    for row in files.read(rows, check=look):
        part.questions.append(question_number(row))
        part.wordings.append(wording_number(row))
        part.sources.append(sys.intern(row.data_source))  # one of few names, stored once
    return part


def _joined(parts: Iterable[_Part]) -> _Part:
    """All parts joined, up to the first with an error."""
    whole = _Part([], [], [], [])
    for part in parts:
        if part.error is not None:
            return part
        whole.lengths.extend(part.lengths)
        whole.questions.extend(part.questions)
        whole.wordings.extend(part.wordings)
        whole.sources.extend(part.sources)
    return whole
