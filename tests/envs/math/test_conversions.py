"""One amount in two units, and roundings of an exact value."""

from fractions import Fraction

import pytest

from envs.math.parsing.conversions import converted, read_compound, same_amount
from envs.math.parsing.quantities import read_quantity
from tests.envs.math.grades import is_right


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
def test_other_sums_are_not_an_amount(text):
    assert read_compound(text) is None


def test_same_amount_in_another_unit():
    assert same_amount(read_quantity("$1.75"), read_quantity("175 cents"))
    assert not same_amount(read_quantity("$1.75"), read_quantity("1.75 cents"))
    assert converted(read_quantity("90 minutes"), "hour") == Fraction(3, 2)
    assert converted(read_quantity("90 minutes"), "metre") is None


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("10\\sqrt{2} \\approx 14.14", True),
        ("10\\sqrt{2}, or about 14.142", True),
        ("10\\sqrt{2} \\approx 14.15", False),
        ("10\\sqrt{2} \\approx 14", False),
    ],
)
def test_decimal_beside_an_exact_value_is_its_rounding(grader, answer, right):
    assert is_right(grader, f"\\boxed{{{answer}}}", "10\\sqrt{2}") is right
