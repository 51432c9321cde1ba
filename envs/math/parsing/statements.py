r"""Parses a final statement: `x = 18`, `9 + 9 = 18`, `18 (18 apples)`, `Natalia sold 72 clips`.

All parts of a statement must give the answer: a value and its restatements. The statement is right
only if every part is right, so a second value is a contradiction, not a second chance. A label (`x
=`, `Total:`), or a sentence of ordinary words and words of the question, may introduce a value
(`vocabulary`).

Left out: finding the statement in a text (`answers`), and comparing it with the truth
(`envs.math.grading`).
"""

import re
from typing import NamedTuple

from envs.math.parsing.contrasts import contrasted, denies_itself
from envs.math.parsing.conversions import read_compound
from envs.math.parsing.introductions import (
    LABEL,
    introduces,
    introduces_another_number,
    is_label,
    tells_the_other_part,
)
from envs.math.parsing.markup import EMPHASISED, without_markup
from envs.math.parsing.plain_text import plain, ungrouped
from envs.math.parsing.quantities import Quantity, is_unit, read_quantity
from envs.math.parsing.vocabulary import (
    CHANGING,
    HEDGES,
    UNITS,
    WORDS,
    is_counted,
)

MAX_PARTS = 6
OPTION = re.compile(
    r"(?:\\(?:text|textbf|mathrm|mathbf) ?\{)?(?:\(([A-J])\)"
    r"|([A-J])[).:](?=[ \\}$]))[\s~]*\}?[\s~]*(?=\S)"
)
SAME = re.compile(
    r",? *\((?:or|i\.e\.,?|that is,?|which is|which equals|or equivalently|equivalently"
    r"|in other words,?|=)? *(?P<inner>[^()]*)\)$"
    r"|(?:[,;]? +\\?(?:or equivalently|or|i\.e\.,?|that is,?|which is|which equals|aka|equivalently"
    r"|in other words),? +)(?P<other>.*)$",
    re.IGNORECASE | re.DOTALL,
)
BECAUSE = re.compile(
    r"(?:,? +\(?(?:because|since|having)|, as(?! well))\b.*$", re.IGNORECASE | re.DOTALL
)
AFFIRMED = re.compile(
    r"(?<=[0-9A-Za-z)}$%*]) (?:is (?:the|my|our) (?:(?:final|correct|right|only|unique|real"
    r"|positive|valid) )*(?:answer|solution)"
    r"|is correct|(?:is|are) left(?: over)?|(?:- |\u2014 )?final answer|"
    r"\(final(?: answer)?\)|exactly|only|as required)$",
    re.IGNORECASE,
)
DESCRIBED = re.compile(
    r"(?:(?: (?:-|\u2013|\u2014)|,) (?:that is |which is |this is )?(?:the|a|an)\b"
    r"| (?:-|\u2013|\u2014) that['\u2019]s\b)(?!.*(?:[=;:]"
    r"|\b(?:is|are|was|were|be|has|have|answers?|results?)\b)).*$",
    re.DOTALL,
)
"""` - the sum of the digits of 49`: describes the number in words without a verb."""
REMARK = re.compile(r"(?:, +(?:which|as|so)\b| - |\s?\u2014\s?)[^0-9]*$", re.IGNORECASE)
EQUALS = re.compile(r"(?<![<>!:=\\])(?<!_\{[A-Za-z])(?<!_\{[A-Za-z] )=(?![=<>])|\\equiv(?![a-z])")
r"""Signs between the sides of an equation; the one in `\sum_{n=1}` does not count."""
APPROXIMATELY = re.compile(
    r"\\approx(?:eq)?(?![a-z])|\\simeq(?![a-z])|[\u2248\u2245]"
    r"|\b(?:approximately|approx\.?|about|roughly)(?= [$\\(]{0,3}-?[0-9.])"
    r"|,? (?:which |that )?round(?:s|ed)(?: up| down| off)? to(?= -?[0-9])",
    re.IGNORECASE,
)
FIRST_NUMBER = re.compile(
    r"(?<![\w.,^_])(?:[-+](?=\S))?(?:(?:US|\\)?\$|[\u20ac\u00a3\u00a5\u20b9]|USD |EUR "
    r"|GBP )? ?-?\.?[0-9]"
)
OPERATOR = re.compile(r"(?:[-+*/=\u00d7\u00f7\u00b7\u2212]|\\(?:times|cdot|div))\s*$")
FACTORS = re.compile(r"\s*(?:[\u00d7\u00b7]|\\(?:times|cdot)(?![a-z])|(?<= )\*(?= ))\s*")


class RoundedQuantity(NamedTuple):
    r"""A part that is marked as approximate, `\approx 3.14`: right if it is the answer rounded to
    its own places.
    """

    quantity: Quantity


Part = Quantity | RoundedQuantity | str
"""A str is an expression, which an algebra system reads."""


def read_statement(text: str, *, question: str = "") -> tuple[Part, ...]:
    """The parts of a statement about a number; all must be the answer. (): it has other content."""
    text = ungrouped(text)
    for emphasised in EMPHASISED:
        text = emphasised.sub(r"\2", text)
    parts = _parts(text, question=question, left=MAX_PARTS)
    return parts if len(parts) <= MAX_PARTS else ()


def without_label(text: str) -> str:
    """`text` without an introduction such as `x =` or `The answer is`, for answers that are not
    numbers.
    """
    text = without_markup(text)
    introduction = re.match(
        r"(?:(?:so|thus|therefore|hence),? +)?(?:(?:the +)?(?:final +|correct +)?answer|it|this"
        r"|option|choice)(?: *[:=]| +is:?| *$)\s*",
        text,
        re.IGNORECASE,
    )
    return without_markup(text[introduction.end() :]) if introduction is not None else text


def _parts(text: str, *, question: str, left: int) -> tuple[Part, ...]:
    """Parse recursively. Each step removes something, so the text bounds the depth; `left` bounds
    it by a small number.
    """
    text = without_markup(text)
    if not text or not left:
        return ()
    quantity = read_quantity(text, question=question)
    if quantity is not None:
        return (quantity,)
    compound = read_compound(plain(text), question=question)
    if compound is not None:
        return (compound,)
    for step in (
        _optioned,
        _affirmed,
        _contrasted,
        _explained,
        _restated,
        _approximated,
        _introduced,
        _equated,
    ):
        parts = step(text, question=question, left=left - 1)
        if parts is not None:
            return parts
    return (text,)


def _optioned(text: str, *, question: str, left: int) -> tuple[Part, ...] | None:
    """`(B) 18`, the form of multiple-choice competitions."""
    option = OPTION.match(text)
    return None if option is None else _parts(text[option.end() :], question=question, left=left)


def _affirmed(text: str, *, question: str, left: int) -> tuple[Part, ...] | None:
    """`18 is the answer`, `18 (final)`."""
    remark = AFFIRMED.search(text)
    return None if remark is None else _parts(text[: remark.start()], question=question, left=left)


def _contrasted(text: str, *, question: str, left: int) -> tuple[Part, ...] | None:
    """`18, not 17`: another value that is denied."""
    contrast = contrasted(text)
    if contrast is None:
        return None
    parts = _parts(contrast.answer, question=question, left=left)
    return (
        ()
        if any(
            isinstance(part, Quantity) and denies_itself(part, contrast, question=question)
            for part in parts
        )
        else parts
    )


def _explained(text: str, *, question: str, left: int) -> tuple[Part, ...] | None:
    """`18, because 9 and 9 make 18`, `18, as required`."""
    reason = BECAUSE.search(text)
    clause = reason or DESCRIBED.search(text) or REMARK.search(text)
    if clause is None:
        return None
    hedges = CHANGING if clause.re is REMARK else HEDGES
    if hedges & {word.lower() for word in WORDS.findall(clause[0])}:
        return () if clause is reason else None
    return _parts(text[: clause.start()], question=question, left=left)


def _restated(text: str, *, question: str, left: int) -> tuple[Part, ...] | None:
    r"""`18 (18 apples)`, `\frac{1}{2} or 0.5`."""
    text = plain(text) if "\\text" in text else text
    same = SAME.search(text)
    if same is None or not text[: same.start()].strip():
        return None
    if (
        same["inner"] is not None
        and text[same.start()] == "("
        and text[same.start() - 1] not in " $*"
    ):
        return None  # 3(4) is a product, f(4) a function
    if same["inner"] is not None and OPERATOR.search(text[: same.start()]):
        return None  # 3 * (-4)
    again = same["inner"] if same["inner"] is not None else same["other"]
    first = _parts(text[: same.start()], question=question, left=left)
    if same["inner"] is not None and is_unit(again, question=question):
        return first
    second = _parts(again, question=question, left=left)
    return (*first, *second) if first and second else ()


def _approximated(text: str, *, question: str, left: int) -> tuple[Part, ...] | None:
    r"""`\frac{22}{7} \approx 3.14`, `\approx 3.14`."""
    sign = APPROXIMATELY.search(text)
    if sign is None:
        return None
    rounded = read_quantity(without_markup(text[sign.end() :]), question=question)
    before = text[: sign.start()].strip()
    if rounded is None or rounded.places == 0:
        return ()
    if not before or LABEL.fullmatch(before):
        harmless = not before or introduces(before, question=question)
        return (RoundedQuantity(rounded),) if harmless else ()
    exact = _parts(before, question=question, left=left)
    return (*exact, RoundedQuantity(rounded)) if exact else ()


def _equated(text: str, *, question: str, left: int) -> tuple[Part, ...] | None:
    """`x = 18`, `9 + 9 = 18`, `18 = x`: every side that is not a label must be right."""
    sides = EQUALS.split(text)
    if len(sides) == 1:
        return None
    values = [side for side in sides if not is_label(side, question=question)]
    if not values or not all(side.strip() for side in sides):
        return ()
    parts = [_parts(_without_units(side), question=question, left=left) for side in values]
    return tuple(part for side in parts for part in side) if all(parts) else ()


def _introduced(text: str, *, question: str, left: int) -> tuple[Part, ...] | None:
    """`Natalia sold 72 clips`, `Total: 18`, `the answer is 18`."""
    text = plain(text).replace("**", "")
    first = FIRST_NUMBER.search(text)
    if first is None:
        return None
    introduction = text[: first.start()]
    ends = introduction[-1:] in (" ", ":", "=") and introduction.count("(") == introduction.count(
        ")"
    )
    if (
        not ends
        or not WORDS.search(introduction)
        or not introduces(introduction, question=question)
    ):
        return None
    if tells_the_other_part(introduction, text, question=question):
        return ()
    quantity = read_quantity(without_markup(text[first.start() :]), question=question)
    if quantity is not None:
        after = text[first.end() :]
        another = introduces_another_number(introduction, after=after, question=question)
        return () if another else (quantity,)
    rest = without_markup(text[first.start() :])
    return (
        _parts(rest, question=question, left=left)
        if SAME.search(rest) or EQUALS.search(rest)
        else None
    )


def _without_units(side: str) -> str:
    """`9 eggs * $2` as `9 * $2`, if the only other words are units."""
    factors = [read_quantity(factor) for factor in FACTORS.split(side)]
    whole = [factor.value for factor in factors if factor and factor.value.denominator == 1]
    if len(factors) > 1 and len(whole) == len(factors) and min(whole) >= 0:
        return " * ".join(map(str, whole))
    if not re.search(r"[-+*/\u00d7\u00f7]|\\(?:times|cdot|div)", side):
        return side
    words = [word for word in WORDS.findall(re.sub(r"\\[A-Za-z]+", " ", side)) if len(word) > 1]
    if not words or not all(word.lower() in UNITS or is_counted(word.lower()) for word in words):
        return side
    return " ".join(
        re.sub(
            rf"(?<![A-Za-z\\])(?:{'|'.join(words)})(?![A-Za-z])|/ ?(?:{'|'.join(words)})", " ", side
        ).split()
    )
