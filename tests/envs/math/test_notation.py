r"""One mathematics in several notations: signs, lists of roots, numerals with a base, formatting
and marks.
"""

import asyncio

import pytest

from envs.math.parsing.notation import Numeral, as_interval, as_list, in_latex, numeral
from tests.envs.math.grades import is_right


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("x³", "x^{3}"),
        ("x⁻¹²", "x^{-12}"),
        ("a₁₀", "a_{10}"),
        ("2√5", "2\\sqrt{5}"),
        ("√(x+1)", "\\sqrt{x+1}"),
        ("√π", "\\sqrt{\\pi }"),
        ("∛8", "\\sqrt[3]{8}"),
        ("½", "\\frac{1}{2} "),
        ("3\u00d74", "3\\cdot 4"),
        ("\u22125", "-5"),
        ("(\u2212∞, 3]", "(-\\infty , 3]"),
    ],
)
def test_unicode_mathematics_is_spelled_in_latex(text, latex):
    assert in_latex(text) == latex


@pytest.mark.parametrize(
    ("truth", "answer", "listed"),
    [
        ("2,7", "x = 2 \\text{ or } x = 7", "2,7"),
        ("2,7", "either 7 or 2", "7,2"),
        ("1,2,3", "1, 2, and 3", "1,2,3"),
        ("(1,2),(2,1)", "(1,2) or (2,1)", "(1,2),(2,1)"),
        ("2,7", "2, 7 or 9", "2, 7 or 9"),
        ("2,7", "x = 2 or y = 7", "x = 2 or y = 7"),
        ("2", "2 or 7", "2 or 7"),
        ("(2,7)", "2 or 7", "2 or 7"),
    ],
)
def test_or_between_as_many_elements_as_the_truth_lists_is_a_list(truth, answer, listed):
    assert as_list(truth, answer) == listed


@pytest.mark.parametrize("text", ["121_3", "121_{3}", "121_{\\text{three}}", "0121₃", "$121_3$"])
def test_numeral_has_digits_and_a_base(text):
    assert numeral(text) == Numeral("121", 3)


@pytest.mark.parametrize(
    ("text", "reference", "right"),
    [
        ("So, the answer is **75** litres.", "75", True),
        ("The answer is *12* **apples**.", "12", True),
        ("**The answer is 75** litres.", "75", True),
        ("Answer: `7` cm", "7", True),
        ("The answer is *12*x", "12", False),
        ("**Answer:** 3 * 4 = 12", "12", True),
        ("#### 3*", "3", False),
        ("**Answer: 3**", "3", True),
        ("\\boxed{3}\\%x", "3", False),
        ("\\boxed{3}\\%", "3", True),
        ("\\boxed{|{-5}|}", "-5", False),
        ("\\boxed{x = 2 \\text{ or } x = 7}", "2,7", True),
        ("\\boxed{x = 2 \\text{ or } x = 8}", "2,7", False),
        ("Answer: 2 or 7", "2", False),
        ("Answer: (\u2212∞, 3]", "(-\\infty,3]", True),
        ("Answer: x³ + 2x", "x^3+2x", True),
        ("Answer: x³", "x^2", False),
        ("Answer: 5²", "25", True),
        ("Answer: 5²", "5", False),
        ("Answer: 2√5", "2\\sqrt{5}", True),
        ("Answer: 3π/4", "\\frac{3\\pi}{4}", True),
        ("\\boxed{121_4}", "121_3", False),
        ("\\boxed{121_{3}}", "121_3", True),
        ("\\boxed{121}", "121_3", True),
        ("**Answer:**\n\nPart 6 proves it.", "6", False),
        ("Answer: 6 explains it", "6", False),
        ("Answer: Step 6", "6", True),
        ("\\boxed{(x-3)(x+3)}, i.e. $x^2-9$", "x^2-9", True),
        ("\\boxed{(x-3)(x+3)}, i.e. $x^2+9$", "x^2-9", False),
        ("\\boxed{x = 2, x = 7}", "2,7", True),
        ("\\boxed{x = 2 \\text{ or } y = 7}", "2,7", False),
        ("Answer: {2, 7}", "\\{2,7\\}", True),
        ("\\boxed{x \\in [2, 7)}", "[2,7)", True),
        ("\\boxed{x \\in [2, 7]}", "[2,7)", False),
        ("Answer: 2 to 7", "2:7", True),
        ("Answer: 7 to 2", "2:7", False),
        ("Result: 3 \u00d7 (\u22124) = \u221212", "-12", True),
        ("Answer: 50 N \u00d7 5 m = 250 joules", "250 J", True),
        ("Answer: The price fell by 25 percent.", "25\\%", True),
        ("Answer: It can't be 15 stamps.", "15", False),
        ("Answer: Lena has 15 stamps if she lost none.", "15", False),
    ],
)
def test_notation_is_graded_as_a_careful_reader_would(grader, text, reference, right):
    assert asyncio.run(grader.grade(text, truth=reference, style="rule")).correct is right


@pytest.mark.parametrize(
    ("truth", "answer", "interval"),
    [
        ("[-1,5]", "-1 \\leq t \\leq 5", "[-1,5]"),
        ("(0,5]", "0 < x \\le 5", "(0,5]"),
        ("(-\\infty,4)", "x < 4", "(-\\infty,4)"),
        ("[4,\\infty)", "x \u2265 4", "[4,\\infty)"),
        ("(1,2)", "1 < x < 2", "1 < x < 2"),
        ("[4,\\infty)", "x > 4 = y", "x > 4 = y"),
    ],
)
def test_an_inequality_is_an_interval_where_the_truth_can_be_no_point(truth, answer, interval):
    assert as_interval(truth, answer) == interval


def test_square_brackets_around_a_matrix_are_as_good_as_round_ones(grader):
    truth, answer = (f"\\begin{{{kind}}}3\\\\4\\end{{{kind}}}" for kind in ("pmatrix", "bmatrix"))
    text = f"\\boxed{{{answer}}}"
    assert asyncio.run(grader.grade(text, truth=truth, style="rule")).correct


def test_sign_of_plus_infinity_may_be_written(grader):
    assert is_right(grader, "#### +\\infty", "\\infty")
    assert not is_right(grader, "#### +\\infty", "-\\infty")
