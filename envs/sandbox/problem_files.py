"""Programming problems from files: prompt rows with tests, and jsonl from APPS and LiveCodeBench.

- **Prompt columns**, parquet or jsonl (`envs.prompt_files`): the tests are in
  `reward_model.ground_truth`, see `envs.sandbox.problems`.
- **APPS** (https://github.com/hendrycks/apps): `question`, `input_output` (JSON text with inputs,
  outputs and, for a function, fn_name, whose results are then lists of one), `starter_code`.
- **LiveCodeBench** (https://github.com/LiveCodeBench/LiveCodeBench): `question_content`,
  `public_test_cases`, `private_test_cases` (JSON text; the private ones often pickled, compressed
  and in base64), `metadata` with func_name, `starter_code`.

An unreadable row raises a ValueError with file and line. A readable problem that cannot be judged
(no tests, or all tests expect the same output) is dropped, and counted in the log and in `dropped`.
"""

import base64
import binascii
import functools
import io
import json
import logging
import pickle
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from envs.archives import MEBIBYTE
from envs.prompt_files import open_prompts
from envs.prompt_rows import PromptRow, json_object
from envs.sandbox.generator import INSTRUCTION, held_out
from envs.sandbox.problems import STYLE, Problem, encoded_tests
from envs.text import message, shortened

logger = logging.getLogger(__name__)

APPS_COLUMNS = ("question", "input_output")
MOST_TEST_BYTES = 256 * MEBIBYTE  # of one problem, unpacked; more than its sandbox's memory
LIVE_COLUMNS = ("question_content", "public_test_cases", "private_test_cases")
TEXT_FORM = "The program reads from standard input and prints to standard output."


class ProblemFile(NamedTuple):
    """The gradable problems of one file."""

    problems: tuple[Problem, ...]
    dropped: Mapping[str, int]
    """Number of dropped problems by reason."""


class FileProblems:
    """Problems of files; a task is a `data_source`, and a hash of the prompt assigns the split."""

    def __init__(
        self, files: Sequence[str], *, tasks: Sequence[str] | None, heldout_share: float
    ) -> None:
        self.dropped: Counter[str] = Counter()
        self._problems: dict[str, dict[str, list[Problem]]] = {}
        for file in files:
            found = read_problems(str(file))
            self.dropped.update(found.dropped)
            for problem in found.problems:
                split = "heldout" if held_out(_key(problem.row), share=heldout_share) else "train"
                self._problems.setdefault(problem.row.data_source, {"train": [], "heldout": []})[
                    split
                ].append(problem)
        unknown = [task for task in tasks or () if task not in self._problems]
        if unknown:
            raise ValueError(
                f"No problem of {', '.join(map(str, files))} has the data_source {unknown[0]!r}; "
                f"there are: {', '.join(self._problems)}."
            )
        self.tasks = tuple(tasks or self._problems)

    def draw(self, task: str, *, split: str, seed: int | None) -> Problem:
        """Return the problem of `task` and `split` for `seed`; a random one without a seed.

        Raises:
            ValueError: The split has no problem of this task.
        """
        problems = self._problems[task][split]
        if not problems:
            total = sum(map(len, self._problems[task].values()))
            raise ValueError(
                f"None of the {total} problems of {task!r} is in the split {split}: change "
                "env.kwargs.heldout_share."
            )
        random = np.random.default_rng(
            None if seed is None else [seed, zlib.crc32(task.encode("utf-8", "surrogatepass"))]
        )
        return problems[int(random.integers(len(problems)))]


def read_problems(path: str) -> ProblemFile:
    """Read all problems of a file.

    Raises:
        FileNotFoundError: No such file.
        ValueError: An unknown form, an unreadable row, or no gradable problem.
    """
    return _read(path, _fingerprint(path))


# Cached, because the environments of one server read the same files.
@functools.lru_cache(maxsize=8)
def _read(path: str, fingerprint: tuple[int, int]) -> ProblemFile:
    problems: list[Problem] = []
    dropped: Counter[str] = Counter()
    for row in _rows(path):
        try:
            problems.append(Problem.of(row))
        except ValueError as error:
            dropped[str(error).partition(",")[0]] += 1
    for reason, count in dropped.items():
        logger.warning("%s: %d problems left out: %s.", path, count, reason)
    if not problems:
        raise ValueError(
            f"{path} has no problem that can be judged. Left out: "
            f"{dict(dropped) or 'nothing, because the file is empty'}."
        )
    return ProblemFile(tuple(problems), dict(dropped))


def _fingerprint(path: str) -> tuple[int, int]:
    """Size and modification time; a changed file is read again."""
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"There is no file {path} to read problems from (env.kwargs.files, data.train_files)."
        )
    status = Path(path).stat()
    return status.st_size, status.st_mtime_ns


def _rows(path: str) -> list[PromptRow]:
    convert = _converter(path)
    if convert is None:
        prompts = open_prompts(path)
        return prompts.rows(0, len(prompts))
    rows = []
    with Path(path).open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                rows.append(_row(convert, line, place=f"{path}, line {number}"))
    return rows


def _converter(path: str) -> Callable[[Mapping[str, Any]], PromptRow] | None:
    """Converter for the file's form, by the columns of its first line; None: prompt columns."""
    if Path(path).suffix != ".jsonl":
        return None
    with Path(path).open("rb") as stream:
        first = next((line for line in stream if line.strip()), b"{}")
    columns = set(json_object(first, place=f"{path}, line 1"))
    if columns >= set(LIVE_COLUMNS):
        return _live_row
    return _apps_row if columns >= set(APPS_COLUMNS) else None


def _row(
    convert: Callable[[Mapping[str, Any]], PromptRow], line: bytes, *, place: str
) -> PromptRow:
    try:
        return convert(json_object(line, place=place))
    except KeyError as error:
        raise ValueError(
            f"{place}: column {error} is missing. Correct or remove the row."
        ) from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: {error}. Correct or remove the row.") from error


def _apps_row(entry: Mapping[str, Any]) -> PromptRow:
    tests = json.loads(entry["input_output"] or "{}")
    inputs = tests.get("inputs", [])
    outputs = tests.get("outputs", [])
    function = tests.get("fn_name")
    if function is not None and all(
        isinstance(output, list) and len(output) == 1 for output in outputs
    ):
        outputs = [output[0] for output in outputs]
    function = _method(function, entry.get("starter_code"))
    if function is None:
        inputs = [_as_text(value) for value in inputs]
        outputs = [_as_text(value) for value in outputs]
    return _prompt_row(
        "apps",
        entry,
        entry["question"],
        function,
        encoded_tests(inputs=inputs, outputs=outputs, function=function),
    )


def _live_row(entry: Mapping[str, Any]) -> PromptRow:
    cases = [*json.loads(entry["public_test_cases"]), *_private_cases(entry["private_test_cases"])]
    metadata = json.loads(entry["metadata"]) if entry.get("metadata") else {}
    function = _method(metadata.get("func_name"), entry.get("starter_code"))
    inputs: list[Any] = [case["input"] for case in cases]
    outputs: list[Any] = [case["output"] for case in cases]
    if function is not None:  # one JSON argument per line
        inputs = [
            [json.loads(line) for line in text.splitlines() if line.strip()] for text in inputs
        ]
        outputs = [json.loads(text) for text in outputs]
    tests = encoded_tests(inputs=inputs, outputs=outputs, function=function)
    return _prompt_row("livecodebench", entry, entry["question_content"], function, tests)


def _prompt_row(
    source: str, entry: Mapping[str, Any], question: object, function: str | None, tests: str
) -> PromptRow:
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"the question must be text, got {shortened(question)}")
    starter_code = entry.get("starter_code") or ""
    form = TEXT_FORM if function is None else f"The program defines {function}."
    form = f"Complete this:\n{starter_code}" if starter_code.strip() else form
    prompt = f"{question.strip()}\n\n{form}\n{INSTRUCTION}"
    return PromptRow(
        data_source=source,
        prompt=(message("user", prompt),),
        ground_truth=tests,
        style=STYLE,
        ability="code",
    )


def _method(function: str | None, starter_code: str | None) -> str | None:
    """`Solution.name` if the starter code puts the function into that class."""
    return (
        f"Solution.{function}"
        if function and "class Solution" in (starter_code or "")
        else function
    )


def _as_text(value: Any) -> Any:
    """Joins the lines of a text that APPS stores as a list."""
    return "\n".join(map(str, value)) if isinstance(value, list) else value


class _TextUnpickler(pickle.Unpickler):
    """Reads a pickled text or list; refuses any import or call."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"a text was expected, but it needs {module}.{name}")


def _private_cases(text: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(text)
    except ValueError:
        try:
            found = _TextUnpickler(
                io.BytesIO(_unpacked(base64.b64decode(text, validate=True)))
            ).load()
        except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError) as error:
            raise ValueError(
                f"private_test_cases are neither JSON nor a compressed, pickled text ({error})"
            ) from error
    found = json.loads(found) if isinstance(found, str) else found
    if not isinstance(found, list):
        raise ValueError(f"private_test_cases must be a list, got {shortened(found)}")
    return found


def _unpacked(packed: bytes) -> bytes:
    stream = zlib.decompressobj()
    content = stream.decompress(packed, MOST_TEST_BYTES)
    if not stream.eof:
        raise ValueError(
            f"private_test_cases are cut off, or unpack to more than {MOST_TEST_BYTES} bytes"
        )
    return content


def _key(row: PromptRow) -> str:
    return "\n".join(f"{entry['role']}: {entry['content']}" for entry in row.prompt)
