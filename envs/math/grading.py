r"""Grades a model's text against the truth: right, wrong with a reason, or unknown, which is a
failure and never a score.

Numbers are compared in `agreement`; other mathematics goes to math-verify, in worker processes that
are killed if they take too long. If an answer is too hard for them (a tower of powers, `10!!!`) but
the truth alone can be compared, the answer is at fault and wrong. If the truth cannot be compared
either, the grader is at fault: `GradingFailed`. `STYLES` names the ways to grade, which a row of a
file chooses by `reward_model.style`:

- `rule`: the last marked answer (`answers`): `#### x`, `\boxed{x}`, `Answer: x`, `the answer is x`,
  `<answer>x</answer>`; without a mark, a value alone on the last line or a closing sentence
  (`conclusions`).
- `whole`: the whole text is the answer, as in `12+34=` and `46`.
- `countdown`: the (marked or whole) answer is an expression with the given numbers, each used at
  most once, that makes the target; the ground truth is `{"numbers": […], "target": …}` in JSON.
"""

import contextlib
import json
import re
from collections import Counter
from typing import NamedTuple

from envs.base import EpisodeFailed
from envs.deadlines import checked_deadline
from envs.math.comparing.agreement import agreement
from envs.math.comparing.expressions import NoExpression, compute
from envs.math.finding.answers import marked_answer
from envs.math.finding.conclusions import concluded_answer
from envs.math.finding.line_marks import MAX_ANSWER_CHARACTERS, MarkedAnswer
from envs.math.finding.named_answers import is_word
from envs.math.parsing.mathematics import ExpressionPair
from envs.prompt_rows import require_truth
from envs.text import shortened
from envs.worker_pool import WorkerKilled, WorkerPool, WorkerRaised, WorkerSettings, lease, release

STYLES = ("rule", "whole", "countdown")
CORRECT = "correct"
WRONG = "wrong"
NO_ANSWER = "no answer"
TOO_LONG = "answer too long"
TOO_HARD = "answer too hard to compare"
SENTENCE = re.compile(r"[A-Za-z][a-z]* [A-Za-z]|\$?[0-9].* (?:is|are|was|were|has|have|had) ")
GRADERS = 2  # like the default env.num_servers: two cores
GRADING_CPU_S = 5.0  # math-verify's default
# The limit is processor time, so that a busy machine does not turn answers into failures. Wall time
# limits a sleeping process.
WALL_PER_CPU_SECOND = 60
# math-verify and sympy take 400 MiB of address space; an expression that needs more is killed early
MEMORY_MIB = 1024
# A process takes 59 MB. A comparison takes milliseconds; the first one in a process takes a second,
# because it fills the parser's tables.
PATIENCE_S = 2.0


class GradingFailed(EpisodeFailed):
    """It is unknown whether the answer is right: the grader fails on the truth itself."""


class Grade(NamedTuple):
    """Grade of a text."""

    correct: bool
    verdict: str
    """`CORRECT`, `WRONG`, `NO_ANSWER`, `TOO_LONG`, `TOO_HARD`, or for countdown the fault of the
    expression.
    """
    answer: str | None
    """The final answer that was read, cut for the records; None if the text has none."""
    marked: bool = True
    """Whether the answer was marked, and not only concluded (`conclusions`); True without
    an answer.
    """


class Grader:
    """Grades texts. All graders of a process with the same settings share their workers, which
    start when one is first needed.
    """

    def __init__(self, *, num_workers: int, cpu_s: float) -> None:
        """Args: `num_workers` processes at most; `cpu_s` seconds of processor time after which an
        answer's comparison is aborted.
        """
        checked_deadline("grading_cpu_s", cpu_s)
        if type(num_workers) is not int:  # env.kwargs may hold any value, and True is an int
            raise ValueError(f"num_graders must be a whole number, got {num_workers!r}.")
        self._settings = WorkerSettings(
            target="envs.math.comparing.verification:equivalent",
            num_workers=num_workers,
            deadline_s=WALL_PER_CPU_SECOND * cpu_s,
            cpu_s=cpu_s,
            memory_mib=MEMORY_MIB,
            patience_s=PATIENCE_S,
        )
        self._workers: WorkerPool | None = None

    async def grade(self, text: str, *, truth: str, style: str, question: str = "") -> Grade:
        """Grade one text; takes any text, of any length. Words of `question` may follow a number:
        `18 duck eggs`.

        Raises:
            GradingFailed: The comparison took too long or too much memory, or raised, even with the
                truth alone.
            WorkerUnavailable: math-verify cannot be imported or started.
        """
        if style == "countdown":
            return _grade_countdown(text, truth=truth)
        found = (
            MarkedAnswer(text.strip(), 0)
            if style == "whole"
            else marked_answer(text, question=question)
        )
        marked = found is not None
        if found is None or found.spoilt:
            rest = text if found is None else found.rest
            concluded = concluded_answer(rest, question=question, named=is_word(truth))
            found, marked = (found, True) if concluded is None and marked else (concluded, False)
        if found is None or not found.text:
            return Grade(False, NO_ANSWER, None)
        answer = found.text
        if len(answer) > MAX_ANSWER_CHARACTERS:
            return Grade(False, TOO_LONG, _cut(answer), marked)
        agree = agreement if style == "whole" else _agrees
        agrees = not found.spoilt and agree(truth, answer, question=question)
        verdict = agrees if isinstance(agrees, bool) else await self._all_hold(agrees)
        if verdict is None:
            return Grade(False, TOO_HARD, _cut(answer), marked)
        return Grade(verdict, CORRECT if verdict else WRONG, _cut(answer), marked)

    def close(self) -> None:
        """Release the workers; may be called twice."""
        if self._workers is not None:
            release(self._workers)
            self._workers = None

    async def _all_hold(self, comparisons: tuple[ExpressionPair, ...]) -> bool | None:
        """Whether math-verify finds every pair equal; None if an answer is too hard for it."""
        for comparison in comparisons:
            holds = await self._holds(comparison)
            if not holds:
                return holds
        return True

    async def _holds(self, comparison: ExpressionPair) -> bool | None:
        try:
            return await self._compare(comparison)
        except WorkerRaised:
            pass
        except WorkerKilled as first:
            if not first.over_limit:
                return await self._holds_in_another_process(comparison)
        await self._require_comparable(comparison)
        return None

    async def _holds_in_another_process(self, comparison: ExpressionPair) -> bool | None:
        """Second attempt after a process died within its limits, perhaps for another reason."""
        try:
            return await self._compare(comparison)
        except (WorkerKilled, WorkerRaised):
            await self._require_comparable(comparison)
            return None

    async def _require_comparable(self, comparison: ExpressionPair) -> None:
        """Raise `GradingFailed` if the truth can be compared neither with itself nor with 0."""
        truth = comparison.truth
        try:
            await self._compare(ExpressionPair(truth, truth))
            with contextlib.suppress(WorkerRaised):  # 0 may be of another kind than the truth
                await self._compare(ExpressionPair(truth, "0"))
        except (WorkerKilled, WorkerRaised) as error:
            answer = shortened(comparison.answer)
            message = f"The answer {answer} could not be compared with {shortened(truth)}: {error}."
            raise GradingFailed(message) from error

    async def _compare(self, comparison: ExpressionPair) -> bool:
        if self._workers is None:
            self._workers = lease(self._settings)
        return bool(await self._workers.call(comparison._asdict()))


def _agrees(truth: str, answer: str, *, question: str) -> bool | tuple[ExpressionPair, ...]:
    """Whether `answer` agrees with `truth`; an answer that is a sentence, `The price fell by 25
    percent`, is read like a closing sentence.
    """
    agrees = agreement(truth, answer, question=question)
    if agrees is not False or not (SENTENCE.match(answer) or is_word(truth)):
        return agrees
    closing = concluded_answer(answer, question=question, named=is_word(truth))
    if closing is None or closing.spoilt:
        return False
    return agreement(truth, closing.text, question=question)


def check_truth(truth: str | None, *, style: str) -> str:
    """`truth`, if `style` can grade against it.

    Raises:
        ValueError: An unknown style, or no truth, or one that it cannot read.
    """
    if style not in STYLES:
        raise ValueError(
            f"reward_model.style {style!r} is not graded here; known: {', '.join(STYLES)}"
        )
    truth = require_truth(truth)
    if style == "countdown":
        _countdown(truth)
    return truth


def _grade_countdown(text: str, *, truth: str) -> Grade:
    numbers, target = _countdown(truth)
    marked = marked_answer(text)
    answer = (marked.text if marked is not None else text).partition("=")[0].strip()
    if not answer:
        return Grade(False, NO_ANSWER, None)
    if len(answer) > MAX_ANSWER_CHARACTERS:
        return Grade(False, TOO_LONG, _cut(answer))
    try:
        computed = compute(answer)
    except NoExpression as error:
        return Grade(False, f"not an expression: {error}", _cut(answer))
    if Counter(computed.numbers) - Counter(numbers):
        return Grade(False, "other numbers than given", _cut(answer))
    correct = computed.value == target
    return Grade(correct, CORRECT if correct else WRONG, _cut(answer))


def _countdown(truth: str) -> tuple[list[int], int]:
    try:
        task = json.loads(truth)
        return [int(number) for number in task["numbers"]], int(task["target"])
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            'the ground truth of a countdown must be {"numbers": […], "target": …}, '
            f"got {shortened(truth)}"
        ) from error


def _cut(answer: str) -> str:
    return answer if len(answer) <= 200 else answer[:199] + "…"
