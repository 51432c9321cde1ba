"""Sentences of any words that state one number, and hedges in them."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs.math.finding.conclusions import concluded_answer
from tests.envs.math.grades import is_right

STATEMENTS = (
    "Therefore Maria can fill {} jars in a single afternoon.",
    "That gives us a grand total of {} laps.",
    "Thus, it would take Kevin {} weeks to save enough.",
    "Peter will therefore be {} years of age.",
    "The bill came out to ${}.00 in the end.",
    "Answer: There will be {} children on the bus.",
    "Answer: {} bushels of wheat were harvested.",
    "#### The machine produces {} parts per hour",
    "The cyclists meet after \\boxed{{{}}} minutes of riding.",
    "Hence the carpenter cuts a grand total of \\boxed{{{}}} planks.",
)
HEDGES = (
    "{} or {}",
    "{} and {}",
    "{}, maybe {},",
    "{} (or {})",
    "{} unless it rains or else {}",
    "{}, on Sundays {},",
    "{}, in case of rain {},",
    "{} yet {}",
    "{} versus {}",
    "{} bar {}",
    "{}, with luck {},",
    "{} if wrong then {}",
    "{} to {}",
    "{}, as well as {},",
    "{}, when it rains {},",
)
NUMBERS_IN_WORDS = ("thirteen", "forty-three", "two hundred")
MANY = settings(
    derandomize=True, max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@given(st.integers(1000, 9999), st.sampled_from(STATEMENTS))
@MANY
def test_number_of_a_plain_sentence_is_its_answer_and_no_other_is(grader, number, statement):
    assert is_right(grader, statement.format(number), str(number))
    assert not is_right(grader, statement.format(number), str(number + 1))


@given(
    st.integers(1000, 9999),
    st.sampled_from(STATEMENTS),
    st.sampled_from(HEDGES),
    st.one_of(st.integers(10, 999), st.sampled_from(NUMBERS_IN_WORDS)),
)
@MANY
def test_second_number_in_a_plain_sentence_never_leaves_the_first_right(
    grader, number, statement, hedge, other
):
    assert not is_right(grader, statement.format(hedge.format(number, other)), str(number))


@pytest.mark.parametrize(
    "text",
    [
        "So 42 is only half of what she needs.",
        "Therefore 42 is too small, and we must try a larger number.",
        "The library still has 42 books, but three more arrive.",
        "That gives us more than 42.",
        "So she sold 42. In the evening another 3 were sold.",
        "So she sold 42, leaving 18.",
        "She sold 42 in the morning and 3 in the evening.",
        "Therefore the total is 42. With tax it will be 45.",
        "The total is 42; adding tax gives 45.",
        "Two candidates remain: 42 and 44.",
        "We need 42 apples, so we have to buy 12.",
        "Then we divide 42 by 3.",
        "Hence 42 divides the product.",
        "So far, she has read 42 of the pages.",
        "Had he bought two, he would have saved $42.",
        "The population grew from 42 to 100.",
        "I am sure that the solution stands on page 42.",
        "We conclude that x is a multiple of 42.",
        "The number of ways is 42!.",
    ],
)
def test_number_that_goes_on_or_is_another_thing_is_not_an_answer(grader, text):
    assert not is_right(grader, text, "42")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (
            "Kim drives back. So she covers 42 miles. That is 3 miles fewer than planned.",
            "42 miles",
        ),
        ("He was left with 33 balls when the day ended.", "33 balls when the day"),
        (
            "It was 9 by 4, so the plot covers 36 square metres, as the garden is 9 metres long.",
            "36",
        ),
        ("After he lost 2 more, he was left with 33 balls.", "33 balls"),
    ],
)
def test_closing_number_is_that_of_the_main_clause(text, number):
    found = concluded_answer(text)
    assert found is not None and found.text.startswith(number.split()[0])


def test_phrase_after_a_mark_is_read_strictly(grader):
    assert not is_right(grader, "Answer: 72 clips in a museum", "72")


def test_two_numbers_in_a_computation_behind_a_mark_must_both_be_right(grader):
    assert not is_right(grader, "Answer: 42, which is 6 times 8", "42")


ANSWERS = ("Hence the plot is 9 by 4.\n\nTherefore the area is 36.", "36", "**36**", "x = 36")


@pytest.mark.parametrize("text", ANSWERS)
@pytest.mark.parametrize(
    "remark",
    [
        "This agrees with our first estimate.",
        "You can check this by counting them one by one.",
        "Let me explain: we grouped the squares and counted them.",
        "This is reasonable, since it is below 5000.",
        "Good luck with your homework!",
    ],
)
def test_remark_leaves_the_answer_before_it(grader, text, remark):
    assert is_right(grader, f"{text}\n\n{remark}", "36")


@pytest.mark.parametrize("text", ANSWERS)
@pytest.mark.parametrize(
    "sentence",
    [
        "Hmm, that seems too large.",
        "But 35 is possible as well.",
        "Next we need the perimeter.",
        "It remains to add the path.",
        "Is that right?",
        "So the plot has a perimeter of 26.",
        "I am not sure about this.",
    ],
)
def test_doubt_or_a_further_step_takes_the_answer_back(grader, text, sentence):
    assert not is_right(grader, f"{text}\n\n{sentence}", "36")
