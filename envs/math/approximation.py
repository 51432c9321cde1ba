r"""Value of a LaTeX expression as a float, to check a decimal that restates it: `\sqrt{2}, or about
1.414`.

Numbers, `\pi`, `e`, the four operations, powers, roots, fractions, logarithms, and sine, cosine and
tangent. Anything else has no value here. Bounded by `MAX_TOKENS`.
"""

import math
import re
from collections.abc import Callable

MAX_TOKENS = 200
MAX_EXPONENT = 1000.0
TOKEN = re.compile(r"\s*(?:([0-9]+(?:\.[0-9]+)?|\.[0-9]+)|\\([A-Za-z]+)|([-+*/^(){}\[\]e]))")
SHORT_FRACTION = re.compile(r"\\[dt]?frac *([0-9]) *([0-9])")
SHORT_ROOT = re.compile(r"\\sqrt *([0-9])")
IGNORED = re.compile(r"\\(?:left|right|displaystyle|[,;:! ])|\$|~")
FUNCTIONS: dict[str, Callable[[float], float]] = {
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "ln": math.log,
    "log": math.log10,
    "exp": math.exp,
}


def size_of(latex: str) -> float | None:
    r"""The value of `latex`; None if it is not an expression of this kind, or has no finite value.

    >>> round(size_of(r"10\sqrt{2}"), 3)
    14.142
    """
    try:
        latex = SHORT_ROOT.sub(r"\\sqrt{\1}", SHORT_FRACTION.sub(r"\\frac{\1}{\2}", latex))
        tokens = _tokens(IGNORED.sub(" ", latex).replace("\\cdot", "*").replace("\\times", "*"))
        reader = _Reader(tokens)
        value = reader.sum()
        return value if reader.next is None and math.isfinite(value) else None
    except (ValueError, ArithmeticError):
        return None


def is_rounding_of(value: float, *, rounded: float, places: int) -> bool:
    """Whether `rounded` is `value` rounded to `places` decimal places."""
    return abs(rounded - value) <= 0.5 * 10.0**-places * (1 + 1e-6)


def _tokens(text: str) -> list[str]:
    position, tokens, text = 0, list[str](), text.strip()
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None or len(tokens) == MAX_TOKENS:
            raise ValueError(text[position:])
        tokens.append(match[1] or (f"\\{match[2]}" if match[2] else match[3]))
        position = match.end()
    return tokens


class _Reader:
    """Recursive descent, as deep as brackets nest, which `MAX_TOKENS` bounds."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = iter(tokens)
        self.next = next(self._tokens, None)

    def sum(self) -> float:
        sign = -1.0 if self.next == "-" else 1.0
        if self.next in ("-", "+"):
            self._take()
        value = sign * self._product()
        while self.next in ("+", "-"):
            value += self._product() if self._take() == "+" else -self._product()
        return value

    def _product(self) -> float:
        value = self._power()
        while self.next is not None and self.next not in ("+", "-", ")", "}", "]"):
            if self.next == "/":
                self._take()
                value /= self._power()
            else:
                if self.next == "*":
                    self._take()
                value *= self._power()
        return value

    def _power(self) -> float:
        base = self._operand()
        if self.next != "^":
            return base
        self._take()
        exponent = -self._operand() if self.next == "-" and self._take() else self._operand()
        if abs(exponent) > MAX_EXPONENT or (base < 0 and not exponent.is_integer()):
            raise ValueError("no power of this kind")
        return float(base**exponent)

    def _operand(self) -> float:
        token = self._take()
        if token[0].isdigit() or token[0] == ".":
            return float(token)
        if token in ("(", "{", "["):
            value = self.sum()
            if (token, self._take()) not in (("(", ")"), ("{", "}"), ("[", "]")):
                raise ValueError("a bracket is missing")
            return value
        if token in ("\\pi", "e"):
            return math.pi if token == "\\pi" else math.e
        if token in ("\\frac", "\\dfrac", "\\tfrac"):
            return self._operand() / self._operand()
        if token == "\\sqrt":
            degree = self._operand() if self.next == "[" else 2.0
            return math.exp(math.log(self._operand()) / degree)
        function = FUNCTIONS.get(token.removeprefix("\\"))
        if function is None:
            raise ValueError(token)
        return function(self._operand())

    def _take(self) -> str:
        token, self.next = self.next, next(self._tokens, None)
        if token is None:
            raise ValueError("the expression ends too early")
        return token
