r"""Texts against truths: right, wrong with a reason, or a failure, which is never a score;
nothing hangs.
"""

import asyncio
import time
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs.base import EpisodeFailed
from envs.math.comparing.agreement import equal_numbers
from envs.math.grading import (
    CORRECT,
    NO_ANSWER,
    TOO_HARD,
    TOO_LONG,
    WRONG,
    Grader,
    GradingFailed,
    check_truth,
)
from envs.math.parsing.mathematics import ExpressionPair
from envs.math.parsing.quantities import read_quantity
from envs.worker_pool import WorkerKilled

COUNTDOWN = '{"numbers": [3, 5, 9], "target": 24}'


@pytest.fixture(scope="module")
def grader():
    grader = Grader(num_workers=1, cpu_s=2.0)
    yield grader
    grader.close()


def grade(grader, text, truth, style="rule", question=""):
    return asyncio.run(grader.grade(text, truth=truth, style=style, question=question))


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        ("46", "46"),
        ("1,080", "1080"),
        ("0.5", "\\frac{1}{2}"),
        ("\\frac{1}{2}", "1/2"),
        ("\\frac{1}{3}", "0.333333"),
        ("50\\%", "50%"),
        ("x^2+2x+1", "(x+1)^2"),
        ("\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}"),
        ("\\{1, 2\\}", "\\{2, 1\\}"),
        ("5", "x=5"),
        ("\\text{yes}", "\\text{yes}"),
        ("B", "\\text{(B)}"),
        ("2\\pi", "2 \\pi"),
        ("46", "forty-six"),
        ("55", "\\sum_{n=1}^{10} n"),
        ("24", "\\prod_{k = 1}^{4} k = 24"),
    ],
)
@pytest.mark.parametrize("mark", ["so\n#### {}", "so $\\boxed{{{}}}$.", "Answer: {}"])
def test_same_mathematics_is_correct(grader, truth, answer, mark):
    assert grade(grader, mark.format(answer), truth).verdict == CORRECT


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        ("46", "47"),
        ("46", "46 or 47"),
        ("46", "46, 47"),
        ("2", "2 \\pi"),
        ("54", "\\sum_{n=1}^{10} n"),
        ("54", "\\sum_{n=1}^{10} n = 55"),
        ("3", "a_{n=1} = 3_4"),
        ("x+1", "x-1"),
        ("\\frac{1}{2}", "\\frac{1}{3}"),
        ("46", "\\frac{46}{"),
        ("46", "{{{46"),
        ("46", "46}}}"),
        ("46", "\u0666\u0664"),
        ("46", "4\u200b6"),
        ("46", "\ud800"),
        ("46", "46\x00"),
        ("46", "\u202e64\u202c"),
        ("1", "\\text{" * 100),
        ("1", "9" * 1000),
        ("1", "0/0"),
        ("1", "\\infty"),
    ],
)
def test_another_or_an_unreadable_answer_is_wrong(grader, truth, answer):
    assert grade(grader, f"#### {answer}", truth).verdict == WRONG


def test_a_text_without_a_value_at_its_end_is_not_an_answer(grader):
    assert grade(grader, "46 goes in. What is left to do?", "46")[:3] == (False, NO_ANSWER, None)


def test_a_plain_closing_sentence_answers_without_a_mark(grader):
    assert grade(grader, "it is 46", "46")[:3] == (True, CORRECT, "46")


def test_whole_text_is_the_answer_where_the_style_says_so(grader):
    assert grade(grader, " 46\n", "46", "whole").verdict == CORRECT
    assert grade(grader, "", "46", "whole").verdict == NO_ANSWER


@pytest.mark.parametrize("style", ["rule", "whole", "countdown"])
def test_megabytes_of_digits_are_too_long_and_quick(grader, style):
    truth = COUNTDOWN if style == "countdown" else "9"
    began = time.process_time()
    assert grade(grader, "#### " + "9" * 5_000_000, truth, style).verdict == TOO_LONG
    assert time.process_time() - began < 60  # a second if linear, hours if quadratic


@pytest.mark.parametrize("style", ["rule", "whole"])
def test_truth_of_more_digits_than_python_reads_is_compared_as_text(grader, style):
    truth = "7" * 5000
    assert grade(grader, "#### 7", truth, style).verdict == WRONG
    assert grade(grader, f"#### {truth}", truth, style).verdict == TOO_LONG


@pytest.mark.parametrize("answer", ["3 e 5", "3 a 5", "5 e 3", "3 y 5"])
@pytest.mark.parametrize("mark", ["#### {}", "\\boxed{{{}}}", "The answer is {}.", "{}"])
def test_a_letter_between_two_numbers_joins_them_in_another_language(grader, answer, mark):
    assert not grade(grader, mark.format(answer), "3").correct


TOWER = "9^{9^{9^9}}"


@pytest.mark.parametrize(
    "answer",
    [
        TOWER,
        "10!!!",
        pytest.param(
            "100000000!", marks=pytest.mark.slow
        ),  # each costs a worker, which takes seconds to start anew
        pytest.param("100^{100^{100}}", marks=pytest.mark.slow),
        pytest.param("10^{10^{10}}", marks=pytest.mark.slow),
        pytest.param("\\binom{10000000}{5000000}", marks=pytest.mark.slow),
        pytest.param("\\prod_{n=1}^{1000000} n", marks=pytest.mark.slow),
        pytest.param("10^{-10^{10}}", marks=pytest.mark.slow),
    ],
)
def test_answer_that_would_take_for_ever_to_compare_is_wrong_and_the_next_one_works(grader, answer):
    assert grade(grader, f"#### {answer}", "7")[:3] == (False, TOO_HARD, answer)
    assert grade(grader, "#### \\frac{14}{2}", "7").verdict == CORRECT


@pytest.mark.parametrize("answer", ["x^x^x^x", "x!!!!"])
def test_towers_and_factorials_of_letters_are_wrong(grader, answer):
    assert not grade(grader, f"\\boxed{{{answer}}}", "7").correct


def test_truth_that_cannot_be_compared_is_a_failure(grader):
    with pytest.raises(
        GradingFailed,
        match=r"'7' could not be compared with '9\^.*: it used more than 2 s of processor time",
    ):
        grade(grader, "#### 7", TOWER)


def test_process_that_dies_of_something_else_is_tried_again():
    grader = Grader(num_workers=1, cpu_s=2.0)
    assert grade(grader, "#### \\frac{14}{2}x", "7x").correct
    grader._workers = _KillsOnce(grader._workers)
    assert grade(grader, "#### \\frac{14}{2}x", "7x").correct
    assert grader._workers.killed


class _KillsOnce:
    """A pool whose process dies in the first call, as where the machine runs out of memory."""

    def __init__(self, pool):
        self._pool = pool
        self.killed = False

    async def call(self, argument):
        if not self.killed:
            self.killed = True
            raise WorkerKilled("it was ended by SIGKILL")
        return await self._pool.call(argument)


def test_unreadable_truth_is_a_failure(grader):
    with pytest.raises(GradingFailed, match=r"the ground truth .* cannot be read"):
        grade(grader, "#### x", " ")


def test_failed_grading_is_a_failed_episode():
    assert issubclass(GradingFailed, EpisodeFailed)


@given(st.integers(-1000, 1000), st.integers(1, 60), st.integers(-1000, 1000), st.integers(1, 60))
@settings(
    derandomize=True, max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
def test_what_is_decided_directly_is_decided_as_math_verify_would(grader, a, b, c, d):
    truth, answer = Fraction(a, b), f"{c / d:.9f}"
    direct = equal_numbers(truth, read_quantity(answer))
    assert asyncio.run(grader._compare(ExpressionPair(f"{a}/{b}", answer))) is direct


def test_plain_numbers_need_no_worker():
    grader = Grader(num_workers=1, cpu_s=1.0)
    assert grade(grader, "#### 46", "46").correct
    assert not grade(grader, "#### 46.5", "46").correct
    assert grade(grader, "#### 2^{10}", "1024").correct
    assert grade(grader, "#### 4^3", "64").correct
    assert grader._workers is None


@pytest.mark.parametrize(
    "text",
    [
        *("/64", "64+", "!64", "%64"),  # a missing operand
        *("6!4", "6%4"),  # a missing operator
        *("6\x014", "64\x7f", "\x0464", "6\r4"),
        *("k64", "6G4", "i64", "64e", "L", "6+a4"),  # a variable, i or e
        *("6(4", "[64", "6}4", "6`4", "\\64"),
        *("6^4", "2^{05}"),
    ],
)
def test_what_only_a_tiny_model_writes_is_wrong_and_needs_no_worker(grader, text):
    """A process of 59 MB would start for one such answer."""
    own = Grader(num_workers=1, cpu_s=1.0)
    assert grade(own, text, "64", style="whole").verdict == WRONG
    assert own._workers is None
    assert (
        asyncio.run(grader._compare(ExpressionPair("64", text))) is False
    )  # math-verify's verdict


def test_several_comparisons_share_few_workers(grader):
    async def all_of_them():
        texts = [f"\\boxed{{\\frac{{{n}}}{{{2 * n}}}}}" for n in range(1, 21)]
        return await asyncio.gather(
            *(grader.grade(text, truth="\\frac{1}{2}", style="rule") for text in texts)
        )

    assert all(one.correct for one in asyncio.run(all_of_them()))
    assert len(grader._workers._alive) == 1


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("3*5+9", CORRECT),
        ("so \\boxed{9 + 5 \\times 3}", CORRECT),
        ("3*5+9 = 24", CORRECT),
        ("3*(9-1)", "other numbers than given"),
        ("3*5+9+9-9", "other numbers than given"),
        ("24", "other numbers than given"),
        ("9+5", WRONG),
        ("3*5+", "not an expression: a number or ( is missing"),
        ("9/(5-5)", "not an expression: division by zero"),
        ("", NO_ANSWER),
        ("= 24", NO_ANSWER),
    ],
)
def test_countdown_is_computed(grader, text, verdict):
    assert grade(grader, text, COUNTDOWN, "countdown").verdict == verdict


@pytest.mark.parametrize(
    ("truth", "style", "sentence"),
    [
        ("46", "model", "'model' is not graded here; known: rule, whole, countdown"),
        ("24", "countdown", "must be"),
        ('{"numbers": 3, "target": 24}', "countdown", "must be"),
        ('{"numbers": [3]}', "countdown", "must be"),
    ],
)
def test_truth_that_no_grader_can_use_is_refused(truth, style, sentence):
    with pytest.raises(ValueError, match=sentence):
        check_truth(truth, style=style)


@pytest.mark.parametrize(
    ("question", "answer", "truth"),
    [
        ("What is $17 \\times 23$?", "17 \\times 23", "391"),
        ("Compute $\\sqrt{784}$.", "\\sqrt{784}", "28"),
        ("Factor $x^2-x-2$ completely.", "x^2-x-2", "(x+1)(x-2)"),
        ("Write $\\frac{8}{12}$ in lowest terms.", "\\frac{8}{12}", "\\frac{2}{3}"),
    ],
)
def test_the_expression_of_the_question_is_not_an_answer_to_it(grader, question, answer, truth):
    assert not grade(grader, f"\\boxed{{{answer}}}", truth, question=question).correct
    assert grade(grader, f"\\boxed{{{truth}}}", truth, question=question).correct


def test_an_expression_that_cannot_be_worked_out_further_answers_its_question(grader):
    question = "Simplify $\\sqrt{7}$."
    assert grade(grader, "\\boxed{\\sqrt7}", "\\sqrt{7}", question=question).correct


@pytest.mark.parametrize(
    ("unit", "right"), [("cm^3", True), ("cubic cm", True), ("cm^2", False), ("square cm", False)]
)
def test_an_area_is_not_a_volume(grader, unit, right):
    assert grade(grader, f"\\boxed{{27\\text{{ {unit}}}}}", "27\\text{ cm}^3").correct is right


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        ("\\{1,3,7\\}", "$1$, $3$ and $7$"),
        ("(4,7)", "\\begin{cases} x = 4 \\\\ y = 7 \\end{cases}"),
        ("(3,-2)", "x = 3 and y = -2"),
        ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\langle 1, 2\\rangle"),
        ("(-\\infty,\\infty)", "\\mathbb{R}"),
        ("\\emptyset", "\\varnothing"),
        ("3x^2+2", "3*x**2 + 2"),
        ("e^2", "exp(2)"),
        ("2\\pi n, n\\in\\mathbb{Z}", "x = 2\\pi k, k \\in \\mathbb{Z}"),
        ("2516_8", "2516 (base 8)"),
        ("\\frac{3}{8}", "3 out of 8"),
        ("9.8", "\\SI{9.8}{m/s^2}"),
        ("93", "\\color{blue}{93}"),
        ("150000", "Rs. 1,50,000"),
        ("\\pm 3", "$x = 3$ or $x = -3$"),
        ("a=2,\\ b=-1", "$a = 2$ and $b = -1$"),
        ("(-\\infty,-1)\\cup(4,\\infty)", "x<-1 \\text{ or } x>4"),
        ("B", "B, because 3 + 4 = 7"),
        ("12", "12 \u2014 the sum of the digits of 39"),
    ],
)
def test_another_notation_of_the_same_is_right(grader, truth, answer):
    assert grade(grader, f"#### {answer}", truth).correct


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        ("\\{1,3,7\\}", "$1$ and $3$"),
        ("(4,7)", "x = 7 and y = 4"),
        ("(3,-2)", "y = 3 and x = -2"),
        ("(-\\infty,\\infty)", "(0,\\infty)"),
        ("2516_8", "2516 (base 7)"),
        ("3", "\\boxed{3}, \\boxed{4}"),
        ("(0,2)", "\\{0,2\\}"),
        ("\\{0,2\\}", "(0,2)"),
        ("\\pm 3", "x = -3"),
        ("a=2,\\ b=-1", "$b = 2$ and $a = -1$"),
        ("(-\\infty,3]", "$x < 3$, or $(-\\infty, 3]$ in interval notation"),
        ("(-\\infty,-1)\\cup(4,\\infty)", "x \\le -1 \\text{ or } x>4"),
        ("B", "B, C"),
        ("12", "12 \u2014 the sum is 13 with the last digit"),
    ],
)
def test_other_values_in_such_a_notation_are_wrong(grader, truth, answer):
    assert not grade(grader, f"#### {answer}", truth).correct
