r"""A programming problem: its prompt, and the hidden tests that the program must pass.

Tests have two forms. Standard input: the program reads a text and prints one. Function: a function
is called with JSON values and returns one. In a prompt row (`envs.prompt_files.PromptRow`) the
tests are its `ground_truth`: JSON in the common form of APPS (https://github.com/hendrycks/apps):

    {"inputs": ["1 2\n", …], "outputs": ["3\n", …]}                 standard input and output
    {"fn_name": "solve", "inputs": [[1, 2], …], "outputs": [3, …]}   lists of arguments, and results

and optionally `"tolerance": 1e-6` for numbers, relative above 1 and absolute below.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.prompt_rows import PromptRow, require_truth
from envs.sandbox.limits import ProgramRun
from envs.text import shortened

STYLE = "code"  # reward_model.style of such rows
KEYS = ("inputs", "outputs", "fn_name", "tolerance")
FUNCTION_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)?")
MAX_DEPTH = 50  # of nested lists in a test: far below Python's recursion limit


@dataclass(frozen=True)
class Case:
    """One test."""

    given: bytes
    """The program's input: standard input, or a JSON list of arguments."""
    expected: Any
    """A text, or a JSON value."""


@dataclass(frozen=True)
class Problem:
    """A prompt and its tests."""

    row: PromptRow
    """The source row, with the prompt."""
    cases: tuple[Case, ...]
    function: str | None = None
    """Function to call; None: the program reads standard input."""
    tolerance: float = 0.0
    """Allowed difference of a number, times max(1, |expected|)."""

    @classmethod
    def of(cls, row: PromptRow) -> "Problem":
        """Read the tests of `row`.

        Raises:
            ValueError: Tests in no known form, or tests that a constant answer would pass.
        """
        try:
            tests = json.loads(require_truth(row.ground_truth))
        except (ValueError, RecursionError) as error:
            raise ValueError(
                "reward_model.ground_truth must be the tests as JSON, "
                f"got {shortened(row.ground_truth)} ({error})"
            ) from error
        if not isinstance(tests, Mapping):
            raise ValueError(
                f"the tests must be a JSON object with {', '.join(KEYS)}, got {shortened(tests)}"
            )
        _check_keys(tests)
        function, tolerance = tests.get("fn_name"), tests.get("tolerance", 0.0)
        _check_function(function)
        if (
            isinstance(tolerance, bool)
            or not isinstance(tolerance, (int, float))
            or not 0 <= tolerance < 1
        ):
            raise ValueError(
                f"'tolerance' must be a number from 0 to below 1, got {shortened(tolerance)}"
            )
        read = _text_case if function is None else _call_case
        cases = tuple(
            read(given, expected, number) for number, (given, expected) in enumerate(_pairs(tests))
        )
        problem = cls(row, cases, function, float(tolerance))
        if problem.best_constant == len(cases):
            raise ValueError(
                f"all {len(cases)} tests expect the same output, so a program that prints a "
                "constant would pass"
            )
        return problem

    @property
    def best_constant(self) -> int:
        """Number of tests that the most frequent answer passes."""
        return max(Counter(_normal(case.expected) for case in self.cases).values())

    def job(self, program: str) -> ProgramRun:
        """Return the sandbox job: inputs only, no expected outputs."""
        return ProgramRun(program, [case.given for case in self.cases], self.function)


def output_lines(text: str) -> list[str]:
    """Lines as judges compare them: no trailing blanks, no empty last lines."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def encoded_tests(
    *,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    function: str | None = None,
    tolerance: float = 0.0,
) -> str:
    """Encode tests as a row's `ground_truth`; the inverse of `Problem.of`."""
    tests: dict[str, Any] = {"inputs": list(inputs), "outputs": list(outputs)}
    tests |= {"fn_name": function} if function is not None else {}
    tests |= {"tolerance": tolerance} if tolerance else {}
    return json.dumps(tests)


def _check_keys(tests: Mapping[str, Any]) -> None:
    missing = [key for key in ("inputs", "outputs") if not isinstance(tests.get(key), list)]
    if missing:
        raise ValueError(
            f"the tests must have a list {missing[0]!r}; "
            f"they have {', '.join(map(str, tests)) or 'nothing'}"
        )
    unknown = [key for key in tests if key not in KEYS]
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r} in the tests; known: {', '.join(KEYS)}")


def _check_function(name: Any) -> None:
    if name is not None and not (isinstance(name, str) and FUNCTION_NAME.fullmatch(name)):
        raise ValueError(
            f"'fn_name' must be a name such as solve or Solution.solve, got {shortened(name)}"
        )


def _pairs(tests: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    inputs, outputs = tests["inputs"], tests["outputs"]
    if len(inputs) != len(outputs) or not inputs:
        raise ValueError(
            "there must be as many outputs as inputs, and at least one; "
            f"got {len(inputs)} and {len(outputs)}"
        )
    return list(zip(inputs, outputs, strict=True))


def _text_case(given: Any, expected: Any, number: int) -> Case:
    for name, value in (("input", given), ("output", expected)):
        if not isinstance(value, str):
            raise ValueError(
                f"{name} {number} must be text, for a program that reads standard input, "
                f"got {shortened(value)}"
            )
    return Case(given.encode("utf-8", errors="replace"), expected)


def _call_case(given: Any, expected: Any, number: int) -> Case:
    if not isinstance(given, list):
        raise ValueError(f"input {number} must be a list of arguments, got {shortened(given)}")
    if not (_is_plain(given) and _is_plain(expected)):
        raise ValueError(
            f"test {number} has numbers that are not finite, or more than {MAX_DEPTH} nested lists"
        )
    return Case(json.dumps(given).encode(), expected)


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether a JSON value has only finite numbers and limited nesting."""
    if isinstance(value, float):
        return math.isfinite(value)
    if not isinstance(value, (list, dict)):
        return True
    return depth < MAX_DEPTH and all(
        _is_plain(part, depth + 1)
        for part in (value.values() if isinstance(value, dict) else value)
    )


def _normal(expected: Any) -> str:
    return (
        "\n".join(output_lines(expected))
        if isinstance(expected, str)
        else json.dumps(expected, sort_keys=True)
    )
