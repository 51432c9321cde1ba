"""The equation that ends a text: its value, and what makes it another one."""

import time

import pytest

from envs.math.closing_equations import computed_value
from envs.math.conclusions import concluded_answer

HATS = "Altogether, 19 green hats + 24 yellow hats = 43 hats remained in the truck."


def value(text, question=""):
    answer = concluded_answer(text, question=question)
    return None if answer is None or answer.spoilt else answer.text


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        (HATS, "43 hats"),
        ("In total, Ken cycled 120+270=390 miles this week.", "390 miles"),
        ("She pays $18.10 - $7.10 = $11.", "$11"),
        ("Therefore, she needs 300/30 = 10 days.", "10 days"),
        ("The share is 8 square feet / 50 square feet * 100% = 16%", "16%"),
        ("So the chance is 60% * 40% = 24%.", "24%"),
        ("A ride costs $40 x 6 = $240 for the 6 shirts.", "$240"),
        ("He needs 300 gallons / 20 gallons/shower = 15 showers.", "15 showers"),
        (
            "Then add the baking time to find the total: 240 minutes + 40 minutes = 280 minutes",
            "280",
        ),
        ("She has only 4 left, which means she ate 10-4 = 6 candies.", "6 candies"),
    ],
)
def test_equation_that_holds_states_its_number(text, stated):
    assert value(text).startswith(stated)


@pytest.mark.parametrize(
    "text",
    [
        "Altogether, 19 hats + 24 hats = 43 hats or 44 hats.",
        "It is not true that 19 hats + 24 hats = 43 hats.",
        "One might think that 19 hats + 24 hats = 43 hats.",
        "So far, she has 19 hats + 24 hats = 43 hats.",
        "First find the hats: 19 hats + 24 hats = 43 hats",
        "Then find the hats of the first day: 19 hats + 24 hats = 43 hats",
        "If it rains, 19 hats + 24 hats = 43 hats.",
        "That is twice 19 hats + 24 hats = 43 hats",
        "Altogether, 19 hats + 24 hats = 43 hats less than before.",
        "Altogether, 19 hats + maybe 24 hats = 43 hats.",
        "Each row has 19 hats + 24 hats = 43 hats, 7 of them red or 8",
    ],
)
def test_equation_that_is_doubted_denied_or_a_step_states_nothing(text):
    assert value(text, question="How many hats are there?") is None


@pytest.mark.parametrize(
    "text",
    ["So there are 19 + 24 = 43 hats if that is right.", "So there are 43 hats if that is right."],
)
def test_condition_after_a_value_is_a_doubt_though_the_question_has_one(text):
    assert value(text, question="If she buys 24 hats, how many hats are there?") is None


def test_number_behind_an_equation_is_not_stated():
    assert value("So they told 36 + 18 = 54 jokes on the two Saturdays.") is None
    assert value("So there are 30*2= 60 people there, since there are 2 sexes.") != "2 sexes"


@pytest.mark.parametrize("side", ["19 + 25", "19", "24 + 19 = 43, 43 - 1", "19 + x", "1/0"])
def test_equation_that_does_not_hold_is_not_computed(side):
    assert computed_value(f"The total is {side} = 43 hats", question="") is None


@pytest.mark.parametrize("part", ["19 + ", "(", "a 1 ", "1 x ", "$", "= 1 "])
def test_equation_of_any_length_is_read_quickly(part):
    begin = time.process_time()
    value(f"So {part * 5000} = 43 hats")
    assert time.process_time() - begin < 5.0
