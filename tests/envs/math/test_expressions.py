"""Arithmetic with whole numbers, against Python's own."""

from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs.math.comparing.expressions import NoExpression, compute

OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


@st.composite
def expressions(draw, depth=3):
    """Text and value of a random expression; division only by a positive number."""
    if depth == 0 or draw(st.booleans()):
        number = draw(st.integers(0, 99))
        return str(number), Fraction(number)
    left, right = draw(expressions(depth=depth - 1)), draw(expressions(depth=depth - 1))
    sign = draw(st.sampled_from("+-*/"))
    if sign == "/":
        divisor = draw(st.integers(1, 9))
        return f"({left[0]})/{divisor}", left[1] / divisor
    return f"({left[0]}) {sign} ({right[0]})", OPERATIONS[sign](left[1], right[1])


@given(expressions())
@settings(
    derandomize=True, max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
def test_value_of_nested_expressions(expression):
    text, value = expression
    assert compute(text).value == value


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [
        ("1+2*3", 7, (1, 2, 3)),
        ("(1+2)*3", 9, (1, 2, 3)),
        ("8-4-2", 2, (8, 4, 2)),
        ("8/4/2", 1, (8, 4, 2)),
        ("7/2", Fraction(7, 2), (7, 2)),
        ("3 \\times (5 \u2212 2)", 9, (3, 5, 2)),
        ("6 \u00f7 2 \u00d7 3", 9, (6, 2, 3)),
    ],
)
def test_rules_of_arithmetic(text, value, numbers):
    assert compute(text) == (value, numbers)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "1+",
            "(1",
            "1)",
            "1 2",
            "2**3",
            "9^9^9^9",
            "-1",
            "1/0",
            "1/(2-2)",
            "a",
            "1.5",
            "__import__('os')",
            "1;2",
        ),
        *("(" * 10**6, "1+" * 10**6, "1" * 10**6, "\u0664+1", "\ud800"),
    ],
)
def test_everything_else_is_not_an_expression(text):
    with pytest.raises(NoExpression):
        compute(text)
