r"""One amount in two units: `$1.75, i.e. 175 cents`, and `2 hours and 30 minutes` for 2.5 hours.

A restatement may have another unit than the answer if it is the same amount. Alone, an answer in a
unit that the question does not ask for stays wrong (`questions`), but an amount in several units is
read in each of them.

Sources: NIST Handbook 44, appendix C (2023).
"""

import itertools
import re
from fractions import Fraction

from envs.math.parsing.quantities import Quantity, read_quantity

SIZES: tuple[dict[str, int], ...] = (
    {
        "millisecond": 1,
        "second": 1000,
        "minute": 60_000,
        "hour": 3_600_000,
        "day": 86_400_000,
        "week": 604_800_000,
    },
    {"month": 1, "year": 12, "decade": 120, "century": 1200},
    {"cent": 1, "dollar": 100},
    {"cent": 1, "euro": 100},
    {"millimetre": 1, "centimetre": 10, "metre": 1000, "kilometre": 1_000_000},
    {"inch": 1, "foot": 12, "yard": 36, "mile": 63_360},
    {"milligram": 1, "gram": 1000, "kilogram": 1_000_000},
    {"ounce": 1, "pound": 16},
    {"millilitre": 1, "litre": 1000},
    {"joule": 1, "kilojoule": 1000},
    {"watt": 1, "kilowatt": 1000},
    {"teaspoon": 1, "tablespoon": 3},
    {"cup": 1, "pint": 2, "quart": 4, "gallon": 16},
)
"""Units by the number of their smallest one, each table a kind of amount."""
JOINT = re.compile(r",? and |, |(?<=[A-Za-z.]) (?=[$0-9])")
MAX_PIECES = 4


def read_compound(text: str, *, question: str = "") -> Quantity | None:
    """`2 hours and 30 minutes` in its first unit, or None; each further unit is smaller and does
    not fill the one before.
    """
    pieces = JOINT.split(text, maxsplit=MAX_PIECES)
    if len(pieces) < 2 or len(pieces) > MAX_PIECES:
        return None
    quantities = [
        quantity
        for piece in pieces
        if (quantity := read_quantity(piece.strip(), question=question)) is not None
    ]
    if len(quantities) < len(pieces) or any(
        len(quantity.units) != 1 or quantity.value < 0 for quantity in quantities
    ):
        return None
    first, total = quantities[0], quantities[0].value
    for larger, smaller in itertools.pairwise(quantities):
        share = converted(smaller, larger.units[0])
        if share is None or share >= 1 or larger.value.denominator > 1:
            return None
        total += converted(smaller, first.units[0]) or 0
    return first._replace(value=total, compound=True)


def converted(quantity: Quantity, unit: str) -> Fraction | None:
    """The value of `quantity` in `unit`; None if they measure different things."""
    if len(quantity.units) != 1:
        return None
    for sizes in SIZES:
        if unit in sizes and quantity.units[0] in sizes:
            return quantity.value * sizes[quantity.units[0]] / sizes[unit]
    return None


def units_of_the_kind(unit: str) -> frozenset[str]:
    """The units into which `unit` can be converted."""
    return frozenset[str]().union(*(sizes for sizes in SIZES if unit in sizes))


def same_amount(first: Quantity, second: Quantity) -> bool:
    """Whether two quantities in different units are one amount."""
    return len(second.units) == 1 and converted(first, second.units[0]) == second.value
