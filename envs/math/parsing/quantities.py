r"""Reads a number with a unit from a piece of an answer: `1,080`, `$18.00`, `18 apples per day`.

After the number only words that are known to leave it unchanged (`vocabulary`) and words of the
question are allowed; with anything else, the text is not a quantity. A percent sign is a unit:
`50%` and `50 percent` are 50, not 0.5, as in the normalisation of Hendrycks et al. (MATH, 2021,
`strip_string`), which removes it. A scale is a part of the number: `3 million` is 3000000.

Left out: the number itself (`leading_numbers`), and expressions, which go to `verification`.
"""

import functools
import itertools
import re
from fractions import Fraction
from typing import NamedTuple

from envs.math.parsing.leading_numbers import leading_number
from envs.math.parsing.plain_text import plain
from envs.math.parsing.vocabulary import (
    ABOUT_ITSELF,
    AMBIGUOUS,
    CASED,
    CHANGING,
    CLOSINGS,
    COMPARATIVES,
    COUNTED,
    DATES,
    LENGTHS,
    LINKS,
    QUANTIFIERS,
    SCALES,
    SHORT,
    SUBSTANCES,
    UNITS,
    is_counted,
)

SIMPLE = re.compile(r"-?[0-9]{1,30}")
TOKEN = re.compile(
    r"o'clock|[A-Za-z]+(?:['\u2019][a-z]{0,2})?|°[CF]?|US\$|[%$€£¥₹¢/]|\^ ?\{? ?[23] ?\}?|\S"
)
WORD = re.compile(r"[A-Za-z]+")
SIGN_WORDS = re.compile(r"(?:negative|minus) +(?=\S)", re.IGNORECASE)
BELOW_ZERO = re.compile(r"(?<=[a-zCF\u00b0]) below (?:zero|0)$", re.IGNORECASE)
"""`5 degrees below zero`"""
A_DOZEN = re.compile(r"^(half )?a dozen\b", re.IGNORECASE)
RATE = re.compile(
    r"(?:\b(?:per|each|every|an?)\b|/) ?(?P<per>[A-Za-z]+)"
    r"|\b(?P<adverb>each|apiece|hourly|daily|weekly|monthly|yearly)\b",
    re.IGNORECASE,
)
POWER = re.compile(r"\^ ?\{? ?([23])|\b(?:square|cubic)\b", re.IGNORECASE)
ENDING = re.compile(r"(?:ies|es|ing|ed|s|e|y)$")
PER = re.compile(r"(?<=[A-Za-z]) ?[*]? ?\b([A-Za-z]+) ?\^ ?\{? ?-([1-3]) ?\}?")
"""`km h^{-1}`, a denominator as a negative power (BIPM SI brochure, 9th edition, 5.4.6)."""
MIDDAY = re.compile(r"\b([ap])\.\s?m\b\.?", re.IGNORECASE)
"""`9 a.m.`"""
SQUARED = re.compile(
    r"\b((?:centi|milli|kilo)?met(?:er|re)s?|seconds?|feet|foot|inch(?:es)?|miles?|yards?|units?)"
    r" (squared|cubed)\b"
)
"""`metres per second squared`; squaring a number itself changes it."""
SCALES_OF_DEGREES = frozenset({"celsius", "fahrenheit"})
DIFFERENCES = frozenset({"more", "less", "fewer", "extra", "additional"})
DIMENSIONS = frozenset({"tall", "long", "wide", "deep", "high", "thick"})


class Quantity(NamedTuple):
    """A number and what it counts or measures."""

    value: Fraction
    units: tuple[str, ...] = ()
    """Names of its known units in order, as in (mile, hour); () if it has none, or only counted
    things.
    """
    places: int = 0
    """Decimal places that were written."""
    counted: tuple[str, ...] = ()
    """The first nouns after the number, in lower case: (duck, eggs); () if it has none."""
    rate: tuple[str, ...] = ()
    """Denominators of a rate: (hour,) of `18 per hour`, (each,) of `18 each`; () if it is not a
    rate.
    """
    compound: bool = False
    """Whether it was written in several units; `units` has the largest."""
    power: int = 0
    """2 for an area, 3 for a volume; 0 if neither is written."""
    compared: bool = False
    """Whether it is a difference: `3 years older`, `5 more pens`."""


def read_quantity(text: str, *, question: str = "") -> Quantity | None:
    """The quantity that makes up the whole `text`, or None; words of `question` are allowed after
    the number.

    >>> read_quantity("$1,080 per month").value
    Fraction(1080, 1)
    >>> read_quantity("3 maybe four") is None
    True
    """
    if SIMPLE.fullmatch(text):
        return Quantity(Fraction(int(text)))
    text = MIDDAY.sub(lambda hour: f"{hour[1].lower()}m", PER.sub(_denominator, plain(text)))
    text = SQUARED.sub(lambda unit: f"{unit[1]}^{2 if unit[2] == 'squared' else 3}", text)
    text = A_DOZEN.sub(lambda dozen: "6" if dozen[1] else "12", text)
    signed = SIGN_WORDS.match(text)
    if signed is not None:
        text = f"-{text[signed.end() :]}"
    if BELOW_ZERO.search(text) is not None:
        text = f"-{BELOW_ZERO.sub('', text)}"
    begin = leading_number(text)
    if begin is None:
        return None
    number, tail = begin.value, begin.rest
    while (scale := WORD.match(tail.lstrip(" -"))) is not None and scale[0].lower() in SCALES:
        number = number * SCALES[scale[0].lower()]
        tail = tail.lstrip(" -")[scale.end() :]
    units = _units(tail, question=question)
    if units is None:
        return None
    counted = _counted(tail)
    if ABOUT_ITSELF & {*counted[:1]} and stem(counted[0]) not in words_of(question):
        return None
    return Quantity(
        number,
        tuple(dict.fromkeys((*begin.currency, *units))),
        begin.places,
        counted,
        _rate(tail, units),
        power=_power(tail),
        compared=is_compared(tail),
    )


def is_unit(text: str, *, question: str = "") -> bool:
    """Whether `text` is known to leave a number before it unchanged."""
    one = read_quantity(f"1 {text.strip()}", question=question) if text.strip() else None
    return one is not None and one.value == 1 and not text.strip()[0].isdigit()


def same_units(first: Quantity, second: Quantity) -> bool:
    """Whether the units agree: they are equal, or one omits what the other states."""
    if first.power and second.power and first.power != second.power:
        return False
    if first.rate and second.rate and first.power != second.power:
        return False
    return all(
        a == b or {a, b} - SCALES_OF_DEGREES == {"degree"}
        for a, b in zip(_with_scale(first.units), _with_scale(second.units), strict=False)
    )


def _with_scale(units: tuple[str, ...]) -> tuple[str, ...]:
    """`degree, celsius` as `celsius`: the scale's name implies degrees."""
    return units[1:] if units[:1] == ("degree",) and {*units[1:2]} & SCALES_OF_DEGREES else units


def words_of(question: str) -> frozenset[str]:
    """The words of `question` by their stems, without words that change a number."""
    return _words_of(question[:20_000])


@functools.lru_cache(maxsize=256)
def _words_of(question: str) -> frozenset[str]:
    words = {word.lower() for word in WORD.findall(question)}
    return frozenset(stem(word) for word in words if len(word) > 1 and word not in CHANGING)


def stem(word: str) -> str:
    """`word` (lower case) without its ending: plural and singular, past and present agree."""
    return ENDING.sub("", word) if len(word) > 3 else word


def _denominator(power: re.Match[str]) -> str:
    """`h^{-1}` after another unit as `/h`, `s^{-2}` as `/s^2`."""
    return f"/{power[1]}" if power[2] == "1" else f"/{power[1]}^{power[2]}"


def _units(tail: str, *, question: str) -> tuple[str, ...] | None:
    """The known units in the text after a number; None if something is not known to leave the
    number unchanged.
    """
    if not tail:
        return ()
    spaced = tail[0] == " "
    tail = re.sub(r"(?<=[A-Za-z])-(?=[A-Za-z])|^ ?-(?=[A-Za-z])", " ", tail)
    tokens = TOKEN.findall(re.sub(r"(?<=[A-Za-z])\.(?= |$|/)", "", tail))
    units, unlisted = list[str](), 0
    for number, token in enumerate(tokens):
        before, after = tokens[:number], tokens[number + 1 :]
        unit = _unit(token, before=before, after=after, spaced=spaced)
        if unit is not None:
            units.append(unit)
        elif not _leaves_alone(token, before=before, after=after, units=units, question=question):
            return None
        unlisted += unit is None and token.lower() not in COUNTED and is_counted(token.lower())
    if unlisted > 2 or (tokens[-1].lower() in LINKS - CLOSINGS and "inch" not in units):
        return None
    return tuple(units)


def _counted(tail: str) -> tuple[str, ...]:
    """The first group of nouns in the text after a number."""
    nouns = list[str]()
    for word in map(str.lower, WORD.findall(tail)):
        if is_counted(word) or word in UNITS.keys() - SHORT:
            nouns.append(word)
        elif nouns or word in LINKS:
            break
    return tuple(nouns)


def is_compared(tail: str) -> bool:
    """Whether the words after a number make it a difference; `larger` directly before the counted
    noun only describes it.
    """
    said = [word.lower() for word in WORD.findall(tail)]
    return any(
        word in COMPARATIVES and (word in DIFFERENCES or not (after and is_counted(after)))
        for word, after in itertools.zip_longest(said, said[1:])
    )


def _power(tail: str) -> int:
    written = POWER.search(tail)
    if written is None:
        return 0
    if written[1]:
        return int(written[1])
    return 2 if written[0].lower() == "square" else 3


def _rate(tail: str, units: tuple[str, ...]) -> tuple[str, ...]:
    if {"mph", "kph", "knot"} & set(units):
        return ("hour",)
    rate = RATE.search(tail)
    return () if rate is None else (str(rate["per"] or rate["adverb"]).lower(),)


def _unit(token: str, *, before: list[str], after: list[str], spaced: bool) -> str | None:
    if token in SHORT:
        follows = before[-1:] in (["/"], ["per"])
        alone = not before and spaced and after[:1] in ([], ["/"], ["per"], ["^2"], ["^3"], ["."])
        alone = alone or (token == "in" and not before and {*after} <= DIMENSIONS)
        return UNITS[token] if follows or alone else None
    if token in CASED:
        return UNITS[token]
    return UNITS.get(token.lower()) if token.lower() not in SHORT else None


def _leaves_alone(
    token: str, *, before: list[str], after: list[str], units: list[str], question: str
) -> bool:
    word = token.lower().rstrip("'\u2019")
    if token in DATES:
        return bool(before)
    if token[0] == "^":
        return bool(units) and units[-1] in LENGTHS
    if token == "/":
        return bool(after)
    if word == "and" and not before:
        return False  # means 18 and some change
    if word == "over" and before[-1:] == ["left"]:
        return True
    if word == "times":
        return not before and not after
    if word in QUANTIFIERS:
        return _counts(after[:2]) if after else _asks(question, word)
    if word in AMBIGUOUS and _asks(question, word):
        return True
    if word in CHANGING or not token.isascii():
        return False
    if word in LINKS or word in CLOSINGS or word in SUBSTANCES or is_counted(word):
        return True
    if len(word) < 2 or not word.isalpha():
        return False
    return stem(word) in words_of(question) or (len(word) > 2 and not units and _counts(after[:1]))


def _asks(question: str, word: str) -> bool:
    return re.search(rf"\b{word}\b", question, re.IGNORECASE) is not None


def _counts(words: list[str]) -> bool:
    """Whether one of the words is the counted thing, so that those before it describe it: `18 shiny
    apples`.
    """
    return any(
        is_counted(word.lower()) or word.lower() in UNITS for word in words
    ) and not CHANGING & {word.lower() for word in words}
