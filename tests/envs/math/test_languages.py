"""Marks, leads and units of other languages than English."""

import pytest

from envs.math.finding.answers import marked_answer
from envs.math.parsing.foreign_changes import CHANGING_BY_LANGUAGE, CHANGING_FOREIGN_WORDS
from envs.math.parsing.languages import (
    FOREIGN_LINKS,
    NOUNS,
    SPELLINGS,
    concludes,
    foreign_lead_changes,
    in_english,
)
from envs.math.parsing.quantities import read_quantity


@pytest.mark.parametrize(
    "text",
    [
        *(
            "La respuesta es 11.",
            "La réponse est 11.",
            "Die Antwort ist 11.",
            "Ответ — 11.",
            "答案是 11。",
            "答えは11です。",
            "คำตอบคือ 11",
        ),
        *(
            "Jibu ni 11.",
            "উত্তর হল 11।",
            "సమాధానం 11.",
            "Respuesta: 11",
            "Réponse : 11",
            "**Antwort:** 11",
            "Ответ: 11",
            "答案：11",
            "答え：11",
        ),
        *(
            "故答案为：11",
            "정답은 11입니다.",
            "A resposta é 11.",
            "La risposta è 11.",
            "उत्तर: ११",
            "Por lo tanto, la respuesta final es 11.",
        ),
        *(
            "所以，答案是 $\\boxed{11}$。",
            "Also lautet die Antwort 11.",
            "答案\n\n11",
            "Donc la réponse est **11**.",
        ),
    ],
)
def test_answer_is_marked_in_another_language(text):
    marked = marked_answer(text)
    assert not marked.spoilt
    assert read_quantity(marked.text.strip("*$ ")).value == 11


@pytest.mark.parametrize(
    "text",
    [
        *(
            "La respuesta es 11 o 12.",
            "Quizás la respuesta es 11.",
            "La réponse est 11 ou 12.",
            "答案是11吗？",
        ),
        *(
            "Die Antwort ist nicht 11.",
            "Vielleicht ist die Antwort 11.",
            "Ответ: не 11",
            "不是，也许答案是11。",
        ),
        *(
            "答えは11か12です。",
            "答えは11ではありません。",
            "Hay más de \\boxed{11} libros.",
            "\\boxed{11} oder 12",
            "La falsa respuesta es 11.",
        ),
    ],
)
def test_word_that_changes_denies_or_doubts_spoils_the_mark(text):
    marked = marked_answer(text)
    assert marked.spoilt or read_quantity(marked.text) is None


@pytest.mark.parametrize(
    "text",
    [
        "La respuesta no es 11.",
        "答案不是11。",
        "答案可能是11。",
        "La réponse n'est pas 11.",
        "คำตอบไม่ใช่ 11",
    ],
)
def test_denied_or_doubted_answer_is_not_marked(text):
    assert marked_answer(text) is None


@pytest.mark.parametrize(
    ("statement", "english"),
    [
        ("56 manzanas", "56 apples"),
        ("18美元", "18 dollar"),
        ("45ページです", "45 pages"),
        ("18个苹果", "18 apples"),
        ("18只小猫", "18"),
        ("11", "11"),
        ("3 por ciento", "3 percent"),
    ],
)
def test_units_are_put_into_english(statement, english):
    assert in_english(statement, question="") == english


@pytest.mark.parametrize(
    "statement",
    [
        *("63 карандаша", "63 яблук", "63 matite", "63 cái bánh", "63 jabłek", "63 Murmeln"),
        *("63 kalem", "63 kelereng", "63 äpplen", "63盏灯", "63羽", "63학생", "63 ลูก", "63 सेब"),
    ],
)
def test_what_is_counted_may_have_any_name(statement):
    assert in_english(statement, question="") == "63"


@pytest.mark.parametrize(
    "statement",
    [
        *("63 тысячи карандашей и", "63 или больше", "63 o 64", "не 63 карандаша", "63 dozzine"),
        *("63 neverland thousand", "примерно 63 карандаша", "khoảng 63 cái bánh", "63多盏灯"),
        *(
            "63 tysięcy jabłek",
            "63人以上",
            "63ではありません",
            "약 63명",
            "ประมาณ 63 ลูก",
            "लगभग 63 सेब",
        ),
    ],
)
def test_word_that_changes_the_number_leaves_no_quantity(statement):
    english = in_english(statement, question="")
    assert english is None or read_quantity(english) is None or read_quantity(english).value != 63


def test_after_a_mark_the_number_may_have_a_subject():
    assert in_english("Razem mają 63 znaczków", question="", marked=True) == "63"
    assert in_english("Razem mają 63 znaczków", question="") == "Razem mają 63"
    assert in_english("Iloczyn z 63", question="", marked=True) is None


def test_every_language_that_marks_an_answer_lists_what_changes_a_number():
    scripts_apart = {"zh", "ja", "ko", "th"}
    assert set(NOUNS) | scripts_apart == set(CHANGING_BY_LANGUAGE) | scripts_apart


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Antwort: 1.500 €", 1500),
        ("La respuesta es 2.500.000 euros.", 2500000),
        ("Er zahlt 0.75 Euro je Liter. Antwort: 1.500 Liter", 1.5),
        ("答案是1.500。", 1.5),
        ("Answer: 1.500", 1.5),
    ],
)
def test_point_groups_thousands_where_the_language_has_a_decimal_comma(text, number):
    assert read_quantity(marked_answer(text).text).value == number


@pytest.mark.parametrize(
    "text",
    [
        "因此 $\\boxed{18\\text{元}}$。",
        "La risposta è $\\boxed{18 \\text{ matite}}$.",
        "#### 18 конфет",
    ],
)
def test_unit_of_another_language_may_be_in_a_box_or_after_a_hash(text):
    marked = marked_answer(text)
    assert not marked.spoilt
    assert read_quantity(marked.text).value == 18


def test_scale_of_another_language_in_a_box_is_a_part_of_the_number():
    assert marked_answer("利润为 $\\boxed{18\\text{万}}$ 元").text == "180000"


@pytest.mark.parametrize(
    ("statement", "number"), [("11 mil", "11000"), ("63 тысячи", "63000"), ("1.5万元", "15000 yen")]
)
def test_a_scale_is_a_part_of_the_number(statement, number):
    assert in_english(statement, question="") == number


def test_a_scale_that_leaves_a_fraction_is_not_read():
    assert in_english("3.14159千", question="") is None


@pytest.mark.parametrize(
    ("lead", "leads"),
    [
        ("Por lo tanto, la ", True),
        ("所以最终", True),
        ("2 + 9 = 11 ", True),
        ("No creo que la ", False),
        ("也许", False),
    ],
)
def test_words_before_a_foreign_mark_are_known_ones(lead, leads):
    assert concludes(lead) is leads


def test_no_unit_and_no_link_is_a_word_that_changes_a_number():
    assert not CHANGING_FOREIGN_WORDS & (FOREIGN_LINKS | set(SPELLINGS))


@pytest.mark.parametrize(
    ("lead", "changes"),
    [
        ("因此, 她四月和五月一共卖出了 $", False),
        ("所求概率为", False),
        ("4월과 5월에 판 클립은 ", False),
        ("她四月和 $", True),
        ("她卖出的不是", True),
        ("她可能卖出了", True),
        ("如果不算四月, 一共有", True),
        ("一共卖出了约", True),
    ],
)
def test_words_before_the_verb_must_be_known_unless_they_doubt(lead, changes):
    assert foreign_lead_changes(lead) is changes
