"""Reads and computes arithmetic with whole numbers exactly: + - * / and parentheses, for the
countdown task.

It uses no `eval` and knows no powers, so a few hundred tokens are computed quickly.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

MAX_TOKENS = 200
TOKEN = re.compile(r" *(?:([0-9]{1,12})|([-+*/()]))")
SPELLINGS = {
    "\\times": "*",
    "\\cdot": "*",
    "\\div": "/",
    "\u00d7": "*",
    "\u00f7": "/",
    "\u2212": "-",
    "\\left": "",
    "\\right": "",
    "$": "",
}


class ComputedValue(NamedTuple):
    """An expression's value, and its numbers in order."""

    value: Fraction
    numbers: tuple[int, ...]


class NoExpression(ValueError):
    """The text is not an expression of this kind, or divides by zero."""


def compute(text: str) -> ComputedValue:
    """Read `text`, and compute it.

    >>> compute("(3 + 5) * 2").value
    Fraction(16, 1)

    Raises:
        NoExpression: Anything other than whole numbers, + - * / and parentheses; more than
            `MAX_TOKENS` tokens; division by zero.
    """
    tokens = _tokens(text)
    reader = _Reader(tokens)
    value = reader.sum()
    if reader.next is not None:
        raise NoExpression(f"{reader.next!r} is out of place")
    return ComputedValue(value, tuple(token for token in tokens if isinstance(token, int)))


class _Reader:
    """Recursive descent; as deep as parentheses nest, which `MAX_TOKENS` bounds."""

    def __init__(self, tokens: list[int | str]) -> None:
        self._tokens: Iterator[int | str] = iter(tokens)
        self.next: int | str | None = next(self._tokens, None)

    def sum(self) -> Fraction:
        value = self._product()
        while self.next == "+" or self.next == "-":
            sign = 1 if self._take() == "+" else -1
            value += sign * self._product()
        return value

    def _product(self) -> Fraction:
        value = self._operand()
        while self.next == "*" or self.next == "/":
            multiplies, operand = self._take() == "*", self._operand()
            if not multiplies and operand == 0:
                raise NoExpression("division by zero")
            value = value * operand if multiplies else value / operand
        return value

    def _operand(self) -> Fraction:
        token = self._take()
        if isinstance(token, int):
            return Fraction(token)
        if token != "(":
            raise NoExpression("a number or ( is missing")
        value = self.sum()
        if self._take() != ")":
            raise NoExpression(") is missing")
        return value

    def _take(self) -> int | str | None:
        token, self.next = self.next, next(self._tokens, None)
        return token


def _tokens(text: str) -> list[int | str]:
    for spelling, plain in SPELLINGS.items():
        text = text.replace(spelling, plain)
    text = text.strip()
    position = 0
    tokens = list[int | str]()
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None or len(tokens) == MAX_TOKENS:
            raise NoExpression(
                f"{text[position : position + 20]!r} cannot be read"
                if match is None
                else f"more than {MAX_TOKENS} tokens"
            )
        tokens.append(int(match[1]) if match[1] else match[2])
        position = match.end()
    return tokens
