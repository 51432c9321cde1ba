"""Verdicts for tests of the grader."""

import asyncio

from envs.math.grading import Grader


def is_right(grader: Grader, text: str, reference: str, question: str = "") -> bool:
    """Whether `grader` takes `text` for `reference`."""
    return asyncio.run(grader.grade(text, truth=reference, style="rule", question=question)).correct
