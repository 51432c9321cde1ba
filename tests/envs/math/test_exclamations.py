"""Exclamation marks after an answer: the end of an exclamation, or a factorial."""

import pytest

from tests.envs.math.grades import is_right


@pytest.mark.parametrize(
    "text",
    [
        "The answer is **18**!",
        "The answer is **18**! Well done.",
        "The answer is `18`!",
        'The answer is "18"!',
        "**Answer: 18**!",
        "#### **18**!",
        "#### `18`!",
        "#### $18$!",
        "#### **18** apples!",
        "#### 18 apples!",
        "**18 apples**!",
        "<answer>**18**!</answer>",
        "*18*!",
        "`18`!",
        "**$18$**!",
        "First we add 9 and 9.\n\n$18$!",
        "\\boxed{18}!",
        "\\boxed{18}!!",
        "$\\boxed{18}$!",
        "\\(\\boxed{18}\\)!",
        "**\\boxed{18}**! \U0001f389",
        "**\\boxed{18}**! ...",
        "\\boxed{18}! Great job!",
        "**Final answer: \\boxed{18}!**",
    ],
)
def test_exclamation_after_closed_markup_leaves_the_answer_right_and_no_other(grader, text):
    assert is_right(grader, text, "18")
    assert not is_right(grader, text, "19")
    assert not is_right(grader, text, "6402373705728000")  # 18!


@pytest.mark.parametrize(
    "text",
    ["#### 5!", "#### **5!**", "\\boxed{5!}", "$5!$", "5!", "`5!`", "<answer>5!</answer>"],
)
def test_exclamation_directly_after_a_number_is_a_factorial(grader, text):
    assert is_right(grader, text, "120")
    assert not is_right(grader, text, "5")


@pytest.mark.parametrize(
    "text",
    [
        "$\\boxed{5}!$",
        "\\boxed{5}! = 120",
        "\\boxed{5}!/2",
        "\\boxed{5}! ways",
        "We have 3! = 6 orders of three, so there are \\boxed{5}!",
        "#### **5**! = 120",
        "#### **5**!/2",
        "We have 3! = 6 orders of three, so the answer is **5**!",
    ],
)
def test_factorial_of_a_marked_number_is_not_that_number(grader, text):
    assert not is_right(grader, text, "5")


def test_exclamation_after_a_computed_factorial_is_none(grader):
    assert is_right(grader, "There are 5! = 120 orders. The answer is **120**!", "120")
    assert is_right(grader, "There are 5! = 120 orders, so it is \\boxed{120}!", "120")
