"""Texts in which nothing is marked: a value alone at the end, or a closing sentence."""

import asyncio
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs.math.finding.conclusions import concluded_answer
from envs.math.grading import NO_ANSWER

MANY = settings(
    derandomize=True, max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
ENDINGS = (
    "{}",
    "**{}**",
    "${}$",
    "$$\n{}\n$$",
    "Total: {}",
    "x = {}",
    "Therefore, the total is {}.",
    "So she has {} apples.",
    "The result is {}.",
)
HEDGES = (
    *(
        "{} or 4",
        "{} or so",
        "maybe {}",
        "{}?",
        "{} if it rains",
        "about {}",
        "{}, 4",
        "{} and 4",
        "{} squared",
        "{} + 1",
        "not {}",
    ),
    *(
        "{}, I guess",
        "{} thousand",
        "more than {}",
        "{} to 4",
        "{} / 4",
        "-{}",
        "{}\n\nWait, that is wrong.",
        "{}...",
    ),
)


def grade(grader, text, reference, question=""):
    return asyncio.run(grader.grade(text, truth=reference, style="rule", question=question))


@given(st.integers(5, 10**6), st.sampled_from(ENDINGS))
@MANY
def test_number_that_ends_a_text_is_right_for_itself_alone(grader, number, ending):
    text = "We add all of them.\n\n" + ending.format(number)
    assert grade(grader, text, str(number)).correct
    assert not grade(grader, text, str(number + 1)).correct


@given(st.integers(5, 10**6), st.sampled_from(ENDINGS), st.sampled_from(HEDGES))
@MANY
def test_hedge_around_a_number_that_ends_a_text_never_leaves_it_right(
    grader, number, ending, hedge
):
    assert not grade(grader, ending.format(hedge.format(number)), str(number)).correct


@given(
    st.integers(5, 10**6),
    st.integers(5, 10**6),
    st.sampled_from(
        ["{}\n{}", "{}\n\n{}", "${}$\n${}$", "x = {}\nx = {}", "- {}\n- {}", "{} or\n{}"]
    ),
)
@MANY
def test_two_values_in_the_last_lines_are_not_an_answer(grader, first, second, lines):
    text = lines.format(first, second)
    assert first == second or not (
        grade(grader, text, str(first)).correct or grade(grader, text, str(second)).correct
    )


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "I cannot say.",
            "She has 18 apples. Now we need the rest.",
            "Step 18",
            "## 18",
            "- 18",
            "So far, the total is 18.",
            "#18",
        ),
        *(
            "So what is 18?",
            "Let x = 18.",
            "So there are 18 or",
            "print(18)",
            "18\n\nNow we add the tax.",
            "<think>\n\n18",
        ),
    ],
)
def test_end_that_concludes_nothing_is_not_an_answer(text):
    assert concluded_answer(text) is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So we multiply.\n\n```\n18\n```", "18"),
        ("So we multiply.\n\n\\[\n18\n\\]", "18"),
        ("Therefore, the area is **18** cm^2.", "18 cm^2"),
        ("<think>20?</think>\n18", "18"),
        ("Thus the height is $2\\sqrt{3}$.", "$2\\sqrt{3}$"),
        ("So Tom has 18 apples.\n\nI hope this helps!", "18 apples"),
        ("So option (B) is correct.", "B"),
        ("It is about 3.\nSo the mean is approximately 3.14.", "\\approx 3.14"),
    ],
)
def test_value_is_found_without_its_dress(text, answer):
    assert concluded_answer(text).text == answer


def test_answer_that_is_only_concluded_is_not_marked(grader):
    assert grade(grader, "18", "18").marked is False
    assert grade(grader, "#### 18", "18").marked
    assert grade(grader, "nothing", "18").verdict == NO_ANSWER


@pytest.mark.parametrize(
    "text",
    [
        "9" * 4_000_000,
        "So " * 1_000_000,
        "a 1 " * 1_000_000,
        "$" * 4_000_000,
        "(" * 4_000_000,
        "So x = " + "1 + " * 900_000,
        "\n" * 4_000_000,
        "a " * 2_000_000 + ": 1",
    ],
    ids=["digits", "connectives", "numbers", "dollars", "brackets", "sum", "lines", "label"],
)
def test_megabytes_of_anything_take_linear_time(text):
    began = time.process_time()
    concluded_answer(text)
    assert time.process_time() - began < 60  # a second if linear, hours if quadratic


@pytest.mark.parametrize(
    ("text", "reference", "question"),
    [
        ("So the result is:\n\n> **33**", "33", ""),
        ("| Day | Eggs |\n|---|---|\n| Mon | 12 |\n| **Total** | **37** |", "37", ""),
        ("So x = 13.\n\nCheck: 2·13 - 6 = 26 - 6 = 20.", "13", "Solve 2x - 6 = 20."),
        ("Yes, such a colouring exists.", "Yes", "Does such a colouring exist?"),
        ("So she can buy at most 11 pencils.", "11", "What is the greatest number of pencils?"),
        ("The lines meet at $(3, -0.5)$.", "(3,-\\frac{1}{2})", ""),
        ("The domain is all real numbers.", "(-\\infty,\\infty)", ""),
        ("So the count is not 70 but 71.", "71", ""),
        ("Die Lösung ist 12'500.", "12500", ""),
        ("- Monday: 12 pages\n- Tuesday: 42 pages\n- **Total: 54 pages**", "54", ""),
        ("| Mon | 12 |\n| Wed | 42 |\n\nTotal pages read: 12 + 42 = **54**", "54", ""),
        ("The correct option is B) 12 days.", "B", ""),
        ("The next number in the pattern 7, 11, 15 is **19**.", "19", ""),
        ("So it is 54!", "54", ""),
        ("We get 5! = 120, so it is 120!", "120", ""),
        ("- Start: 60\n- Left over: 60 - 18 = **42**", "42", ""),
        ("Therefore, the function is **even**.", "\\text{even}", ""),
        ("So it is a Saturday.", "\\text{Saturday}", ""),
        ("**Yes**, it is possible.", "Yes", ""),
        ("Hence, B is correct.", "B", ""),
        ("The film ends at **10:45 AM**.", "10:45", ""),
        ("Expanding gives x² + 5x + 6.", "x^2+5x+6", ""),
        ("Therefore, $n = 7$ is the only solution.", "7", ""),
        ("We have 3! = 6 orders of three, so the number of all is 4!", "24", ""),
    ],
)
def test_an_ending_of_another_form_answers(grader, text, reference, question):
    assert grade(grader, text, reference, question).correct


@pytest.mark.parametrize(
    ("text", "reference", "question"),
    [
        ("So x = 13.\n\nCheck: 2·13 - 6 is not 21.", "13", "Solve 2x - 6 = 21."),
        ("We can rule out option B.", "B", ""),
        ("So each friend gets 7 candies from the bag that she bought on July 12.", "12", ""),
        ("So she can buy at most 11 pencils.", "11", "How many pencils does she buy?"),
        ("So the count is not 70 but 71.", "70", ""),
        ("- Pages on Monday: 12\n- **Pages on Tuesday: 54**", "54", ""),
        ("- Total cost of pens: 12\n- Total cost of pencils: 54", "54", ""),
        ("- Total so far: 54", "54", ""),
        ("The remaining steps: 54", "54", ""),
        ("The function might be **even**.", "\\text{even}", ""),
        ("Yesterday was **Saturday**.", "\\text{Saturday}", ""),
        ("Yes, but only for even n.", "Yes", ""),
        ("Option B satisfies only one condition.", "B", ""),
        ("The film ends at 10:45 p.m.", "10:45 \\text{ a.m.}", ""),
        ("Therefore, $n = 7$ is not the only solution.", "7", ""),
        ("The correct option is B) or C).", "B", ""),
        ("The correct option is not B) 12 days.", "B", ""),
        ("We have 3! = 6 orders of three, so the number of all is 4!", "4", ""),
    ],
)
def test_an_ending_that_asserts_something_else_answers_nothing(grader, text, reference, question):
    assert not grade(grader, text, reference, question).correct


@pytest.mark.parametrize(
    "text",
    [
        "The answer is 15.\n\nCheck: 15 is odd, so 15 cannot be right. The right value is 16.",
        "One might think that the answer is 15, but this counts 8 twice. The correct count is 16.",
        "#### 15\n\nOops, I made a mistake. The total is 16.",
        "\\boxed{15}\n\nWait, I forgot one.\n\n**16**",
    ],
)
def test_refuted_mark_gives_way_to_the_value_that_the_text_concludes(grader, text):
    assert grade(grader, text, "16").correct
    assert not grade(grader, text, "15").correct


@pytest.mark.parametrize(
    "text",
    [
        "The answer is 15. Wait, that's not right. Maybe 16.",
        "The answer is 15. Wait, it could be 16.",
        "<answer>15</answer> 16",
        "#### 15\n16",
    ],
)
def test_doubtful_or_second_value_after_a_mark_is_not_a_correction(grader, text):
    assert not grade(grader, text, "15").correct
    assert not grade(grader, text, "16").correct


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        (
            "The snail needs **6 days**. A common mistake is to answer 9, forgetting its last day.",
            "6",
        ),
        ("The average is 84. This is plausible because it lies between 70 and 95.", "84"),
        (
            "She sold 48 in April and 24 in May, which makes 72 clips.\n\nI hope this helps! If you have 1 or 2 more questions, just ask.",
            "72",
        ),
        ("The cases are equally likely, so the probability is $\\frac13$.", "1/3"),
    ],
)
def test_remarks_on_an_answer_leave_it(grader, text, reference):
    assert grade(grader, text, reference).correct


@pytest.mark.parametrize(
    "text",
    [
        "The snail needs **9 days**. A common mistake is to answer 9, so the answer is 6.",
        "The average is 9. This is plausible, but it should be 84.",
        "It takes **9 bolts**.\n\nExplanation: maybe one is left over.",
        "It takes **9 bolts**.\n\nExplanation: 2 + 1. Wait, that is wrong.",
    ],
)
def test_remarks_that_doubt_or_correct_an_answer_take_it_back(grader, text):
    assert not grade(grader, text, "9").correct
