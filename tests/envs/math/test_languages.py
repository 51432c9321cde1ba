"""Marks, leads and units of other languages than English."""

import pytest

from envs.math.answers import marked_answer
from envs.math.languages import (
    CHANGING_ELSEWHERE,
    LINKS_ELSEWHERE,
    SPELLINGS,
    concludes,
    in_english,
)
from envs.math.quantities import read_quantity


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


def test_word_of_the_question_leaves_the_number_alone():
    assert in_english("63 карандаша", question="Сколько карандашей?") == "63"
    assert in_english("63 карандаша", question="") == "63 карандаша"


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
    assert not CHANGING_ELSEWHERE & (LINKS_ELSEWHERE | set(SPELLINGS))
