"""Closing sentences whose answer is a name, a word, `Yes` or `No`."""

import pytest

from envs.math.finding.conclusions import concluded_answer
from envs.math.finding.named_answers import is_word

FASTEST = "Evelyn, Carla and Debra ran a race. Who is the fastest?"
PRIME = "Is 91 a prime number?"


def name(text, question=""):
    answer = concluded_answer(text, question=question, named=True)
    return None if answer is None or answer.spoilt else answer.text


@pytest.mark.parametrize(
    ("text", "question", "stated"),
    [
        ("So the fastest runner is Evelyn.", FASTEST, "Evelyn"),
        ("Therefore, 100 days later it is a Sunday.", "", "Sunday"),
        ("The greatest profit was made in **June**.", "", "June"),
        ("Therefore, the 50th bead is blue.", "", "blue"),
        ("Hence, the graph is an ellipse.", "", "ellipse"),
        ("Evelyn is the fastest.", FASTEST, "Evelyn"),
        ("No. The number 91 is not prime, because 91 = 7 * 13.", PRIME, "No"),
        ("So yes, she has enough money.", "Does she have enough money?", "yes"),
        ("**Yes** - the two fractions are equal.", "Are 2/4 and 3/6 equal?", "Yes"),
    ],
)
def test_sentence_that_ends_in_a_name_states_it(text, question, stated):
    assert name(text, question) == stated


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("So the fastest runner is not Evelyn.", FASTEST),
        ("So the fastest runner is Evelyn or Carla.", FASTEST),
        ("So the fastest runner might be Evelyn.", FASTEST),
        ("I think the fastest runner is Evelyn.", FASTEST),
        ("Evelyn is the slowest.", FASTEST),
        ("Yes and no: it depends on the definition.", PRIME),
        ("Yes? I am not sure.", PRIME),
        ("Yes, wait, no. It is divisible by 7.", PRIME),
    ],
)
def test_name_that_is_denied_or_doubted_is_not_stated(text, question):
    assert name(text, question) not in ("Evelyn", "Yes")


def test_number_stays_the_answer_where_no_word_is_asked_for():
    text = "Therefore, 18 of them are red."
    assert concluded_answer(text).text == "18"
    assert concluded_answer(text, named=True).text == "red"


@pytest.mark.parametrize("truth", ["Evelyn", "\\text{Sunday}", "no", "obtuse triangle"])
def test_word_is_a_word(truth):
    assert is_word(truth)


@pytest.mark.parametrize(
    "truth", ["18", "B", "x", "\\frac{1}{2}", "18 apples", "\\infty", "3:45 PM"]
)
def test_number_letter_and_mathematics_are_not_words(truth):
    assert not is_word(truth)
