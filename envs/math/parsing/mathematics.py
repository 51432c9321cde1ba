r"""Recognises text that an algebra system may read: mathematics without words, except functions and
units.

Prose is never passed to the algebra system, which would skip words.
"""

import re
from typing import NamedTuple

from envs.math.parsing.notation import NOTATION
from envs.math.parsing.plain_text import DRESS
from envs.math.parsing.quantities import is_unit
from envs.math.parsing.vocabulary import CHANGING

FUNCTION_NAMES = (
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp sqrt pi mod gcd lcm "
    "max min cis"
)
FUNCTIONS = frozenset(FUNCTION_NAMES.split())
COMMAND = re.compile(r"\\[A-Za-z]+")
LETTERS = re.compile(r"[A-Za-z]{2,}")
NO_MATHEMATICS = re.compile(r"[?@#\"]|~~|\.\.")
TRAILING_UNIT = re.compile(
    r"(?:\\[,;: ]|\s)*\\(?:text|mathrm|mbox|textrm)\s*\{([^{}]*)\}\s*(?:\^ ?\{?[23]\}?)?$"
)
UNIT_IN_WORDS = re.compile(
    r"(?<=[0-9)}\]a-z\u03c0])(?:\\[,;: ]|[\s$])+((?:[A-Za-z]{2,}\.?"
    r"|/)(?:[ /]+[A-Za-z]{1,})*(?: ?(?:\^ ?\{? ?[23] ?\}?|[\u00b2\u00b3]))?)$"
)
"""`16\\pi square centimetres`, `3\\sqrt{2} cm^2`; a single letter may be a variable."""


class ExpressionPair(NamedTuple):
    """Two expressions that an algebra system must find equal."""

    truth: str
    answer: str
    places: int = 6
    """Decimal places to which a decimal among them is compared; math-verify's own by default."""


def without_units(text: str) -> str:
    r"""`text` without a unit in `\text{...}`, a percent or degree sign at its end."""
    text = re.sub(r"\$(\^\{?[23]\}?)\$", r"\1", text).strip()
    for form in (TRAILING_UNIT, UNIT_IN_WORDS):
        unit = form.search(text)
        if unit is not None and unit.start() and is_unit(unit[1]):
            return text[: unit.start()].strip()
    return text


def is_mathematics(text: str, *, truth: str) -> bool:
    """Whether `text` holds only mathematics: its only words are functions, words of the truth, and
    products of its letters.
    """
    if NO_MATHEMATICS.search(text) and not NO_MATHEMATICS.search(truth):
        return False
    if not all(
        character.isascii() or character in NOTATION or character in truth for character in text
    ):
        return False
    known = {word.lower() for word in LETTERS.findall(truth)}
    if any(
        re.search(r"[A-Za-z]", match[1]) and match[1].strip() not in truth
        for match in DRESS.finditer(text)
    ):
        return False
    letters = set(COMMAND.sub(" ", truth))
    words = [
        word
        for word in LETTERS.findall(COMMAND.sub(" ", text))
        if word.lower() not in known and word not in FUNCTIONS
    ]
    return all(_is_product(word, letters) for word in words)


def _is_product(word: str, letters: set[str]) -> bool:
    return len(word) <= 4 and word.lower() not in CHANGING and set(word) <= letters
