"""The quantity that a question asks for, and answers that contradict it."""

import pytest

from envs.math.parsing.quantities import read_quantity
from envs.math.parsing.questions import asked_base, contradicts
from tests.envs.math.grades import is_right

ORCHARD = "Lea picks 7 plums and 4 oranges a day. How many oranges does she pick in 3 days?"


@pytest.mark.parametrize(
    ("answer", "question"),
    [
        ("7 cents", "How many euros does the stamp cost?"),
        ("40 seconds", "How many minutes does the song last?"),
        ("9 km", "What is the distance between the towns in miles?"),
        ("12 plums", ORCHARD),
        ("$12", ORCHARD),
        ("3 days", ORCHARD),
        ("20 hours", "A car needs 4 hours for 200 miles. How many miles does it go in one hour?"),
        ("12 apples", "How many oranges does she pick?"),
        ("12 people", "How many oranges does she pick?"),
        ("12 hours", "How many oranges does she pick?"),
        ("12 oranges per hour", "How many oranges does she pick?"),
        ("12 oranges each", "How many oranges do they pick in total?"),
        ("$12 a piece", "How much do the toys cost altogether?"),
        ("12 mph", "How many miles does she run?"),
        ("12 o'clock", "How many oranges does she pick?"),
    ],
)
def test_another_unit_or_thing_than_asked_contradicts_the_question(answer, question):
    quantity = read_quantity(answer, question=question)
    assert contradicts(quantity, question)


@pytest.mark.parametrize(
    ("answer", "question"),
    [
        ("12", ORCHARD),
        ("12 oranges", ORCHARD),
        ("12 juicy oranges", ORCHARD),
        ("12 oranges a day", ORCHARD),
        ("40 minutes", "How many minutes does the song last?"),
        ("40 minutes", "The song lasts an hour less than the film. How long is the song?"),
        ("60 mph", "How many miles per hour does the train go?"),
        ("9 miles", "A pool is 5 yards long. How far does Ann swim, in miles?"),
        ("8 cows", "A farm has 3 brown cows and 5 white cows. How many animals has it?"),
        ("30 pupils", "Two classes of 15 pupils go by bus. How many people are on it?"),
        ("3 trips", "How many times does the van make trips?"),
        ("$7", "He measures in inches. How much does he pay?"),
        ("£40", "How many pounds did Nora save?"),
        ("12 fruits", "How many oranges does she pick?"),
        ("12 pupils", "How many children are in the room?"),
        ("12 oranges per hour", "How many oranges does she pick per hour?"),
        ("12 pages per week", "How many pages does she read in a week?"),
        ("$12 each", "What does one ticket cost?"),
        ("60 miles per hour", "How fast does the car go?"),
        ("4 o'clock", "When does she arrive?"),
    ],
)
def test_what_is_asked_for_or_left_open_does_not_contradict(answer, question):
    assert not contradicts(read_quantity(answer, question=question), question)


def test_base_that_is_named_last_is_asked_for():
    assert asked_base("Write the base 6 number 345 in base two.") == 2
    assert asked_base("Write 9 in binary.") == 2
    assert asked_base("How many apples?") is None


@pytest.mark.parametrize(
    ("text", "reference", "question", "right"),
    [
        ("The answer is 12 plums.", "12", ORCHARD, False),
        ("The answer is 12 oranges.", "12", ORCHARD, True),
        ("\\boxed{40\\text{ seconds}}", "40", "How many minutes does the song last?", False),
        ("\\boxed{40\\text{ seconds}}", "40 seconds", "How many minutes does the song last?", True),
        ("The answer is 3 (to the nearest whole number).", "3", "", False),
        ("\\boxed{121_3}", "121", "Write 16 in base 3.", True),
        ("\\boxed{121_4}", "121", "Write 16 in base 3.", False),
    ],
)
def test_grade_goes_by_what_the_question_asks_for(grader, text, reference, question, right):
    assert is_right(grader, text, reference, question) is right
