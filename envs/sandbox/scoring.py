"""Compares a sandbox's output with the expected output, outside the program's reach.

A zero exit status proves nothing, but a nonzero one is a failure. Output and results are compared
as data. So exiting early, patching modules or lying to the supervisor gains nothing: only the
correct answer passes a test.
"""

import contextlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envs.sandbox.limits import Ending, Execution, Sandbox
from envs.sandbox.problems import Case, Problem, output_lines

REWARDS = ("all", "share")
FENCED = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
ERROR_CHARACTERS = 200


@dataclass(frozen=True)
class Verdict:
    """Result of a program on all tests."""

    passed: int
    total: int
    """Number of tests; a test that was not run counts as failed."""
    sentence: str
    """The outcome or the first fault; quotes neither tests nor expected answers."""
    endings: tuple[str, ...] = ()
    """Ending of each executed test."""
    errors: str = ""
    """Last part of the first failed test's standard error."""

    @property
    def success(self) -> bool:
        """Whether every test was passed."""
        return self.passed == self.total


def program_of(text: str) -> str:
    """Return the program in a model's answer: its last fenced block, else the whole text.

    The block may be unclosed. Text before `</think>` is ignored.
    """
    answer = text.rpartition("</think>")[2]
    blocks = FENCED.findall(answer)
    return blocks[-1] if blocks else answer


async def judge(sandbox: Sandbox, problem: Problem, program: str, *, stop_early: bool) -> Verdict:
    """Run `program` on the tests of `problem`.

    Args:
        sandbox: Runs the program.
        problem: The tests.
        program: Python source.
        stop_early: Stop at the first failed test, for the reward `all`.

    Raises:
        SandboxFailed: The program was not run.
    """
    total = len(problem.cases)
    if not program.strip():
        return Verdict(0, total, "no program")
    passed = 0
    first_fault = ""
    errors = ""
    endings: list[str] = []
    async with contextlib.aclosing(sandbox.run(problem.job(program))) as executions:
        async for execution in executions:
            fault = fault_of(execution, problem.cases[len(endings)], problem)
            endings.append(execution.ending.value)
            passed += fault is None
            if fault is not None and not first_fault:
                first_fault = f"test {len(endings)} of {total}: {fault}"
                errors = execution.errors.decode("utf-8", errors="replace")
            if (fault is not None and stop_early) or len(endings) == total:
                break
    if not first_fault and len(endings) < total:
        first_fault = (
            f"test {len(endings) + 1} of {total}: not run, because the total time was used up or "
            "the sandbox broke down"
        )
    return Verdict(
        passed, total, first_fault or f"passed all {total} tests", tuple(endings), errors
    )


def fault_of(execution: Execution, case: Case, problem: Problem) -> str | None:
    """Return why a test failed; None if it passed."""
    if execution.ending is not Ending.FINISHED:
        return execution.ending.value
    if execution.exit_status != 0:
        last = execution.errors.decode("utf-8", errors="replace").strip().rpartition("\n")[2]
        return f"exit status {execution.exit_status}{': ' if last else ''}{last[:ERROR_CHARACTERS]}"
    if problem.function is None:
        return _fault_of_text(execution.output, case.expected, problem.tolerance)
    if not execution.output:
        return f"{problem.function} did not return"
    try:
        result = json.loads(execution.output)
    except (ValueError, RecursionError):
        return "the result is not JSON"
    return None if equal_values(result, case.expected, problem.tolerance) else "wrong answer"


def score(verdict: Verdict, problem: Problem, reward: str) -> float:
    """Return the reward, in [0, 1].

    `all`: 1 if every test is passed. `share`: (passed - c) / (total - c), at least 0, where c tests
    have the most frequent answer. So a program that prints a constant gets 0.
    """
    if reward == "all":
        return float(verdict.success)
    constant = problem.best_constant
    return max(0.0, (verdict.passed - constant) / (verdict.total - constant))


def equal_values(result: Any, expected: Any, tolerance: float) -> bool:
    """Whether two JSON values are equal within `tolerance`; true is not 1, and 3.0 is 3."""
    if isinstance(expected, bool) or isinstance(result, bool) or expected is None or result is None:
        return result is expected
    if isinstance(expected, (int, float)) and isinstance(result, (int, float)):
        return result == expected or _close(result, expected, tolerance)
    if type(result) is not type(expected):
        return False
    if isinstance(expected, list):
        return len(result) == len(expected) and all(
            equal_values(left, right, tolerance)
            for left, right in zip(result, expected, strict=True)
        )
    if isinstance(expected, dict):
        return result.keys() == expected.keys() and all(
            equal_values(result[key], expected[key], tolerance) for key in expected
        )
    return bool(result == expected)


def _fault_of_text(output: bytes, expected: str, tolerance: float) -> str | None:
    printed = output_lines(output.decode("utf-8", errors="replace"))
    wanted = output_lines(expected)
    if printed == wanted:
        return None
    if not printed:
        return "nothing was printed"
    if len(printed) != len(wanted):
        return "wrong answer: wrong number of lines"
    same = tolerance > 0 and all(
        _same_words(left.split(), right.split(), tolerance)
        for left, right in zip(printed, wanted, strict=True)
    )
    return None if same else "wrong answer"


def _same_words(printed: Sequence[str], wanted: Sequence[str], tolerance: float) -> bool:
    return len(printed) == len(wanted) and all(
        left == right or _close(_number(left), _number(right), tolerance)
        for left, right in zip(printed, wanted, strict=True)
    )


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan


def _close(result: float, expected: float, tolerance: float) -> bool:
    if tolerance == 0:
        return False
    try:
        # False for NaN and infinite results
        return abs(result - expected) <= tolerance * max(1.0, abs(expected))
    except OverflowError:  # an int beyond the largest float, and a fraction
        return False
