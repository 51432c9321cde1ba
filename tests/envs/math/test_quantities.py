r"""Numbers with units: after the number only words that do not change it."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.math.comparing.agreement import truth_quantity
from envs.math.parsing.quantities import read_quantity, same_units
from envs.math.parsing.vocabulary import CHANGING, UNITS, is_plural_noun


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("46", 46),
        (" -46 ", -46),
        ("+46", 46),
        ("046", 46),
        ("1,080", 1080),
        ("1\\,080", 1080),
        ("1{,}080", 1080),
        ("1 080", 1080),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("3,5", Fraction(7, 2)),
        ("1.080,50", Fraction(2161, 2)),
        (".5", Fraction(1, 2)),
        ("-0.25", Fraction(-1, 4)),
        ("\u201318", -18),
        ("3/4", Fraction(3, 4)),
        ("\\frac{3}{4}", Fraction(3, 4)),
        ("2\\frac12", Fraction(5, 2)),
        ("2 1/2", Fraction(5, 2)),
        ("½", Fraction(1, 2)),
        ("⁵\u2044₁₂", Fraction(5, 12)),
        ("3⅖", Fraction(17, 5)),
        ("two thirds", Fraction(2, 3)),
        ("3 and a half", Fraction(7, 2)),
        ("twenty-two and three quarters hours", Fraction(91, 4)),
        ("1.5e3", 1500),
        ("1.5 \\times 10^{3}", 1500),
        ("0.1\\overline{6}", Fraction(1, 6)),
        ("$12", 12),
        ("€18", 18),
        ("-$18", -18),
        ("\\$12.50", Fraction(25, 2)),
        ("$46$", 46),
        ("46 clips", 46),
        ("12 dollars per hour", 12),
        ("80\\,\\mathrm{km}\\,\\mathrm{h}^{-1}", 80),
        ("9 a.m.", 9),
        ("50%", 50),
        ("50 percent", 50),
        ("3 million", 3_000_000),
        ("3 dozen eggs", 36),
        ("forty-six", 46),
        ("two thousand and five", 2005),
        ("5\\text{ cm}^2", 5),
        ("90^\\circ", 90),
        ("18 square feet", 18),
        ("5 more dollars", 5),
        ("5 shiny marbles", 5),
    ],
)
def test_quantity_is_read_exactly(text, number):
    assert read_quantity(text).value == number


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "$",
            "-",
            ".",
            "x",
            "4 x",
            "2 pi",
            "46 or 47",
            "46, 47",
            "1/0",
            "0x1f",
            "1_000",
            "3 maybe four",
            "3 is wrong",
        ),
        *(
            "3 if wrong then four",
            "3 point five",
            "3 squared",
            "3 less than that",
            "3 halves",
            "3 or so",
            "3 and some",
            "3:30",
        ),
        *(
            "nan",
            "inf",
            "9^9",
            "\u0664\u0662",
            "\uff14\uff12",
            "three four",
            "3 iffy",
            "3 times x",
            "3 and",
            "3 fifths",
            "3m",
            "4\u200b6",
        ),
    ],
)
def test_anything_else_is_not_a_quantity(text):
    assert read_quantity(text) is None


def test_words_of_the_question_are_known_unless_they_change_the_number():
    question = "How many maybe three rare gnomes more than Bob does Al keep there?"
    assert read_quantity("3 gnomes Al keep there", question=question).value == 3
    assert read_quantity("3 gnomes Al keep there") is None
    assert read_quantity("3 maybe gnomes", question=question) is None
    assert read_quantity("3 more", question=question).value == 3
    assert read_quantity("3 more than Bob", question=question) is None


@pytest.mark.parametrize(
    ("first", "second", "agree"),
    [
        ("18", "18 dollars", True),
        ("$18", "18 dollars", True),
        ("$18", "€18", False),
        ("5 cm", "5 m", False),
        ("60 miles", "60 miles per hour", True),
        ("50%", "50 percent", True),
        ("50%", "50 dollars", False),
        ("50 W", "50~\\mathrm{W}", True),
        ("50 W", "50 kW", False),
        ("4 ohms", "4\\ \\Omega", True),
        ("4 m/s", "4\\ \\frac{\\text{m}}{\\text{s}}", True),
        ("4 m/s^2", "4 metres per second squared", True),
        ("4 m/s^2", "4 m/s", False),
        ("4 degrees", "4 °C", True),
        ("4 °F", "4 degrees Celsius", False),
    ],
)
def test_units_agree_where_they_do_not_contradict(first, second, agree):
    assert same_units(read_quantity(first), read_quantity(second)) is agree


@pytest.mark.parametrize(
    "truth", ["1,2", "1, 2", "3,5", "x", "\\frac{\\sqrt{3}}{2}", "(1, 2)", "3 or 4"]
)
def test_reference_that_may_be_a_list_or_an_expression_is_not_a_number(truth):
    assert truth_quantity(truth) is None


def test_no_unit_is_a_word_that_changes_a_number():
    assert not CHANGING & {unit.lower() for unit in UNITS}
    assert not any(map(is_plural_noun, CHANGING))


@given(
    st.integers(-(10**9), 10**9),
    st.sampled_from(
        sorted(
            CHANGING - {"times", "hundred", "thousand", "million", "billion", "trillion", "dozen"}
        )
    ),
)
@settings(derandomize=True, max_examples=400, deadline=None)
def test_word_that_changes_a_number_is_never_allowed_after_one(number, word):
    assert read_quantity(f"{number} {word}") is None
    assert read_quantity(f"{number} {word} apples") is None or word in (
        "more",
        "fewer",
        "less",
        "additional",
        "extra",
    )


@given(st.text(max_size=40))
@settings(derandomize=True, max_examples=400, deadline=None)
def test_any_text_is_read_or_refused(text):
    quantity = read_quantity(text)
    assert quantity is None or isinstance(quantity.value, Fraction)
