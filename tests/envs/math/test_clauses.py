"""The clause of a closing sentence that states its value, and the sentences that follow it."""

import pytest

from envs.math.finding.closing_sentences import main_clause
from envs.math.finding.conclusions import concluded_answer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Since Ben is 3 years older than Cara, who is 8, Ben is 11 years old.", "11 years old"),
        ("The plant, which was 150 cm high in year 1, is 450 cm high.", "450 cm high"),
        ("As he had 100 dollars and spent 25, he has 75 dollars.", "75 dollars"),
        ("5 boxes hold 6 eggs each, for a total of 30 eggs.", "30 eggs"),
        ("There are 5 boxes with 6 eggs each, 30 eggs in total.", "30 eggs in total"),
        ("He earned 100 dollars and a tip of 10, so he earned 110 dollars.", "110 dollars"),
        ("Tom is 12 years older than Ann.", "12 years"),
        ("So Rita has 6 more pens than Sam.", "6"),
        ("The temperature went up by 25 degrees.", "25 degrees"),
        ("The set is \\{9, 5, 2\\}.", "\\{9, 5, 2\\}"),
        ("The polynomial is x² + 1.", "x² + 1"),
        ("Therefore, Mia has 15 stickers. Her brother has 5 fewer than she has.", "15 stickers"),
        ("Hence x = 6. We divided by 2, which is allowed because 2 is not zero.", "6"),
        (
            "Therefore Dad is **36**. Let's check: in 4 years he is 40. 40 = 4 \u00d7 10. Right!",
            "36",
        ),
        ("The distance is 1600 m.\n\nWould you like to try another one?", "1600 m"),
        ("Thus, x = 8. This is the only solution.", "8"),
        ("She needs half of 7 cups, which is 3 1/2 cups.", "3 1/2 cups"),
        ("So he saved $40.\n\nHad he bought two, he would have saved $80!", "$40"),
        ("The distance is 1600 m.\n\nWould you like to see 3 more examples?", "1600 m"),
    ],
)
def test_value_of_the_main_clause_answers(text, value):
    assert concluded_answer(text).text == value


@pytest.mark.parametrize(
    "text",
    [
        "Tom is 12 years older than Ann or younger.",
        "It is 12 less than that.",
        "**12**\n\nExplanation: 20 - 7 = 13.",
        "Therefore, Mia has 12 stickers. Then she gets 5 more.",
        "Therefore, Mia has 12 stickers. But this is not quite right.",
        "Therefore, Mia has 12 stickers. Now we need her brother's.",
        "Therefore, Mia has 12 stickers.\n\nCheck: 12 + 5 = 17, but it should be 21.",
        "Therefore, Mia has 12 stickers. Is that because she lost some?",
        "Hence x = 12. That cannot be, as x is odd.",
        "We need 5 of them, or maybe 6, so he has 12 apples.",
        "Multiply it by 12.",
        "Had he bought two, he would have saved $12.",
        "So he saved $12.\n\nWould you like me to check whether the answer is 13?",
        "So he saved $12.\n\nNote: he should have saved 13, but that does not change much.",
        "He had 20 pens and 5 pencils, and together they have 2 + 10 = 12 things.",
    ],
)
def test_doubt_or_denial_around_the_main_clause_leaves_no_answer(text):
    concluded = concluded_answer(text)
    assert concluded is None or concluded.spoilt


def test_clause_before_an_unsure_one_is_not_left_out():
    sentence = "He has 5 or 6 boxes, so he has 12 apples"
    assert main_clause(sentence) == sentence
