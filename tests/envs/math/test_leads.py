"""The words before and around a mark: introductions of the answer, and words that lead to another
value.
"""

import pytest

from envs.math.finding.answers import marked_answer
from tests.envs.math.grades import is_right

PLUMS = "Ida has 30 plums and sells 6. How many plums are left?"


@pytest.mark.parametrize(
    "text",
    [
        "Three times \\boxed{24}",
        "Just under \\boxed{24}",
        "x is at most \\boxed{24}",
        "$x \\ge \\boxed{24}$",
        "$y < \\boxed{24}$",
        "$\\sin \\boxed{24}$",
        "The cube root of \\boxed{24}",
        "The opposite of \\boxed{24}",
        "the product of \\boxed{24}",
        "Everything but \\boxed{24}",
        "Any one of 20, 22, \\boxed{24}",
        "from 3 to \\boxed{24}",
        "x exceeds \\boxed{24}",
        "it equals twice \\boxed{24}",
        "It is not the case that x is \\boxed{24}",
        "It is untrue that the answer is 24",
        "twice #### 24",
        "half the answer is 24",
        "My earlier answer is 24",
    ],
)
def test_words_before_a_mark_that_make_another_thing_spoil_it(text):
    assert marked_answer(text).spoilt


@pytest.mark.parametrize(
    "text",
    [
        "Ida sold a total of \\boxed{24} plums",
        "we obtain \\boxed{24}",
        "The final answer is: $\\boxed{24}$",
        "The square root of 576 is \\boxed{24}.",
        "Half of 48 is \\boxed{24}.",
        "which simplifies to $\\boxed{24}$",
        "This gives us a total of $\\boxed{24}$.",
        "$4 \\cdot 6 \\implies \\boxed{24}$",
        "\\begin{align*} x &= 4 \\cdot 6 \\\\ &= \\boxed{24}\\end{align*}",
        "The two numbers add up to \\boxed{24}.",
        "Minimum: \\boxed{24}",
        "1. \\boxed{24}",
        "The greatest number that is not odd is \\boxed{24}.",
        "It's not 23; the answer is 24.",
        "I was unsure at first, but the answer is 24.",
    ],
)
def test_words_before_a_mark_that_lead_to_the_answer_leave_it(text):
    assert not marked_answer(text).spoilt


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{24}\n\nLet me know if anything is unclear!",
        "\\boxed{24}\n\nIs there something else you would like to see?",
        "\\boxed{24}\n\nNo more work is needed.",
        "\\[\n\\boxed{24}\n\\]\n\nFeel free to ask if you have a question.",
        "<think>perhaps 23? not sure</think><answer>24</answer>",
    ],
)
def test_another_paragraph_or_a_thought_is_not_part_of_the_answers_sentence(text):
    assert not marked_answer(text).spoilt


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{24}{,}500",
        "\\boxed{24}\\\\ 25",
        "\\boxed{24}. The alternative answer is 25.",
        "\\boxed{24}. My next guess is 25.",
        "\\boxed{24} is too high; it is actually 23",
        "\\boxed{24}\n\nNo, that is wrong.",
        "\\boxed{24}\nor 25",
    ],
)
def test_more_digits_another_candidate_or_a_correction_after_a_box_spoil_it(text):
    assert marked_answer(text).spoilt


@pytest.mark.parametrize(
    ("text", "reference", "right"),
    [
        ("Final answer: \\[ \\boxed{24} \\]", "24", True),
        ("The answer is \\[ \\boxed{24} \\]", "24", True),
        ("The answer is 24, not 25.", "24", True),
        ("The answer is 24, not 24.", "24", False),
        ("The answer is 25, not 24.", "24", False),
        ("#### 24 is the final answer", "24", True),
        ("#### 24 (final answer)", "24", True),
        ("#### 24\u200b", "24", True),
        ("#### \uff12\uff14", "24", True),
        ("\\framebox{24}", "24", True),
        ("Final result: 24", "24", True),
        ("Solution: 24", "24", True),
        ("The answer is option C.", "C", True),
        ("#### c", "C", True),
        ("#### d", "C", False),
        ("It is about \\boxed{3.14}", "3.14159", False),
        ("It is about \\boxed{24}", "24", False),
        ("The answer is half of \\boxed{24}", "24", False),
        ("The answer is the product of 24", "24", False),
        ("The answer is 24 reversed", "24", False),
        ("The answer is 24 and some", "24", False),
        ("The answer is 24 triplets", "24", False),
        ("The answer is 24h", "24", False),
        ("#### 24 days ago", "24", False),
        ("Answer: Ida sold 24 plums.", "24", False),
        ("Answer: Ida has 24 plums left.", "24", True),
    ],
)
def test_grade_goes_by_the_words_around_the_number(grader, text, reference, right):
    assert is_right(grader, text, reference, PLUMS) is right


@pytest.mark.parametrize(
    ("text", "reference", "question", "right"),
    [
        ("#### 0.4%", "2/5", "What is the probability?", False),
        ("#### 40%", "2/5", "What is the probability?", False),
        ("#### 0.4%", "0.4", "", False),
        ("#### 0.4", "2/5", "What is the probability?", True),
        ("#### 0.4 = 40%", "2/5", "What is the probability?", True),
        ("#### 0.4%", "0.4", "What percent of 500 is 2?", True),
        ("#### 40%", "0.4", "What percent of 500 is 2?", False),
        ("#### 40%", "40", "", True),
    ],
)
def test_percent_sign_has_one_reading_at_most_for_a_reference(
    grader, text, reference, question, right
):
    assert is_right(grader, text, reference, question) is right


@pytest.mark.parametrize(
    "text",
    [
        "There are $4! = \\boxed{24}$ arrangements.",
        "4!=\\boxed{24}",
        "They meet after \\boxed{24} minutes.",
        "The farmer plows \\boxed{24} acres.",
        "The pool empties in \\boxed{24} hours.",
        "Her score improved by \\boxed{24} points.",
        "The sequence converges to \\boxed{24}.",
        "The workers assembled \\boxed{24} chairs.",
        "The corrected final answer is \\boxed{24}.",
        "There are 24 functions. $\\boxed{24}$",
        "Final answer: adding them gives $\\boxed{24}$.",
    ],
)
def test_verb_known_by_its_form_and_a_factorial_lead_to_the_answer(grader, text):
    assert is_right(grader, text, "24", "")


@pytest.mark.parametrize(
    "text",
    [
        "x != \\boxed{24}",
        "We guess that they assembled \\boxed{24}",
        "One might think that the answer is 24",
        "He rejects \\boxed{24}.",
        "Perhaps the workers assembled \\boxed{24} chairs.",
        "Final answer: 11 plus \\boxed{24}",
        "Final answer: not \\boxed{24}",
        "If the price were $3, the answer would be 24.",
    ],
)
def test_supposition_and_rejection_before_a_mark_spoil_it(text):
    assert marked_answer(text).spoilt or marked_answer(text).text != "24"


@pytest.mark.parametrize(
    "text",
    [
        "At first sight, thus the answer is 24.",
        "At first glance, so \\boxed{24}",
        "\\boxed{24} at first sight",
        "On the face of it, therefore there are 24 plums.",
        "My first guess is that the answer is 24.",
        "Tentatively, #### 24",
        "Apparently the answer is 24.",
    ],
)
def test_a_first_impression_is_not_an_answer(grader, text):
    assert not is_right(grader, text, "24", PLUMS)


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("At first sight it is 17, but the answer is 24.", "24"),
        ("The chance is \\boxed{\\frac{3}{8}}, or as a decimal \\boxed{0.375}.", "0.375"),
        ("Final answer: 1_000_000", "1000000"),
        ("La réponse finale est donc 12 500,75 euros.", "12500.75"),
        ("So the answer is: **No**, such a triangle can't exist.", "No"),
    ],
)
def test_what_leads_to_the_answer_or_says_it_again_leaves_it(grader, text, reference):
    assert is_right(grader, text, reference, "")


@pytest.mark.parametrize(
    "text",
    [
        "The chance is \\boxed{\\frac{3}{8}}, or as a decimal \\boxed{0.5}.",
        "The answer 3 or 5 is \\boxed{5}.",
        "Either \\boxed{A} or \\boxed{B}.",
    ],
)
def test_two_values_of_which_one_is_wrong_are_not_an_answer(grader, text):
    assert not any(
        is_right(grader, text, truth, "") for truth in ("\\frac{3}{8}", "0.5", "5", "A", "B")
    )
