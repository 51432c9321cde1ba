"""Reads the quantity that a question requests (unit, counted noun, rounding, base), to detect
contradicting answers.

`How many dollars ...?` and `the length in metres` ask for a unit, `How many apples ...?` for a
thing. Collective words (`How many animals`) are contradicted by no noun. A question that asks for
none of these contradicts no answer.
"""

import functools
import re
from collections.abc import Iterable
from typing import NamedTuple

from envs.math.parsing.conversions import units_of_the_kind
from envs.math.parsing.quantities import Quantity, stem, words_of
from envs.math.parsing.vocabulary import (
    CARDINALS,
    COMPARATIVES,
    OF_A_SOLUTION,
    ORDINARY_VERBS,
    SHORT,
    UNITS,
    is_counted,
    words,
)

MONEY = words("dollar cent euro pound yen rupee peso franc")
KINDS = (
    MONEY,
    words("millisecond second minute hour day week month year decade century"),
    words("millimetre centimetre metre kilometre inch foot yard mile"),
    words("milligram gram kilogram tonne ounce pound"),
    words("millilitre litre ounce cup pint quart gallon teaspoon tablespoon"),
    words("celsius fahrenheit"),
    words("degree radian"),
)
"""Different units of one kind contradict each other."""
COLLECTIVE = words(
    """
    time times people person persons animal animals item items thing things object objects piece
    pieces fruit fruits coin coins bill bills toy toys flower flowers pet pets member members
    guest guests passenger passengers way ways unit units
    """
)
"""Nouns for things that the answer may call by a narrower name."""
ENDS_OF_A_NOUN = ORDINARY_VERBS | words(
    """
    in on at for to from by with that which who there he she they we you it i each per every
    should would could must might if when after before so left
    """
)
DIFFERENCE = re.compile(
    rf"\b(?:{'|'.join(sorted(COMPARATIVES))}|than|compared?|differ\w*|exceed\w*|missing|short|still"
    rf"|left"
    r"|remain\w*|(?:in|de)crease\w*|change\w*|raise\w*|rise|rose|fall|fell|drop\w*|grow|grew"
    r"|gain\w*|lose|lost"
    r"|sav(?:e|es|ed|ing)|by (?:how|what)|additional\w*|another)\b",
    re.IGNORECASE,
)
"""Words of a question whose answer may be a difference: `How much more`, `How many are missing`."""
BY_HOW = re.compile(r"\bby (?:how|what)\b", re.IGNORECASE)
FRUITS = words(
    "apple orange pear plum banana peach grape lemon melon mango cherry strawberry kiwi apricot"
)
ANIMALS = words(
    "dog cat cow horse sheep pig chicken duck goose goat rabbit bird turtle frog bee snail"
)
PERSONS = words(
    "people person man men woman women boy girl child children student pupil teacher kid guest "
    "passenger worker friend"
)
OBJECTS = words(
    "pencil pen book marble sticker stamp ball bike car card coin candle cookie cupcake egg flower "
    "ticket chair table brick tree"
)
THINGS = (FRUITS, ANIMALS, PERSONS, OBJECTS)
"""Things that exclude each other, except for persons: a pupil is a child."""
CLOCK = words("am pm o'clock")
ASKS_FOR_A_TIME = re.compile(r"\b(?:time|when|clock|o'clock|hours?|[ap]\.?m)\b", re.IGNORECASE)
ASKS_FOR_A_TOTAL = re.compile(
    r"\b(?:total|altogether|in all|combined|together|overall)\b", re.IGNORECASE
)
ASKS_FOR_A_RATE = re.compile(
    r"\b(?:per|each|every|apiece|average|mean|rate|speed|fast|velocity|pace|density|wage|hourly"
    r"|daily|weekly|monthly|yearly|single|one)\b",
    re.IGNORECASE,
)
PERIODS = words("second minute hour day week month year")
PERIOD_OF_A_RATE = re.compile(rf"\b(?:per|each|every|an?) ({'|'.join(sorted(PERIODS))})\b")
WANTED = re.compile(
    r"\bhow (?:much|many)\b(?:(?!,? (?:if|when|given|assuming)\b).)*", re.IGNORECASE
)
"""The clause of a question that names the requested quantity: `how much does she make, if ...`"""
HOW_MANY = re.compile(r"\bhow many((?:\s+[a-z'-]+){1,8})", re.IGNORECASE)
IN_UNIT = re.compile(
    r"\bin (?:terms of )?(?:(?:us|full|whole|square|cubic|degrees) )?"
    r"([a-z]+)(?: and ([a-z]+))?",
    re.IGNORECASE,
)
PERCENTAGE = re.compile(
    r"\b(?:what|which|how many|as an?|in|the|find)\s+(?:[a-z]+\s+)?per ?cent(?:age)?\b"
    r"|\bwhat\s+\\?%",
    re.IGNORECASE,
)
LAST_SENTENCE = re.compile(r"(?:^|[.!?]\s+)([^\s](?:[^.!?]|[.!?](?=\S))*[.!?]*\s*)$")
ASKING_SENTENCE = re.compile(r"(?:^|(?<=[.!?\n]))((?:[^.!?\n]|[.!](?=\S))*\?)")
BASE = re.compile(r"\bbase[- ]?\$?([0-9]+|[a-z]+)|\b(binary|octal|hexadecimal)\b", re.IGNORECASE)
BASES = {"binary": 2, "octal": 8, "hexadecimal": 16, "sixteen": 16}


DRESS_OF_AN_EXPRESSION = re.compile(
    r"[\s{}]|\\\\(?:left|right|displaystyle)(?![a-z])|\\\\[,;:! ()\[\]]"
)
TO_EVALUATE = (
    r"(?:whatis|compute|evaluate|calculate|simplify|factor|expand|write|express|reduce|find)"
    r"(?:thevalueof|theexpression|thefraction)?"
)


class AskedQuantity(NamedTuple):
    """The quantity that a question asks for."""

    units: frozenset[str]
    """Units that the question names; an answer may have any of them. Empty if it names none."""
    nouns: frozenset[str]
    """Stems of the things that it counts; empty if it names none, or a collective."""


def contradicts(quantity: Quantity, question: str) -> bool:
    """Whether `quantity` has a different unit, or counts different objects, than `question` asks
    for.
    """
    named = quantity.units or quantity.counted or quantity.rate or quantity.compared
    if not question or not named:
        return False
    question = question[:20_000]
    if quantity.compared and not asks_a_difference(question):
        return True
    if OF_A_SOLUTION & {*quantity.counted[:1]} and not _names(question, quantity.counted[0]):
        return True
    asked = _asked(question)
    unit = quantity.units[0] if quantity.units else None
    if unit in CLOCK and not ASKS_FOR_A_TIME.search(question):
        return True
    if quantity.compound and unit is not None and units_of_the_kind(unit) & asked.units:
        return False  # it is compared in the requested unit
    if quantity.rate and _contradicts_rate(quantity.rate[0], question):
        return True
    if (
        not asked.units & set(quantity.units)
        and _is_measured(quantity.units)
        and _is_measured(asked.units)
    ):
        return True
    if not asked.nouns:
        return False
    if unit == "%":
        return not asks_percentage(question)
    if not quantity.counted:
        return unit in MONEY and not asked.units & MONEY
    if unit is not None and unit in asked.units:
        return False
    stems = [stem(word) for word in quantity.counted]
    if asked.nouns & set(stems):
        return False
    return stems[-1] in words_of(question) or any(
        _is_another_thing(stems[-1], noun) for noun in asked.nouns
    )


def _is_measured(units: Iterable[str]) -> bool:
    """Whether one of `units` is of a kind that other units contradict."""
    return any(unit in kind for unit in units for kind in KINDS)


def _contradicts_rate(share: str, question: str) -> bool:
    """Whether `question` asks for a plain number, not for a rate by `share`: `18 apples per hour`,
    `$18 each`.
    """
    asking = _asking(question)
    wanted = WANTED.search(asking)
    periods = set(PERIOD_OF_A_RATE.findall((wanted[0] if wanted else asking).lower()))
    if periods and share in PERIODS:
        return share not in periods
    if ASKS_FOR_A_RATE.search(asking) or stem(share) in words_of(asking):
        return False
    if ASKS_FOR_A_TOTAL.search(asking):
        return True
    return share not in ("each", "apiece") and HOW_MANY.search(asking) is not None


def _is_another_thing(counted: str, asked: str) -> bool:
    """Whether two stems name different things."""
    kind, other = _kind_of_thing(counted), _kind_of_thing(asked)
    if other is None:
        return False
    if kind is None:
        measures = frozenset[str]().union(*KINDS[:5])
        return counted in {stem(spelling) for spelling, name in UNITS.items() if name in measures}
    return kind is not other or (kind is not PERSONS and counted != asked)


def _kind_of_thing(name: str) -> frozenset[str] | None:
    """The entry of `THINGS` with a word of this stem."""
    for kind in THINGS:
        if name in {stem(word) for word in kind}:
            return kind
    return None


def _asking(question: str) -> str:
    """The sentence of `question` that asks: the last one with a question mark, or the last one."""
    asking = ASKING_SENTENCE.findall(question) or LAST_SENTENCE.findall(question)
    return str(asking[-1]) if asking else ""


def echoes(answer: str, question: str, *, truth: str) -> bool:
    """Whether `answer` is the expression that `question` wants evaluated: `17 * 23` if it asks for
    the value of 17 * 23, and the truth is not the expression itself.
    """
    if _squeezed(answer) == _squeezed(truth):
        return False
    answer, question = _squeezed(answer).strip("$"), _squeezed(question[:20_000])
    if not re.search(r"[-+*/^\\(]", answer.removeprefix("-")):
        return False
    return re.search(rf"{TO_EVALUATE}\$*{re.escape(answer)}(?![0-9a-z^*/(])", question) is not None


def _squeezed(text: str) -> str:
    text = DRESS_OF_AN_EXPRESSION.sub("", text).rstrip(".,;").lower()
    for spelling, sign in (("\\times", "*"), ("\\cdot", "*"), ("\u00d7", "*"), ("dfrac", "frac")):
        text = text.replace(spelling, sign)
    return text


def asks_a_difference(question: str) -> bool:
    """Whether `question` asks by how much something differs, changes or is short."""
    return DIFFERENCE.search(_asking(question)) is not None


def asks_by(question: str) -> bool:
    """Whether `question` asks for the change, not for the new value."""
    return BY_HOW.search(_asking(question)) is not None


def _names(question: str, word: str) -> bool:
    return stem(word) in words_of(question)


def asked_units(question: str) -> frozenset[str]:
    """Names of the units that `question` asks for; empty if it names none."""
    return _asked(question[:20_000]).units


def asks_percentage(question: str) -> bool:
    """Whether `question` wants its number in percent."""
    return PERCENTAGE.search(question[:20_000]) is not None


def asked_base(question: str) -> int | None:
    """The base that `question` names last, or None."""
    named = [number_of_base(match[1] or match[2]) for match in BASE.finditer(question)]
    return named[-1] if named else None


def number_of_base(name: str) -> int | None:
    """`2`, `two` and `binary` as 2."""
    name = name.lower()
    return int(name) if name.isdecimal() else CARDINALS.get(name, BASES.get(name))


@functools.lru_cache(maxsize=256)
def _asked(question: str) -> AskedQuantity:
    phrases = [_noun_phrase(match[1]) for match in HOW_MANY.finditer(question)]
    named = [word for phrase in phrases for word in phrase]
    units = {UNITS[word] for word in named if _is_unit(word)}
    for match in IN_UNIT.finditer(_asking(question)):
        units |= {UNITS[word.lower()] for word in match.groups() if word and _is_unit(word.lower())}
    exact = all(phrases) and COLLECTIVE.isdisjoint(named)
    nouns = {stem(word) for word in named} if exact else set()
    return AskedQuantity(frozenset(units), frozenset(nouns))


def _noun_phrase(text: str) -> tuple[str, ...]:
    """The nouns and units that directly follow `How many`."""
    nouns = []
    for word in text.lower().replace("-", " ").split():
        if word in ENDS_OF_A_NOUN:
            break
        if is_counted(word) or _is_unit(word):
            nouns.append(word)
    return tuple(nouns)


def _is_unit(word: str) -> bool:
    return word in UNITS and word not in SHORT and word != "second"
