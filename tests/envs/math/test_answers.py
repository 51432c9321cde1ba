r"""The last marked answer of a text, and retractions around a mark."""

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs.math.finding.answers import marked_answer
from envs.math.parsing.statements import read_statement


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("12+34 is easy.\n#### 46", "46"),
        ("#### 45\nNo, wait.\n#### 46\n", "46"),
        ("#### 46.", "46"),
        ("####46", "46"),
        ("so \\boxed{46}, as was asked", "46"),
        ("\\boxed{1}. Rather \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed 46", "46"),
        ("\\boxed 46.", "46"),
        ("\\fbox{46}", "46"),
        ("#### \n46", "46"),
        ("Answer:\n46", "46"),
        ("Answer:\n\\[\n46\n\\]", "46"),
        ("**Final Answer**\n\n46", "46"),
        ("The answer is 46.", "46"),
        ("So the answer to the question is: 46 apples.", "46 apples"),
        ("The final answer is $46$. I hope it is correct.", "$46$"),
        ("#### 46\nThis answer is correct.", "46"),
        ("<answer>46</answer>", "46"),
        ("<answer>\n46\n</answer>", "46"),
        ("The answer is 9 + 9 = \\boxed{18}.", "9 + 9 =  18"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{\\frac{1}{2}\nand more", "\\frac{1}{2}"),
        ("Answer: 46", "46"),
        ("the ANSWER : 46 apples", "46 apples"),
        ("**Answer:** 46", "46"),
        ("**Answer: 46**", "46"),
        ("Answer: \\boxed{46}", "46"),
        ("#### $\\boxed{46}$", "46"),
        ("\\boxed{Answer: 46}", "46"),
        ("\\boxed{46} which I repeat:\n#### 47", "47"),
        ("Answer - 42", "42"),
        ("**Answer** \u2013 42 apples", "42 apples"),
        ("Q: What is 40 + 2?\nA: 42", "42"),
        ("[ANSWER]18[/ANSWER]", "18"),
        ("<final_answer>18</final_answer>", "18"),
        ("Answer -> 18", "18"),
        ("#### ", ""),
        ("\\boxed{}", ""),
    ],
)
def test_last_mark_counts(text, answer):
    assert marked_answer(text).text == answer


@pytest.mark.parametrize(
    "text",
    [
        "",
        "46",
        "the result is 46",
        "### 46",
        "answering 46",
        "So she sold 46.",
        "A: 42\nB: 43",
        "a: 42",
    ],
)
def test_text_without_a_mark_has_no_answer(text):
    assert marked_answer(text) is None


@given(st.text(), st.integers(), st.sampled_from(["#### {}", "\\boxed{{{}}}", "Answer: {}"]))
@settings(
    derandomize=True, max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
def test_a_number_that_is_marked_last_is_found_after_any_text(text, number, mark):
    assert marked_answer(text + "\n" + mark.format(number)).text == str(number)


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{3} or \\boxed{4}",
        "\\boxed{4} is wrong",
        "\\boxed{4} squared",
        "\\boxed{4}^2",
        "-\\boxed{4}",
        "3 or \\boxed{4}",
        "maybe \\boxed{4}",
        "\\sqrt{\\boxed{4}}",
        "I don't think the answer is 4",
        "x = 3 or #### 4",
        "#### 4\nWait, that is wrong.",
        "#### 4\nor 5",
        "#### 4\n5",
        "<answer>4</answer>\nActually 5",
        "so it is \\boxed{4",
        "\\boxed{4} o 5",
        "\\boxed{4}, which is rejected",
        "The wrong answer is 4.",
        "Many students say the answer is 4.",
        "The answer is 4. On reflection, it must be 5.",
        "#### 4\nIt is 5.",
        "\\boxed{4}, so she has 5 apples.",
        "\\boxed{4}, whatever that means; I am not sure.",
        "\\boxed{4} for odd $n$, 5 for even $n$.",
    ],
)
def test_doubt_alternative_or_retraction_around_a_mark_spoils_it(text):
    assert marked_answer(text).spoilt


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("$$\\boxed{\\boxed{102}}$$", "102"),
    ],
)
def test_boxes_in_one_another_are_one_answer(text, read):
    found = marked_answer(text)
    assert (found.text, found.spoilt) == (read, False)


@pytest.mark.parametrize(
    "text",
    [
        "so \\boxed{4}, as was asked",
        "Thus Ann has \\boxed{4} more apples than Ben.",
        "\\boxed{3}. Wait, that is wrong. \\boxed{4}",
        "If x = 2, the answer is 4.",
        "Answer: 4\n\nExplanation: 2 + 2 = 4.",
        "#### 4\nThis answer is correct.",
        "The answer is 4. I hope it is correct.",
        "\\boxed{4}<|im_end|>",
        "$\\boxed{4$",
        "\\boxed{4}, not 5.",
        "\\boxed{4} (the other root, x = -3, is rejected).",
        "So we can say that the answer is 4.",
        "The answer is 4 hours. It is 240 minutes.",
        "\\boxed{4}, so there are 5 boys.",
        "\\boxed{4}, so he has 5 left.",
        "\u4eba\u6570\u4e3a $\\boxed{4}$\u3002",
        "Ten people can stand in line in \\boxed{4} ways.",
        "The equation has the two solutions \\boxed{5, -5}.",
        "The point has coordinates \\boxed{(\\sqrt{3}\\,,\\ 1)}.",
    ],
)
def test_words_that_change_nothing_do_not_spoil_a_mark(text):
    assert not marked_answer(text).spoilt


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
        "answer to " * 400_000,
        "<answer>" * 400_000,
        "\\boxed{1} or " * 300_000,
        "#### 1\n" * 500_000,
        "\u202e\ud800\x00\u200b" * 1_000_000,
    ],
    ids=[
        "digits",
        "boxes",
        "open braces",
        "closed braces",
        "spaces",
        "answers",
        "hashes",
        "blank",
        "words",
        "phrases",
        "tags",
        "many boxes",
        "many lines",
        "unicode",
    ],
)
def test_megabytes_of_anything_take_linear_time(text):
    began = time.process_time()
    marked = marked_answer(text)
    read_statement(marked.text[:1000] if marked else text[:1000])
    assert time.process_time() - began < 60  # seconds if linear, hours if quadratic


@pytest.mark.parametrize(
    "text",
    [
        "The answer is 27. The answer is 27. The answer is",
        "#### 27\n#### 27\n####",
        "\\boxed{27}\n\\boxed{27}\n\\boxed{2",
    ],
)
def test_text_that_is_cut_off_within_a_repetition_keeps_its_answer(text):
    answer = marked_answer(text)
    assert (answer.text.rstrip("."), answer.spoilt) == ("27", False)


@pytest.mark.parametrize(
    "text",
    [
        "The answer is 27. No, the answer is",
        "The answer is 27. Hmm, wait. The answer is",
        "\\boxed{27}\n\\boxed{28}\n\\boxed{2",
    ],
)
def test_text_that_is_cut_off_within_another_answer_has_none(text):
    answer = marked_answer(text)
    assert answer.spoilt or not answer.text


@pytest.mark.parametrize(
    "text",
    [
        "The answer is 15.\n\nCheck: 15/2 is no integer, so 15 cannot be right.",
        "The answer is 15. That doesn't work because x is even.",
        "The answer is 15. Plugging it in gives 3 = 4, a contradiction.",
        "#### 15\n\nThis does not satisfy the equation.",
        "\\boxed{15}. This fails the check.",
        "The answer is 15. Checking: 15 is not a solution.",
    ],
)
def test_check_that_fails_after_a_mark_takes_it_back(text):
    assert marked_answer(text).spoilt


@pytest.mark.parametrize(
    ("sentence", "number"),
    [
        ("20 apples are in the basket", 20),
        ("20 apples were in doubt", None),
        ("20 pupils walk to twelve schools", None),
    ],
)
def test_sentence_whose_subject_is_counted_states_the_number(sentence, number):
    [part] = read_statement(sentence)
    assert getattr(part, "value", None) == number
