r"""Another value that is denied next to the answer: `18, not 17`, `15 (the other root, x = -3, is
rejected)`.

An explicit rejection leaves the answer valid if its clause has only words of a closed table and the
rejected value. A rejection of the answer itself (`18, not 18`, `15 (15 is rejected)`) retracts the
answer.
"""

import re
from typing import NamedTuple

from envs.math.parsing.quantities import Quantity, read_quantity
from envs.math.parsing.vocabulary import UNITS, words

MAX_CLAUSE = 200  # characters; a longer clause explains something else
NOT = re.compile(
    r"(?:,? +|,? *\()"
    r"(?:and not|but not|not|rather than|instead of|as opposed to)\s+"
    r"(?P<denied>[^()]{1,80}?)\)?[\s.$]*$",
    re.IGNORECASE,
)
NOT_BUT = re.compile(r"\bnot ([^\s,;]{1,20}),? but ([^\s,;]{1,20})(?=[\s.$]*$)", re.IGNORECASE)
SEPARATOR = re.compile(
    r"\s*\(|\s*[,;]\s+|\s+[-\u2013\u2014]\s+|\s*\u2014\s*"
    r"|\s+(?=(?:as|because|since|while|where|after|and)\b)"
)
IMPOSSIBLE = re.compile(
    r"\b(?:is |are |was )?(?:not (?:in the domain|valid|allowed|possible|positive|a solution"
    r"|an? integer|admissible|acceptable)"
    r"|(?:does|do)(?: not|n['\u2019]t) (?:satisfy|work|fit|count|apply)"
    r"|(?:cannot|can(?: not|['\u2019]t)) be (?:negative|zero|used)|must be positive"
    r"|(?:is|are) (?:always )?positive)\b",
    re.IGNORECASE,
)
REJECTING = words(
    "rejected reject rejecting rejects discarded discard discarding extraneous excluded exclude "
    "excluding invalid inadmissible dismissed dismiss dropped drop ignored ignore ignoring "
    "impossible ruled"
)
AROUND = words(
    """
    the other second remaining negative positive larger smaller root roots solution solutions value
    one candidate answer possibility number case is are was were be being must has have to been and
    so thus hence therefore since as because while where after a it its we i x y n t out by which
    this that domain equation original condition problem length lengths time width distance age side
    sides for of in with makes denominator zero radicand undefined
    """
)
VALUE = re.compile(
    r"\\[dt]?frac *\{[^{}]*\} *\{[^{}]*\}|-?[0-9]*\\sqrt *\{[^{}]*\}|-? ?[0-9]+(?:[.,/][0-9]+)*"
)
NAME = re.compile(r"\b[A-Za-z](?:_\{?[0-9]\}?)? *= *")
SIGNS = re.compile(r"[-\s.,;:$()\\{}=]*")
LETTERS = re.compile(r"[A-Za-z]+(?:['\u2019][a-z]+)?")


class Contrast(NamedTuple):
    """An answer and the other value that is denied."""

    answer: str
    denied: str
    """The value; empty if the rejection names none, as in `the other root`."""


def contrasted(text: str) -> Contrast | None:
    """`text` as an answer and a denied value; None if nothing is explicitly denied at its end."""
    text = NOT_BUT.sub(r"\2, not \1", text)
    denied = NOT.search(text)
    if denied is not None and _is_value(denied["denied"]):
        return Contrast(text[: denied.start()], denied["denied"])
    for separator in SEPARATOR.finditer(text):
        clause = text[separator.end() :]
        if len(clause) <= MAX_CLAUSE and text.count("(", 0, separator.start()) == text.count(
            ")", 0, separator.start()
        ):
            rejected = _rejected(clause, answer=text[: separator.start()])
            if rejected is not None:
                return Contrast(text[: separator.start()], rejected)
    return None


def denies_itself(answer: Quantity, contrast: Contrast, *, question: str = "") -> bool:
    """Whether `contrast` denies the value of `answer`; the same number in another unit differs."""
    denied = read_quantity(_value(contrast.denied), question=question)
    if denied is None or denied.value != answer.value:
        return False
    return not (answer.units and denied.units and answer.units[0] != denied.units[0])


def _is_value(text: str) -> bool:
    value = _value(text)
    if value.lower() in UNITS:
        return True
    return read_quantity(value) is not None or VALUE.fullmatch(value) is not None


def _value(text: str) -> str:
    return NAME.sub(
        "", text.strip(" $.").removeprefix("\\(").removesuffix("\\)").strip(" $")
    ).strip()


def _rejected(clause: str, *, answer: str) -> str | None:
    """The value that `clause` rejects; empty for `the other root`; None for other content."""
    clause = IMPOSSIBLE.sub(" invalid ", clause)
    values = [match[0] for match in VALUE.finditer(clause)]
    rest = VALUE.sub(" ", NAME.sub(" ", clause))
    said = [word.lower() for word in LETTERS.findall(rest)]
    if (
        not REJECTING & set(said)
        or not set(said) <= AROUND | REJECTING
        or not SIGNS.fullmatch(LETTERS.sub("", rest))
    ):
        return None
    if not values:
        return "" if "other" in said or ("negative" in said and "-" not in answer) else None
    return values[0] if len(set(values)) == 1 else None
