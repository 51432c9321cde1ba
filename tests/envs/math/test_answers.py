r"""The last marked answer of a text, and numbers that are compared without an algebra system."""

import time
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs.math.answers import equal_numbers, marked_answer, plain_number


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("12+34 is easy.\n#### 46", "46"),
        ("#### 45\nNo, wait.\n#### 46\n", "46"),
        ("#### 46.", "46"),
        ("####46", "46"),
        ("so \\boxed{46}, as was asked", "46"),
        ("\\boxed{1} or rather \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{46", "46"),
        ("\\boxed{\\frac{1}{2}\nand more", "\\frac{1}{2}"),
        ("Answer: 46", "46"),
        ("the ANSWER : 46 apples", "46 apples"),
        ("**Answer:** 46", "46"),
        ("**Answer: 46**", "46"),
        ("Answer: \\boxed{46}", "46"),
        ("#### $\\boxed{46}$", "46"),
        ("\\boxed{Answer: 46}", "Answer: 46"),
        ("\\boxed{46} which I repeat:\n#### 47", "47"),
        ("#### ", ""),
        ("\\boxed{}", ""),
    ],
)
def test_last_mark_counts(text, answer):
    assert marked_answer(text).text == answer


@pytest.mark.parametrize("text", ["", "46", "the result is 46", "### 46", "answering 46", "\\boxed 46"])
def test_text_without_a_mark_has_no_answer(text):
    assert marked_answer(text) is None


@given(st.text(), st.integers(), st.sampled_from(["#### {}", "\\boxed{{{}}}", "Answer: {}"]))
@settings(derandomize=True, max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_number_that_is_marked_last_is_found_after_any_text(text, number, mark):
    assert marked_answer(text + "\n" + mark.format(number)).text == str(number)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("46", 46),
        (" -46 ", -46),
        ("+46", 46),
        ("046", 46),
        ("1,080", 1080),
        ("1,234,567.5", Fraction(2469135, 2)),
        (".5", Fraction(1, 2)),
        ("-0.25", Fraction(-1, 4)),
        ("3/4", Fraction(3, 4)),
        ("$12", 12),
        ("\\$12.50", Fraction(25, 2)),
        ("$46$", 46),
        ("46 clips", 46),
        ("12 dollars per hour", 12),
    ],
)
def test_plain_number_is_read_exactly(text, number):
    assert plain_number(text) == number


@pytest.mark.parametrize(
    "text",
    [
        *("", "$", "-", ".", "x", "4 x", "2 pi", "2 million", "46 or 47", "46, 47", "1,08", "12,34", "1/0", "4%", "0x1f", "1e3", "1_000"),
        *("nan", "inf", "\\frac{1}{2}", "9^9", "1" * 1001, "\u0664\u0662", "\uff14\uff12"),
    ],
)
def test_what_is_no_plain_number_is_left_to_the_algebra_system(text):
    assert plain_number(text) is None


@pytest.mark.parametrize(
    ("truth", "answer", "verdict"),
    [
        ("46", "46", True),
        ("46", "46.0", True),
        ("1/2", "0.5", True),
        ("46", "47", False),
        ("0.1", "0.2", False),
        ("1/3", "0.3", False),
        ("1/3", "0.333333", None),
        ("1000000", "1000000.5", None),
    ],
)
def test_numbers_agree_exactly_or_differ_clearly_or_are_left_open(truth, answer, verdict):
    assert equal_numbers(plain_number(truth), plain_number(answer)) is verdict


@pytest.mark.parametrize(
    "text",
    [
        "#### " + "9" * 4_000_000,
        "\\boxed{" * 500_000,
        "\\boxed{" + "{" * 4_000_000,
        "\\boxed{" + "}" * 4_000_000,
        "answer" + " " * 4_000_000,
        "answer " * 500_000,
        "####" * 1_000_000,
        " " * 4_000_000 + "x",
        "aa " * 1_000_000 + "1",
        "\u202e\ud800\x00\u200b" * 1_000_000,
    ],
    ids=["digits", "boxes", "open braces", "closed braces", "spaces", "answers", "hashes", "blank", "words", "unicode"],
)
def test_megabytes_of_anything_take_linear_time(text):
    began = time.process_time()
    marked = marked_answer(text)
    plain_number(marked.text if marked else text)
    assert time.process_time() - began < 5
