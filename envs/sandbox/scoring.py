"""The verdict: what came out of the sandbox, held against what was expected, out here where the
program cannot be.

An exit status proves nothing and is only ever held against a program; what it printed or returned
is compared as data. So there is nothing to gain by leaving early, patching modules, or lying to the
keeper: the only way to pass a test is its right answer.
"""

import contextlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from envs.sandbox.limits import Ending, Execution, Sandbox
from envs.sandbox.problems import Case, Problem, output_lines

Reward = Literal["all", "share"]
REWARDS = ("all", "share")
FENCED = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
ERROR_CHARACTERS = 200


@dataclass(frozen=True)
class Verdict:
    """How a program did."""

    passed: int
    total: int
    """Tests of the problem; those that were not run count as not passed."""
    sentence: str
    """What went right, or the first thing that went wrong; no test and no expected answer is
    quoted.
    """
    endings: tuple[str, ...] = ()
    """How each test ended that was run."""
    errors: str = ""
    """End of the standard error of the first test that was not passed."""

    @property
    def success(self) -> bool:
        """Whether every test was passed."""
        return self.passed == self.total


def program_of(text: str) -> str:
    """The program in a model's answer: its last fenced block, also one that is not closed; the
    whole text if there is none.

    What a model thinks before `</think>` is no answer.
    """
    answer = text.rpartition("</think>")[2]
    blocks = FENCED.findall(answer)
    return blocks[-1] if blocks else answer


async def judge(sandbox: Sandbox, problem: Problem, program: str, *, stop_early: bool) -> Verdict:
    """Run `program` on the tests of `problem`.

    Args:
        sandbox: Where.
        problem: What is asked.
        program: Python source.
        stop_early: Stop at the first test that is not passed: where only a success counts.

    Raises:
        SandboxFailed: Nothing was run: there is no verdict.
    """
    total = len(problem.cases)
    if not program.strip():
        return Verdict(0, total, "no program")
    passed, first_fault, errors = 0, "", ""
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
        first_fault = f"test {len(endings) + 1} of {total}: not run, the time of all tests was used up or the sandbox broke down"
    return Verdict(
        passed, total, first_fault or f"passed all {total} tests", tuple(endings), errors
    )


def fault_of(execution: Execution, case: Case, problem: Problem) -> str | None:
    """Why a test is not passed; None if it is."""
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
        return "the result is no JSON"
    return None if equal_values(result, case.expected, problem.tolerance) else "wrong answer"


def score(verdict: Verdict, problem: Problem, reward: str) -> float:
    """The reward, 0 to 1.

    `all`: 1 if every test is passed. `share`: (passed - c) / (total - c), at least 0, where c tests
    have the most frequent answer, so that a program which prints a constant gets 0.
    """
    if reward == "all":
        return float(verdict.success)
    constant = problem.best_constant
    return max(0.0, (verdict.passed - constant) / (verdict.total - constant))


def equal_values(result: Any, expected: Any, tolerance: float) -> bool:
    """Whether two JSON values are equal: true is not 1, 3.0 is 3, and numbers may differ by
    `tolerance`.
    """
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
    printed, wanted = output_lines(output.decode("utf-8", errors="replace")), output_lines(expected)
    if printed == wanted:
        return None
    if not printed:
        return "nothing was printed"
    if len(printed) != len(wanted):
        return "wrong answer: another number of lines"
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
        return abs(result - expected) <= tolerance * max(
            1.0, abs(expected)
        )  # never true of NaN, or of an infinite result
    except OverflowError:  # a whole number beyond the largest float, and a fraction
        return False
