r"""Reads the number at the beginning of a text: in digits (`1,080`, `-$3.50`, `1 1/2`, `1,5`,
`2 x 10^3`), or in words (`three and a half`, `one hundred and five`).

Left out: units and other words after it (`quantities`).
"""

import re
from fractions import Fraction
from typing import NamedTuple

from envs.math.parsing.vocabulary import CARDINALS, SCALES, UNITS

NUMBER = re.compile(
    r"""
    (?P<sign>[-+]?)\ ?(?:(?P<currency>US\$|R\$|USD|EUR|GBP|Rs\.?|[$€£¥₹])\ ?(?P<inner_sign>-?))?
    (?:
      (?P<mixed>[0-9]{1,9})(?:\ and)?\ (?P<top>[0-9]{1,9})/(?P<bottom>[0-9]{1,9})
    | (?P<european>[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]{1,2} | [0-9]+,(?:[0-9]{1,2}|[0-9]{4,})
        | 0,[0-9]+)
      (?![0-9,])
    | (?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9]) | [0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}(?![0-9,])
        | [0-9]+)?
      (?P<decimals>\.[0-9]+)?
      (?:\ ?/\ ?(?P<denominator>[0-9]+) | [eE](?P<e>[-+]?[0-9]{1,2})(?![0-9A-Za-z])
        | \ ?[*x]\ ?10\^\{?(?P<power>[-+]?[0-9]{1,2})\}?)?
    )
    """,
    re.VERBOSE,
)
NUMBER_WORDS = re.compile(
    rf"(?:(?:{'|'.join((*CARDINALS, *SCALES))}|and)(?:[ -]+|$|(?=[^A-Za-z])))+", re.IGNORECASE
)
PARTS = {
    "half": 2,
    "halve": 2,
    "third": 3,
    "quarter": 4,
    "fourth": 4,
    "fifth": 5,
    "sixth": 6,
    "seventh": 7,
    "eighth": 8,
    "ninth": 9,
    "tenth": 10,
}
PARTED = re.compile(
    rf"(?:(?P<whole>[0-9]{{1,9}}|(?:(?:{'|'.join((*CARDINALS, *SCALES))})[ -])+?)[ -]?and[ -])?"
    rf"(?P<top>an?|{'|'.join(list(CARDINALS)[1:10])})"
    rf"[ -](?P<bottom>{'|'.join(PARTS)})s?(?![A-Za-z-])(?! (?:past|to)\b)",
    re.IGNORECASE,
)
"""`two thirds`, `three and a half`."""


class LeadingNumber(NamedTuple):
    """A number at the beginning of a text."""

    value: Fraction
    rest: str
    """The text after it."""
    currency: tuple[str, ...] = ()
    """The name of the currency before it; () if there is none, or only a dollar sign."""
    places: int = 0
    """Decimal places that were written."""


def leading_number(text: str) -> LeadingNumber | None:
    """The number that `text` begins with, or None.

    >>> leading_number("three and a half pies")
    LeadingNumber(value=Fraction(7, 2), rest=' pies', currency=(), places=0)
    """
    parted = PARTED.match(text) if "and" in text or text[:1].isalpha() else None
    if parted is not None:
        share = _parted(parted)
        return None if share is None else LeadingNumber(share, rest=text[parted.end() :])
    match = NUMBER.match(text)
    if match is None or not (
        match["mixed"] or match["european"] or match["whole"] or match["decimals"]
    ):
        return _number_in_words(text)
    number = _value(match)
    if number is None:
        return None
    if "-" in (match["sign"], match["inner_sign"]):
        number = -number
    currency = (
        (UNITS[match["currency"].rstrip(".").lower()],)
        if match["currency"] and match["currency"] != "US$"
        else ()
    )
    return LeadingNumber(
        number,
        rest=text[match.end() :],
        currency=currency,
        places=len(match["decimals"] or " ") - 1,
    )


def _parted(match: re.Match[str]) -> Fraction | None:
    """The value of `three and a half`; None if the share is not below 1."""
    top = CARDINALS.get(match["top"].lower(), 1)
    bottom = PARTS[match["bottom"].lower()]
    if match["whole"] is None:
        return Fraction(top, bottom)
    named = match["whole"].strip(" -").lower().replace("-", " ")
    whole = int(named) if named.isdecimal() else _cardinal(named.split())
    return None if whole is None or top >= bottom else whole + Fraction(top, bottom)


def _value(match: re.Match[str]) -> Fraction | None:
    if match["mixed"]:
        top, bottom = int(match["top"]), int(match["bottom"])
        return Fraction(match["mixed"]) + Fraction(top, bottom) if top < bottom else None
    if match["european"]:
        return Fraction(match["european"].replace(".", "").replace(",", "."))
    number = Fraction((match["whole"] or "0").replace(",", "") + (match["decimals"] or ""))
    if match["denominator"] is not None:
        return number / int(match["denominator"]) if int(match["denominator"]) else None
    return number * Fraction(10) ** int(match["e"] or match["power"] or 0)


def _number_in_words(text: str) -> LeadingNumber | None:
    body = text.removeprefix("-")
    match = NUMBER_WORDS.match(body)
    if match is None:
        return None
    number = _cardinal(match[0].lower().replace("-", " ").split())
    if number is None:
        return None
    return LeadingNumber(Fraction(-number if body != text else number), rest=body[match.end() :])


def _cardinal(words: list[str]) -> int | None:
    """The value of a cardinal in words, or None: `one hundred and five` is one, `three four` is
    none.
    """
    total = 0
    current = 0
    last = 1000
    for word in words:
        if word == "and":
            if current < 100 and not total:
                return None
        elif word in SCALES and current:
            current *= SCALES[word]
            if SCALES[word] >= 1000:
                total, current = total + current, 0
            last = 1000
        elif (
            word in CARDINALS
            and (CARDINALS[word] < 10 <= last if last < 1000 else True)
            and last != 10
        ):
            current, last = current + CARDINALS[word], CARDINALS[word]
        else:
            return None
    return None if words[-1] == "and" else total + current
