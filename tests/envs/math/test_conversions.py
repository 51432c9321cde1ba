"""One amount in two units, and the sizes of expressions after a rounding."""

import math
from fractions import Fraction

import pytest

from envs.math.approximation import is_rounding_of, size_of
from envs.math.conversions import converted, read_compound, same_amount
from envs.math.quantities import read_quantity


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("2 hours and 30 minutes", Fraction(5, 2), "hour"),
        ("2 h 30 min", Fraction(5, 2), "hour"),
        ("1 hour, 6 minutes and 36 seconds", Fraction(111, 100), "hour"),
        ("5 feet 3 inches", Fraction(21, 4), "foot"),
        ("1 dollar and 75 cents", Fraction(7, 4), "dollar"),
    ],
)
def test_amount_in_several_units_is_read_in_the_first(text, value, unit):
    quantity = read_compound(text)
    assert (quantity.value, quantity.units, quantity.compound) == (value, (unit,), True)


@pytest.mark.parametrize(
    "text",
    [
        "2 hours",
        "1 hour and 60 minutes",
        "30 minutes and 2 hours",
        "1.5 hours and 3 minutes",
        "2 hours and 3 dollars",
        "3 apples and 4 oranges",
        "2 hours 30",
    ],
)
def test_other_sums_are_no_amount(text):
    assert read_compound(text) is None


def test_same_amount_in_another_unit():
    assert same_amount(read_quantity("$1.75"), read_quantity("175 cents"))
    assert not same_amount(read_quantity("$1.75"), read_quantity("1.75 cents"))
    assert converted(read_quantity("90 minutes"), "hour") == Fraction(3, 2)
    assert converted(read_quantity("90 minutes"), "metre") is None


@pytest.mark.parametrize(
    ("latex", "size"),
    [
        ("\\sqrt{2}", math.sqrt(2)),
        ("10\\sqrt2", 10 * math.sqrt(2)),
        ("\\frac12", 0.5),
        ("-\\frac{2\\pi}{3}", -2 * math.pi / 3),
        ("\\frac{1+\\sqrt{5}}{2}", (1 + math.sqrt(5)) / 2),
        ("e^{2}", math.e**2),
        ("2^{-3}", 0.125),
        ("\\sqrt[3]{7}", 7 ** (1 / 3)),
        ("\\ln 2", math.log(2)),
    ],
)
def test_size_of_an_expression(latex, size):
    assert size_of(latex) == pytest.approx(size, rel=1e-12)


@pytest.mark.parametrize(
    "latex", ["", "x", "2 +", "\\frac{1}{0}", "9^{9^{9^9}}", "(1", "\\sqrt{-1}", "1, 2", "(" * 5000]
)
def test_anything_else_has_no_size(latex):
    assert size_of(latex) is None


def test_rounding_is_within_half_of_the_last_place():
    assert is_rounding_of(math.sqrt(2), rounded=1.414, places=3)
    assert not is_rounding_of(math.sqrt(2), rounded=1.415, places=3)
