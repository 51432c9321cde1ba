r"""Decides whether an answer agrees with the truth: texts here, numbers in
`envs.math.number_agreement`, expressions by an algebra system.

If the truth is a number, with or without a unit, every part of the statement must be that number
(`envs.math.statements`). Any other truth needs the same text, or mathematics
(`envs.math.mathematics`) that an algebra system finds equal.
"""

import itertools
import re

from envs.math.approximation import is_rounding_of, size_of
from envs.math.contrasts import contrasted
from envs.math.introductions import is_label
from envs.math.line_marks import MAX_ANSWER_CHARACTERS
from envs.math.markup import without_markup
from envs.math.mathematics import Comparison, is_mathematics, without_units
from envs.math.notation import (
    are_of_two_kinds,
    are_of_two_letters,
    as_interval,
    as_list,
    as_ratio,
    both_signs,
    in_brackets_of,
    in_latex,
    numeral,
    with_named_sets,
    with_parameter_of,
)
from envs.math.number_agreement import is_percentage, is_share, number_agrees, truth_quantity
from envs.math.plain_text import DRESS, plain
from envs.math.quantities import SIMPLE, read_quantity
from envs.math.questions import asked_base, asks_percentage, echoes
from envs.math.statements import APPROXIMATELY, EQUALS, read_statement, without_label
from envs.math.vocabulary import CHANGING

TIME = re.compile(r"(?P<clock>[0-9]{1,2}:[0-9]{2})(?: ?(?P<half>[ap])\.? ?m\.?)?", re.IGNORECASE)
SAID_AGAIN = re.compile(
    r"[\s$]*,?[\s$]*\b(?:(?:or )?equivalently|i\.e\.|that is|in other words),?[\s$]*(?:all )?[\s$]*"
)
"""Between two notations of one thing."""
CHOICE = re.compile(r"[A-J]")


def agreement(truth: str, answer: str, *, question: str = "") -> bool | tuple[Comparison, ...]:
    """Whether `answer` is `truth`, or the comparisons that must all hold for it."""
    if SIMPLE.fullmatch(truth) and SIMPLE.fullmatch(answer):
        return int(truth) == int(answer)
    if len(truth) > MAX_ANSWER_CHARACTERS:
        return _same_text(truth, answer)  # Python refuses to read more than 4,300 digits
    if _same_text(truth, answer):
        return True
    if question and echoes(without_markup(answer), question, truth=truth):
        return False
    number = truth_quantity(truth)
    if number is None:
        return _mathematics_agrees(truth, answer, question=question)
    said = numeral(without_markup(answer))
    if said is not None:
        return said.base == asked_base(question) and said.digits == truth.strip()
    parts = read_statement(answer, question=question)
    if (
        is_share(number)
        and not asks_percentage(question)
        and all(is_percentage(part) for part in parts)
    ):
        return False
    return number_agrees(number, parts, question=question)


def _mathematics_agrees(truth: str, answer: str, *, question: str) -> bool | tuple[Comparison, ...]:
    wanted_time, time = TIME.fullmatch(plain(truth)), TIME.fullmatch(without_markup(plain(answer)))
    if wanted_time is not None and time is not None:
        return _same_time(wanted_time, time)
    truth = with_named_sets(truth)
    if "\\pm" not in answer and "\u00b1" not in answer:
        truth = both_signs(truth)
    answer = with_named_sets(without_label(answer))
    if are_of_two_kinds(truth, answer) or are_of_two_letters(answer):
        return False
    answer = as_ratio(truth, answer)
    answer = as_interval(truth, in_brackets_of(truth, with_parameter_of(truth, answer)))
    if "pmatrix" in truth:
        answer = answer.replace("{bmatrix}", "{pmatrix}")
    if _same_text(truth, answer):
        return True
    wanted, said = numeral(truth), numeral(answer)
    if wanted is not None and said is not None:
        return wanted == said
    if CHOICE.fullmatch(_letters(truth)):
        return _same_choice(_letters(truth), answer)
    contrast = contrasted(answer)
    if contrast is not None:
        if _compact(contrast.answer) == _compact(contrast.denied):
            return False
        answer = contrast.answer
    restated = [part for part in SAID_AGAIN.split(answer) if part.strip()]
    if len(restated) > 1:
        again = [_mathematics_agrees(truth, part, question=question) for part in restated]
        pairs = [pair for pair in again if not isinstance(pair, bool)]
        return all(again) and (tuple(itertools.chain(*pairs)) or True)
    approximate = APPROXIMATELY.search(answer)
    if approximate is not None and answer[: approximate.start()].strip():
        if not _rounds(truth, answer[approximate.end() :]):
            return False
        answer = re.sub(
            r"[\s$(,;]*(?:\b(?:or|which is|that is|i\.e\.),?)?[\s$(]*$",
            "",
            answer[: approximate.start()],
        )
    sides = _sides(truth, as_list(truth, answer), question=question)
    answers = [without_units(without_markup(side)) for side in sides]
    if not all(is_mathematics(side, truth=truth) for side in answers):
        return False
    return tuple(
        Comparison(in_latex(without_units(without_markup(truth))), in_latex(side))
        for side in answers
    )


def _same_time(truth: re.Match[str], answer: re.Match[str]) -> bool:
    """Whether two times are the same; a.m. or p.m. may be left out."""
    halves = {time["half"].lower() for time in (truth, answer) if time["half"]}
    return len(halves) < 2 and truth["clock"] == answer["clock"]


def _rounds(truth: str, text: str) -> bool:
    """Whether `text` is the truth's value rounded to its own decimal places."""
    rounded = read_quantity(without_markup(text.strip(" ()$")))
    value = size_of(in_latex(without_units(without_markup(truth))))
    if rounded is None or value is None or not rounded.places:
        return False
    return is_rounding_of(value, rounded=float(rounded.value), places=rounded.places)


def _sides(truth: str, answer: str, *, question: str) -> list[str]:
    r"""The sides of `m = \sqrt{12} = 2\sqrt{3}` without its label, if the truth is no equation."""
    if "=" in truth or "," in answer:
        return [answer]
    sides = EQUALS.split(answer)
    values = [side for side in sides if not is_label(side, question=question)]
    return values if len(sides) > 2 and len(values) > 1 else [answer]


def _same_choice(letter: str, answer: str) -> bool:
    """Whether `answer` is the option `letter`, alone or with its text: `(B)`, `B.`, `(B) 18`."""
    answer = " ".join(plain(answer).split()).strip("$ ")
    answer = re.sub(r"^(?:option|choice) +(?=\(?[A-J]\b)", "", answer, flags=re.IGNORECASE)
    answer = answer.upper() if re.fullmatch(r"\(?[a-j]\)?", answer) else answer
    option = re.match(
        r"\(? ?([A-J]) ?(?:\)|[.:),](?= )|(?<= )(?=[-\u2013\u2014] |because )|$)", answer
    )
    if option is None or option[1] != letter:
        return False
    rest = answer[option.end() :]
    words = {word.lower() for word in re.findall(r"[A-Za-z]+", rest)}
    return not words & CHANGING and re.search(r"\([A-J]\)|\b[B-J]\b", rest) is None


def _same_text(truth: str, answer: str) -> bool:
    if truth.strip() == answer.strip():
        return bool(truth.strip())
    truth, answer = _compact(truth), _compact(answer)
    return bool(truth) and truth == answer


def _compact(text: str) -> str:
    """`text` without markup and spaces, words in lower case."""
    text = without_markup(text)
    for _ in range(3):
        text = DRESS.sub(r"\1", text)
    text = (
        re.sub(r"\\[,;:! ]|\\left(?![a-z])|\\right(?![a-z])|(?<![0-9])\s|\s(?![0-9])", "", text)
        .replace("dfrac", "frac")
        .replace("tfrac", "frac")
    )
    return text.lower() if text.isalpha() and len(text) > 1 else text


def _letters(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "", _compact(text))
