r"""Marks beside headings and struck-out words, values in plain notation, and later corrections."""

import pytest

from tests.envs.math.grades import is_right


@pytest.mark.parametrize(
    ("text", "reference", "other"),
    [
        (r"So it is $\textbf{(C)}~415$.", "415", "414"),
        ("<think>a</think><SOLUTION>640</SOLUTION>", "640", "64"),
        ("**Answer:** ~~15~~ 14", "14", "15"),
        (
            "#### Step 1: Add\n4 + 5 = 9\n#### Step 2: Double\n2 * 9 = 18\n\nSo there are 18 pens.",
            "18",
            "2",
        ),
        ("**Answer.** $n = 6$.\n\n**Proof.** The sum is 21 = 3 · 7.", "n = 6", "n = 7"),
        ("Antwoord: het is zo. Het juiste antwoord is 23.", "23", "22"),
        ("The domain is (\u2212\u221e, 8].", r"(-\infty, 8]", r"(-\infty, 8)"),
        ("Taking roots, x = ±7.", r"\pm 7", "7"),
        ("The roots are 3 + 4i and 3 - 4i.", r"3 \pm 4i", r"3 \pm 5i"),
        ("The change is +9.", "9", "-9"),
        ("The depth is negative 40 feet.", "-40", "40"),
        ("30 in base 7 is 42 (base 7).", "42_7", "42_8"),
        ("The ratio simplifies from 14:21 to 2:3.", "2:3", "3:2"),
        (r"Thus k = 13. $\blacksquare$", "13", "12"),
        ("The father is therefore 4(9) + 2 = 38 years old.", "38", "36"),
        ("The one-sided limits differ, so the limit does not exist (DNE).", r"\text{DNE}", "0"),
        (
            "No side is given, so the area cannot be determined.",
            r"\text{cannot be determined}",
            r"\text{DNE}",
        ),
        ("The average is 31, which is option D.", "D", "C"),
    ],
)
def test_value_beside_harmless_words_is_right_and_no_other_is(grader, text, reference, other):
    assert is_right(grader, text, reference)
    assert not is_right(grader, text, other)


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("The answer is 41.\n\nI counted again, so the correct count is 44.", "41", "44"),
        (
            "The answer is 120. I apologize, I forgot a fee. The correct total is $125.",
            "120",
            "125",
        ),
    ],
)
def test_explicit_correction_replaces_the_answer(grader, text, first, last):
    assert not is_right(grader, text, first)
    assert is_right(grader, text, last)


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        (
            "**Answer: 52**\n\nI overlooked a shift. It comes to 104, which is the right answer.",
            "52",
        ),
        ("The answer is 26. The other choices, 26 and 30, fail.", "26"),
        ("The average is not 31, which is option D.", "31"),
        (r"The hall is allowed up to \boxed{50} guests.", "50"),
        ("It is not true that the limit does not exist.", r"\text{DNE}"),
        (
            "**Answer.** $n = 6$.\n\n**Remark.** It has to be replaced: the smallest is $n = 8$.",
            "n = 6",
        ),
        (
            "She is 2(9) + 5 = 23 years old.\n\nVerification: 9 + 23 = 32, while the text says 35. "
            "Redoing it, she is 2(10) + 5 = 25 years old.",
            "23",
        ),
        ("Logo, a resposta não é 64 metros.", "64"),
        ("Answer: give me 19 seconds", "19"),
        ("Ana is 9 and Eva is 14.", "14"),
        ("Each child pays $15 of the $60.", "60"),
    ],
)
def test_denied_or_other_value_is_wrong(grader, text, reference):
    assert not is_right(grader, text, reference)


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("She has $9 left, having spent $21 on paint.", "9"),
        ("Therefore, x = 3 and y = -8, i.e. the point (3, -8).", "(3, -8)"),
        ("**84 pages**\n\nWorking: 12 pages a day for 7 days, and 12 \u00d7 7 = 84.", "84"),
        (
            r"Hence $x=\frac72$. Substituting back: $2\cdot\frac72-3=7-3=4$, as required.",
            r"\frac{7}{2}",
        ),
    ],
)
def test_remark_with_another_number_leaves_the_answer_right(grader, text, reference):
    assert is_right(grader, text, reference)
