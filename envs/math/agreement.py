r"""Whether an answer agrees with the truth: numbers and texts here, expressions by an algebra
system.

A truth that is a number, with or without a unit, wants a statement all of whose parts are that
number (`envs.math.statements`). Units must not contradict: `18` and `18 dollars` agree, `18
dollars` and `18 euros` do not. Any other truth wants the same text, or mathematics that an algebra
system finds equal. Prose is never handed on, because algebra systems read past words.
"""

import re
from fractions import Fraction
from typing import NamedTuple

from envs.math.expressions import NoExpression, compute
from envs.math.notation import NOTATION, as_interval, as_list, in_latex, numeral
from envs.math.quantities import DRESS, SIMPLE, Quantity, is_unit, plain, read_quantity, same_units
from envs.math.questions import asked_base, asks_percentage, contradicts
from envs.math.statements import (
    APPROXIMATELY,
    Part,
    Rounded,
    read_statement,
    undressed,
    without_label,
)
from envs.math.vocabulary import CHANGING

DECIMAL_PLACES = 6  # of an answer that may be a rounded fraction, as in math-verify
NEAR = Fraction(1, 10**5)  # and how near it must be, relative to the truth
LISTED = re.compile(r"[0-9],(?![0-9]{3}(?![0-9]))")
FUNCTION_NAMES = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp sqrt pi mod gcd lcm max min cis"
FUNCTIONS = frozenset(FUNCTION_NAMES.split())
COMMAND = re.compile(r"\\[A-Za-z]+")
LETTERS = re.compile(r"[A-Za-z]{2,}")
NO_NUMBER = re.compile(
    r"[<>?'\"@#&|;:~,]|(?<!\\sum)(?<!\\prod)_|\.\."
    r"|\\(?:pm|mp|[lc]?dots|neq?|not|l[et]q?|g[et]q?|in|approx|sim|to|cup|cap|quad)(?![A-Za-z])|[0-9] +[0-9]|\\\{"
)
NO_MATHEMATICS = re.compile(r"[?@#\"]|~~")
TRAILING_UNIT = re.compile(
    r"(?:\\[,;: ]|\s)*\\(?:text|mathrm|mbox|textrm)\s*\{([^{}]*)\}\s*(?:\^ ?\{?[23]\}?)?$"
)
TIMES = re.compile(r"(?<=[0-9)]) ?x ?(?=[0-9(])")
FREE_LETTER = re.compile(r"(?<=[0-9])[abdfghj-z](?![A-Za-z])")
"""A letter at a number is a variable or a unit that is no known one: `42h`."""
CHOICE = re.compile(r"[A-J]")


class Comparison(NamedTuple):
    """What an algebra system has to find equal."""

    truth: str
    answer: str


def agreement(truth: str, answer: str, *, question: str = "") -> bool | tuple[Comparison, ...]:
    """Whether `answer` is `truth`, or the comparisons that all have to hold for it."""
    if SIMPLE.fullmatch(truth) and SIMPLE.fullmatch(answer):
        return int(truth) == int(answer)
    if _same_text(truth, answer):
        return True
    number = truth_quantity(truth)
    if number is None:
        return _mathematics_agrees(truth, answer)
    said = numeral(undressed(answer))
    if said is not None:
        return said.base == asked_base(question) and said.digits == truth.strip()
    parts = read_statement(answer, question=question)
    if not number.units and any(_contradicts(part, question) for part in parts):
        return False
    if (
        _is_share(number)
        and not asks_percentage(question)
        and all(_is_percentage(part) for part in parts)
    ):
        return False
    return _number_agrees(truth, number, parts)


def _is_share(number: Quantity) -> bool:
    """Whether a number may be meant as a share of 1, so that a percent sign would have two
    readings.
    """
    return "%" not in number.units and number.value.denominator > 1 and abs(number.value) < 1


def _is_percentage(part: Part) -> bool:
    quantity = part.quantity if isinstance(part, Rounded) else part
    return isinstance(quantity, Quantity) and "%" in quantity.units


def truth_quantity(truth: str) -> Quantity | None:
    """The number that `truth` is, or None where it is a list, an expression or a text."""
    if LISTED.search(truth):
        return None
    quantity = read_quantity(undressed(truth))
    if quantity is not None:
        return quantity
    parts = read_statement(truth)
    return parts[0] if len(parts) == 1 and isinstance(parts[0], Quantity) else None


def equal_numbers(truth: Fraction, answer: Quantity) -> bool:
    """Whether `answer` is `truth`, or `truth` with at least six decimal places where it has no end."""
    if truth == answer.value:
        return True
    if answer.places < DECIMAL_PLACES or (truth * 10**answer.places).denominator == 1:
        return False
    gap = abs(truth - answer.value)
    return gap < Fraction(1, 10**answer.places) and gap <= NEAR * abs(truth)


def _number_agrees(
    truth: str, number: Quantity, parts: tuple[Part, ...]
) -> bool | tuple[Comparison, ...]:
    if not parts:
        return False
    open_comparisons, exact = [], False
    percent = any(
        isinstance(part, Quantity)
        and ("%" in part.units) == ("%" in number.units)
        and part.value == number.value
        for part in parts
    )
    for part in parts:
        if isinstance(part, str):
            verdict = _expression_agrees(truth, number, part)
            if isinstance(verdict, Comparison):
                open_comparisons.append(verdict)
            elif not verdict:
                return False
        elif not _part_agrees(number, part, alone=len(parts) == 1, percent=percent):
            return False
        exact = exact or isinstance(part, Quantity)
    return tuple(open_comparisons) if open_comparisons else True


def _contradicts(part: Part, question: str) -> bool:
    quantity = part.quantity if isinstance(part, Rounded) else part
    return isinstance(quantity, Quantity) and contradicts(quantity, question)


def _part_agrees(number: Quantity, part: Quantity | Rounded, *, alone: bool, percent: bool) -> bool:
    if isinstance(part, Rounded):
        rounding = Fraction(1, 2 * 10**part.quantity.places)
        gap = abs(part.quantity.value - number.value)
        return same_units(number, part.quantity) and (
            number.value.denominator > 1 and gap == 0 if alone else gap <= rounding
        )
    if equal_numbers(number.value, part):
        return same_units(number, part)
    if not percent or alone:
        return False
    # 0.5 = 50%: a restatement of the part that is the answer.
    return number.value == (part.value / 100 if "%" in part.units else part.value * 100)


def _expression_agrees(truth: str, number: Quantity, part: str) -> bool | Comparison:
    try:
        return compute(TIMES.sub("*", part)).value == number.value
    except NoExpression:
        pass
    expression = without_units(part)
    if (
        FREE_LETTER.search(COMMAND.sub(" ", expression))
        or NO_NUMBER.search(expression)
        or not is_mathematics(expression, truth="")
    ):
        return False
    value = number.value
    return Comparison(
        f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
        if value.denominator > 1
        else str(value),
        in_latex(expression),
    )


def _mathematics_agrees(truth: str, answer: str) -> bool | tuple[Comparison, ...]:
    answer = as_interval(truth, without_label(answer))
    if "pmatrix" in truth:
        answer = answer.replace("{bmatrix}", "{pmatrix}")
    if _same_text(truth, answer):
        return True
    wanted, said = numeral(truth), numeral(answer)
    if wanted is not None and said is not None:
        return wanted == said
    if CHOICE.fullmatch(_letters(truth)):
        return _same_choice(_letters(truth), answer)
    approximate = APPROXIMATELY.search(answer)
    if approximate is not None and answer[: approximate.start()].strip():
        answer = answer[: approximate.start()]
    answer = without_units(as_list(truth, answer))
    if not is_mathematics(answer, truth=truth):
        return False
    return (Comparison(in_latex(without_units(undressed(truth))), in_latex(answer)),)


def _same_choice(letter: str, answer: str) -> bool:
    """Whether `answer` is the option `letter`, alone or with its text: `(B)`, `B.`, `(B) 18`."""
    answer = " ".join(plain(answer).split()).strip("$ ")
    answer = re.sub(r"^(?:option|choice) +(?=\(?[A-J]\b)", "", answer, flags=re.IGNORECASE)
    answer = answer.upper() if re.fullmatch(r"\(?[a-j]\)?", answer) else answer
    option = re.match(r"\(? ?([A-J]) ?(?:\)|[.:)](?= )|$)", answer)
    if option is None or option[1] != letter:
        return False
    rest = answer[option.end() :]
    words = {word.lower() for word in re.findall(r"[A-Za-z]+", rest)}
    return not words & CHANGING and re.search(r"\([A-J]\)", rest) is None


def without_units(text: str) -> str:
    r"""`text` without a unit in `\text{...}`, a percent or degree sign at its end."""
    unit = TRAILING_UNIT.search(text)
    if unit is not None and unit.start() and is_unit(unit[1]):
        text = text[: unit.start()]
    return text.strip()


def is_mathematics(text: str, *, truth: str) -> bool:
    """Whether `text` holds nothing but mathematics: no words but functions, those of the truth, and
    products of its letters.
    """
    if NO_MATHEMATICS.search(text) and not NO_MATHEMATICS.search(truth):
        return False
    if not all(
        character.isascii() or character in NOTATION or character in truth for character in text
    ):
        return False
    known = {word.lower() for word in LETTERS.findall(truth)}
    if any(
        re.search(r"[A-Za-z]", match[1]) and match[1].strip() not in truth
        for match in DRESS.finditer(text)
    ):
        return False
    letters = set(COMMAND.sub(" ", truth))
    words = [
        word
        for word in LETTERS.findall(COMMAND.sub(" ", text))
        if word.lower() not in known and word not in FUNCTIONS
    ]
    return all(_is_product(word, letters) for word in words)


def _is_product(word: str, letters: set[str]) -> bool:
    return len(word) <= 4 and word.lower() not in CHANGING and set(word) <= letters


def _same_text(truth: str, answer: str) -> bool:
    if truth.strip() == answer.strip():
        return bool(truth.strip())
    truth, answer = _compact(truth), _compact(answer)
    return bool(truth) and truth == answer


def _compact(text: str) -> str:
    """`text` without dress and spaces; words in lower case."""
    text = undressed(text)
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
