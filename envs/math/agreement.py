r"""Decides whether an answer agrees with the truth: numbers and texts here, expressions by an
algebra system.

If the truth is a number, with or without a unit, every part of the statement must be that number
(`envs.math.statements`). Units must not contradict: `18` and `18 dollars` agree, `18 dollars` and
`18 euros` do not. Any other truth needs the same text, or mathematics that an algebra system finds
equal. Prose is never passed to the algebra system, which would skip words.
"""

import itertools
import re
from fractions import Fraction
from typing import NamedTuple

from envs.math.approximation import is_rounding_of, size_of
from envs.math.contrasts import contrasted
from envs.math.conversions import converted, same_amount, units_of_the_kind
from envs.math.dress import undressed
from envs.math.expressions import NoExpression, compute
from envs.math.introductions import introduces, is_label
from envs.math.notation import (
    NOTATION,
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
from envs.math.plain_text import DRESS, plain
from envs.math.quantities import SIMPLE, Quantity, is_unit, read_quantity, same_units
from envs.math.questions import asked_base, asked_units, asks_percentage, contradicts, echoes
from envs.math.statements import APPROXIMATELY, EQUALS, Part, Rounded, read_statement, without_label
from envs.math.vocabulary import CHANGING

DECIMAL_PLACES = 6  # of an answer that may be a rounded fraction, as in math-verify
NEAR = Fraction(1, 10**5)  # and how near it must be, relative to the truth
LISTED = re.compile(r"[0-9],(?![0-9]{3}(?![0-9]))")
FUNCTION_NAMES = (
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp sqrt pi mod gcd lcm "
    "max min cis"
)
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
UNIT_IN_WORDS = re.compile(
    r"(?<=[0-9)}\]a-z\u03c0])(?:\\[,;: ]|[\s$])+((?:[A-Za-z]{2,}\.?|/)(?:[ /]+[A-Za-z]{1,})*(?: ?(?:\^ ?\{? ?[23] ?\}?|[\u00b2\u00b3]))?)$"
)
"""`16\\pi square centimetres`, `3\\sqrt{2} cm^2`; a single letter may be a variable."""
TIMES = re.compile(r"(?<=[0-9)]) ?x ?(?=[0-9(])")
FREE_LETTER = re.compile(r"(?<=[0-9])[abdfghj-z](?![A-Za-z])")
"""A letter at a number is a variable or a unit that is no known one: `42h`."""
SENTENCE = re.compile(
    r"(?P<lead>[A-Za-z][A-Za-z ,:'-]*(?:is|are|equals|=|:|has|of)\s+)(?P<value>[-\u2212$\\(\[{0-9\u221a\u03c0\u221e].*)",
    re.DOTALL,
)
TIME = re.compile(r"(?P<clock>[0-9]{1,2}:[0-9]{2})(?: ?(?P<half>[ap])\.? ?m\.?)?", re.IGNORECASE)
MEMBER = re.compile(r"^[\s$]*[a-z]\s*(?:\\in(?![a-z])|\u2208)\s*(?=\$?(?:\\left ?)?[(\[])")
"""`x \\in [1,4]`"""
POSITIVE = re.compile(r"^[\s$]*\+(?=\s*\\infty)")
NOTED = re.compile(r",?\$? (?:in interval notation|\(interval notation\))[.$ ]*$")
AGAIN = (
    r"[\s$]*,?[\s$]*\b(?:(?:or )?equivalently|i\.e\.|that is|in other words),?[\s$]*(?:all )?[\s$]*"
)
SAID_AGAIN = re.compile(AGAIN)
"""Between two notations of one thing."""
RESTATED = re.compile(rf"{AGAIN}|\$?,? (?:or,?|which is) (?:all )?\$?")
"""The same between two notations of one interval."""
CHOICE = re.compile(r"[A-J]")


class Comparison(NamedTuple):
    """Two expressions that an algebra system must find equal."""

    truth: str
    answer: str


def agreement(truth: str, answer: str, *, question: str = "") -> bool | tuple[Comparison, ...]:
    """Whether `answer` is `truth`, or the comparisons that must all hold for it."""
    if SIMPLE.fullmatch(truth) and SIMPLE.fullmatch(answer):
        return int(truth) == int(answer)
    if _same_text(truth, answer):
        return True
    if question and echoes(undressed(answer), question, truth=truth):
        return False
    number = truth_quantity(truth)
    if number is None:
        return _mathematics_agrees(truth, answer, question=question)
    said = numeral(undressed(answer))
    if said is not None:
        return said.base == asked_base(question) and said.digits == truth.strip()
    parts = read_statement(answer, question=question)
    if (
        _is_share(number)
        and not asks_percentage(question)
        and all(_is_percentage(part) for part in parts)
    ):
        return False
    return _number_agrees(number, parts, question=question)


def _is_share(number: Quantity) -> bool:
    """Whether a number may be meant as a share of 1, which makes a percent sign ambiguous."""
    return "%" not in number.units and number.value.denominator > 1 and abs(number.value) < 1


def _is_percentage(part: Part) -> bool:
    quantity = part.quantity if isinstance(part, Rounded) else part
    return isinstance(quantity, Quantity) and "%" in quantity.units


def truth_quantity(truth: str) -> Quantity | None:
    """The number that `truth` is; None for a list, an expression or a text."""
    if LISTED.search(truth):
        return None
    quantity = read_quantity(undressed(truth))
    if quantity is not None:
        return quantity
    parts = read_statement(truth)
    return parts[0] if len(parts) == 1 and isinstance(parts[0], Quantity) else None


def equal_numbers(truth: Fraction, answer: Quantity) -> bool:
    """Whether `answer` is `truth`, or an endless `truth` with at least six decimal places."""
    if truth == answer.value:
        return True
    if answer.places < DECIMAL_PLACES or (truth * 10**answer.places).denominator == 1:
        return False
    gap = abs(truth - answer.value)
    return gap < Fraction(1, 10**answer.places) and gap <= NEAR * abs(truth)


def _number_agrees(
    number: Quantity, parts: tuple[Part, ...], *, question: str
) -> bool | tuple[Comparison, ...]:
    if not parts:
        return False
    own = next(
        (
            part
            for part in parts
            if isinstance(part, Quantity) and _is_answer(number, part, question=question)
        ),
        None,
    )
    open_comparisons = []
    for part in parts:
        if isinstance(part, str):
            verdict = _expression_agrees(number, part)
            if isinstance(verdict, Comparison):
                open_comparisons.append(verdict)
            elif not verdict:
                return False
        elif isinstance(part, Rounded):
            if not _is_rounded(number, part, alone=len(parts) == 1, question=question):
                return False
        elif (
            part != own
            and not (_is_answer(number, part, question=question) and _same_kind(part, own))
            and not _restates(number, part, own)
        ):
            return False
    return tuple(open_comparisons) if open_comparisons else True


def _is_answer(number: Quantity, part: Quantity, *, question: str) -> bool:
    """Whether `part` is the truth, in its unit or the one that the question asks for."""
    if not number.units and contradicts(part, question):
        return False
    if part.compound:
        return _compound_agrees(number, part, question=question)
    return equal_numbers(number.value, part) and same_units(number, part)


def _compound_agrees(number: Quantity, part: Quantity, *, question: str) -> bool:
    """Whether an amount in several units is the truth: in its unit, in one that the question asks
    for, or in any if neither has one.
    """
    units = units_of_the_kind(part.units[0])
    wanted = frozenset(number.units[:1]) or units & asked_units(question) or units
    return any(converted(part, unit) == number.value for unit in wanted)


def _same_kind(part: Quantity, own: Quantity | None) -> bool:
    """Whether two equal numbers are one amount: `5 cents or 5 dollars` are two."""
    if own is None or not (part.units and own.units) or part.units[0] == own.units[0]:
        return True
    return same_amount(part, own) or part.units[0] not in units_of_the_kind(own.units[0])


def _restates(number: Quantity, part: Quantity, own: Quantity | None) -> bool:
    """Whether `part` is the same amount as the answer, in another unit or as a percentage: `0.5 =
    50%`.
    """
    if own is None:
        return False
    if ("%" in part.units) != ("%" in own.units):
        return own.value == (part.value / 100 if "%" in part.units else part.value * 100)
    return same_amount(own, part)


def _is_rounded(number: Quantity, part: Rounded, *, alone: bool, question: str) -> bool:
    if not number.units and contradicts(part.quantity, question):
        return False
    share = "%" in part.quantity.units and "%" not in number.units and not alone
    gap = abs(part.quantity.value - number.value * (100 if share else 1))
    rounding = Fraction(1, 2 * 10**part.quantity.places)
    return (share or same_units(number, part.quantity)) and (
        number.value.denominator > 1 and gap == 0 if alone else gap <= rounding
    )


def _expression_agrees(number: Quantity, part: str) -> bool | Comparison:
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


def _mathematics_agrees(truth: str, answer: str, *, question: str) -> bool | tuple[Comparison, ...]:
    wanted_time, time = TIME.fullmatch(plain(truth)), TIME.fullmatch(undressed(plain(answer)))
    if wanted_time is not None and time is not None:
        return _same_time(wanted_time, time)
    truth = both_signs(with_named_sets(truth))
    answer = POSITIVE.sub("", with_named_sets(without_label(answer)))
    if are_of_two_kinds(truth, answer) or are_of_two_letters(answer):
        return False
    answer = as_ratio(truth, answer)
    if "\\in" not in truth.replace("\\infty", ""):
        answer = MEMBER.sub("", answer)
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
    between = RESTATED if "\\infty" in truth and "\\cup" not in truth else SAID_AGAIN
    restated = [part for part in between.split(NOTED.sub("", answer)) if part.strip()]
    if len(restated) > 1:
        again = [_mathematics_agrees(truth, part, question=question) for part in restated]
        pairs = [pair for pair in again if not isinstance(pair, bool)]
        return all(again) and (tuple(itertools.chain(*pairs)) or True)
    sentence = SENTENCE.fullmatch(answer)
    if (
        sentence is not None
        and introduces(sentence["lead"], question=question)
        and not LETTERS.search(COMMAND.sub(" ", truth))
    ):
        answer = sentence["value"]
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
    answers = [without_units(undressed(side)) for side in sides]
    if not all(is_mathematics(side, truth=truth) for side in answers):
        return False
    return tuple(
        Comparison(in_latex(without_units(undressed(truth))), in_latex(side)) for side in answers
    )


def _same_time(truth: re.Match[str], answer: re.Match[str]) -> bool:
    """Whether two times are the same; a.m. or p.m. may be left out."""
    halves = {time["half"].lower() for time in (truth, answer) if time["half"]}
    return len(halves) < 2 and truth["clock"] == answer["clock"]


def _rounds(truth: str, text: str) -> bool:
    """Whether `text` is the truth's value rounded to its own decimal places."""
    rounded = read_quantity(undressed(text.strip(" ()$")))
    value = size_of(in_latex(without_units(undressed(truth))))
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


def without_units(text: str) -> str:
    r"""`text` without a unit in `\text{...}`, a percent or degree sign at its end."""
    text = re.sub(r"\$(\^\{?[23]\}?)\$", r"\1", text).strip()
    for form in (TRAILING_UNIT, UNIT_IN_WORDS):
        unit = form.search(text)
        if unit is not None and unit.start() and is_unit(unit[1]):
            return text[: unit.start()].strip()
    return text


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
    """`text` without markup and spaces, words in lower case."""
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
