r"""The final answer in a model's text, and the answers that are compared without an algebra system: numbers.

A final answer is marked: `#### x`, `\boxed{x}` or `Answer: x`. Of several marks the last one counts, as a text that corrects itself means
it. Numbers are integers, decimals and fractions in ASCII digits, with thousands separators, a currency sign, or a unit in words after
them. Whatever else stands there goes to `envs.math.verification`.

Everything here takes time linear in the text, which may be megabytes of anything.
"""

import re
from fractions import Fraction
from typing import NamedTuple

MAX_ANSWER_CHARACTERS = 1000  # of a final answer; what a proof assistant would need more for is no final answer
BOX = r"\boxed{"
LINE_MARKS = re.compile(r"####|\banswer[ \t*]{0,8}:", re.IGNORECASE)
NUMBER = re.compile(r"([+-]?)(?:\\?\$)?([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(\.[0-9]+)?(?:/([0-9]+))?")
UNIT = re.compile(r" +(?P<words>[A-Za-z]{2,}(?: [A-Za-z]+)*)$")
NO_UNITS = frozenset(("pi", "and", "or", "to", "by", "plus", "minus", "times", "over", "percent"))
NO_UNITS |= frozenset(("dozen", "hundred", "thousand", "million", "billion", "trillion"))
NEAR = Fraction(1, 10**5)  # math-verify rounds to six decimals: numbers further apart than this differ for it as well


class MarkedAnswer(NamedTuple):
    """What stands after the last mark."""

    text: str
    """Without the mark and what surrounds it."""
    position: int
    """Where in the text the mark begins."""


def marked_answer(text: str) -> MarkedAnswer | None:
    """The last marked answer of `text`, or None where nothing is marked. An empty mark gives an empty answer."""
    box = _last_box(text)
    line = _last_line_mark(text)
    if box is not None and (line is None or line.position < box.position + len(BOX) + len(box.text)):
        return box
    return line


def plain_number(text: str) -> Fraction | None:
    """The number that `text` is, or None if it is not a plain number.

    >>> plain_number("$1,080 dollars")
    Fraction(1080, 1)
    """
    if len(text) > MAX_ANSWER_CHARACTERS:
        return None
    text = text.strip().strip("$").strip()
    unit = UNIT.search(text)
    if unit is not None and not NO_UNITS & set(unit["words"].lower().split()):
        text = text[: unit.start()]
    match = NUMBER.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        return None
    sign, whole, decimals, denominator = match.groups()
    if denominator is not None and int(denominator) == 0:
        return None
    number = Fraction((whole or "0").replace(",", "") + (decimals or ""))
    number = number / int(denominator) if denominator is not None else number
    return -number if sign == "-" else number


def equal_numbers(truth: Fraction, answer: Fraction) -> bool | None:
    """Whether two numbers agree; None where they are so near that rounding decides, which is left to the algebra system."""
    if truth == answer:
        return True
    if truth.denominator == answer.denominator == 1 or abs(truth - answer) > NEAR * max(Fraction(1), abs(truth)):
        return False
    return None


def _last_box(text: str) -> MarkedAnswer | None:
    start = text.rfind(BOX)
    if start < 0:
        return None
    first, depth = start + len(BOX), 1
    inside = text[first : first + 2 * MAX_ANSWER_CHARACTERS]  # a longer one is too long wherever it ends
    for brace in re.finditer(r"\\?[{}]", inside):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)  # an escaped brace is a character
        if depth == 0:
            return MarkedAnswer(inside[: brace.start()].strip(), start)
    return MarkedAnswer(inside.partition("\n")[0].strip(), start)  # never closed: the rest of its line


def _last_line_mark(text: str) -> MarkedAnswer | None:
    last = None
    for last in LINE_MARKS.finditer(text):
        pass
    if last is None:
        return None
    answer = text[last.end() :].lstrip(" \t*").partition("\n")[0].strip()
    return MarkedAnswer(_without_sentence_marks(answer), last.start())


def _without_sentence_marks(answer: str) -> str:
    return answer.rstrip("*").rstrip().removesuffix(".").strip()
