r"""Decides whether an answer agrees with the truth: texts and numbers here, expressions by an
algebra system.

If the truth is a number, with or without a unit, every part of the statement must be that number
(`statements`), in a unit that does not contradict it: `18` and `18 dollars` agree, `18 dollars` and
`18 euros` do not; a second part restates the number, in another unit or rounded. Any other truth
needs the same text, or mathematics that an algebra system finds equal (`mathematics`).
"""

import itertools
import re
from fractions import Fraction

from envs.math.comparing.expressions import NoExpression, compute
from envs.math.finding.line_marks import MAX_ANSWER_CHARACTERS
from envs.math.parsing.contrasts import contrasted
from envs.math.parsing.conversions import converted, same_amount, units_of_the_kind
from envs.math.parsing.introductions import is_label
from envs.math.parsing.markup import without_markup
from envs.math.parsing.mathematics import COMMAND, ExpressionPair, is_mathematics, without_units
from envs.math.parsing.notation import (
    are_of_two_kinds,
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
from envs.math.parsing.plain_text import DRESS, plain
from envs.math.parsing.quantities import SIMPLE, Quantity, read_quantity, same_units
from envs.math.parsing.questions import (
    asked_base,
    asked_units,
    asks_percentage,
    contradicts,
    echoes,
)
from envs.math.parsing.statements import (
    APPROXIMATELY,
    EQUALS,
    Part,
    RoundedQuantity,
    read_statement,
    without_label,
)
from envs.math.parsing.vocabulary import CHANGING

TIME = re.compile(r"(?P<clock>[0-9]{1,2}:[0-9]{2})(?: ?(?P<half>[ap])\.? ?m\.?)?", re.IGNORECASE)
SAID_AGAIN = re.compile(
    r"[\s$]*,?[\s$]*\b(?:(?:or )?equivalently|i\.e\.|that is|in other words),?[\s$]*(?:all )?[\s$]*"
)
"""Between two notations of one thing."""
CHOICE = re.compile(r"[A-J]")
DECIMAL_PLACES = 6  # from which an answer may be a rounded fraction, as in math-verify
NEAR = Fraction(1, 10**5)  # largest distance from the fraction, relative to the truth
LISTED = re.compile(r"[0-9],(?![0-9]{3}(?![0-9]))")
NO_NUMBER = re.compile(
    r"[<>?'`\"@#&|;:~,]|(?<!\\sum)(?<!\\prod)_|\.\."
    r"|\\(?:pm|mp|[lc]?dots|neq?|not|l[et]q?|g[et]q?|in|approx|sim|to|cup|cap|quad)(?![A-Za-z])"
    r"|[0-9]\s+[0-9]|\\\{"
    r"|[0-9] +[a-z] +[0-9]"  # a word of another language: `3 e 5`
    r"|\\[0-9]|[!%]\s*[0-9]"  # a command without a name; no operator between two numbers
    r"|^ *[*/^!%]|[-+*/^] *$|[\x00-\x08\x0e-\x1f\x7f]"  # no operand; control characters
)
TIMES = re.compile(r"(?<=[0-9)]) ?(?:x ?(?=[0-9(])|(?=\())")
FREE_LETTER = re.compile(r"(?<=[0-9])[abdfghj-z](?![A-Za-z])|(?<![A-Za-z])[abdfghj-wyz](?=[0-9])")
"""A letter next to a number is a variable or an unknown unit: `42h`, `3+a4`; `x4` may be a product.
"""
POWER = re.compile(r"([0-9]{1,4})\^(?:([0-9])|\{([0-9]{1,2})\})")
ONE_LETTER = re.compile(r"[0-9\s]*[A-Za-z][0-9\s]*")
"""A multiple of a variable, of i or of e; the only whole number among these is 0. `1e3` is read as
a number."""


def agreement(truth: str, answer: str, *, question: str = "") -> bool | tuple[ExpressionPair, ...]:
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


def _mathematics_agrees(
    truth: str, answer: str, *, question: str
) -> bool | tuple[ExpressionPair, ...]:
    wanted_time, time = TIME.fullmatch(plain(truth)), TIME.fullmatch(without_markup(plain(answer)))
    if wanted_time is not None and time is not None:
        return _same_time(wanted_time, time)
    truth = with_named_sets(truth)
    if "\\pm" not in answer and "\u00b1" not in answer:
        truth = both_signs(truth)
    answer = with_named_sets(without_label(answer))
    if are_of_two_kinds(truth, answer):
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
    wanted_latex = in_latex(without_units(without_markup(truth)))
    rounding = list[ExpressionPair]()
    approximate = APPROXIMATELY.search(answer)
    if approximate is not None and answer[: approximate.start()].strip():
        rounded = read_quantity(without_markup(answer[approximate.end() :].strip(" ()$")))
        if rounded is None or not rounded.places:
            return False
        decimal = f"{float(rounded.value):.{rounded.places}f}"
        rounding = [ExpressionPair(wanted_latex, decimal, rounded.places)]
        answer = re.sub(
            r"[\s$(,;]*(?:\b(?:or|which is|that is|i\.e\.),?)?[\s$(]*$",
            "",
            answer[: approximate.start()],
        )
    sides = _sides(truth, as_list(truth, answer), question=question)
    answers = [without_units(without_markup(side)) for side in sides]
    if not all(is_mathematics(side, truth=truth) for side in answers):
        return False
    return (*(ExpressionPair(wanted_latex, in_latex(side)) for side in answers), *rounding)


def _same_time(truth: re.Match[str], answer: re.Match[str]) -> bool:
    """Whether two times are the same; a.m. or p.m. may be left out."""
    halves = {time["half"].lower() for time in (truth, answer) if time["half"]}
    return len(halves) < 2 and truth["clock"] == answer["clock"]


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


def is_share(number: Quantity) -> bool:
    """Whether a number may be meant as a share of 1, which makes a percent sign ambiguous."""
    return "%" not in number.units and number.value.denominator > 1 and abs(number.value) < 1


def is_percentage(part: Part) -> bool:
    """Whether a part has a percent sign."""
    quantity = part.quantity if isinstance(part, RoundedQuantity) else part
    return isinstance(quantity, Quantity) and "%" in quantity.units


def truth_quantity(truth: str) -> Quantity | None:
    """The number that `truth` is; None for a list, an expression or a text."""
    if LISTED.search(truth):
        return None
    quantity = read_quantity(without_markup(truth))
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


def number_agrees(
    number: Quantity, parts: tuple[Part, ...], *, question: str
) -> bool | tuple[ExpressionPair, ...]:
    """Whether all `parts` are `number`, or the comparisons that have to hold for it."""
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
            if isinstance(verdict, ExpressionPair):
                open_comparisons.append(verdict)
            elif not verdict:
                return False
        elif isinstance(part, RoundedQuantity):
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
    """Whether `part` is the truth, in its own unit or in the question's."""
    if not number.units and contradicts(part, question):
        return False
    if part.compound:
        return _compound_agrees(number, part, question=question)
    return equal_numbers(number.value, part) and same_units(number, part)


def _compound_agrees(number: Quantity, part: Quantity, *, question: str) -> bool:
    """Whether an amount in several units is the truth: in the truth's unit, in one that the
    question asks for, or in any unit if neither names one.
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


def _is_rounded(number: Quantity, part: RoundedQuantity, *, alone: bool, question: str) -> bool:
    if not number.units and contradicts(part.quantity, question):
        return False
    share = "%" in part.quantity.units and "%" not in number.units and not alone
    gap = abs(part.quantity.value - number.value * (100 if share else 1))
    rounding = Fraction(1, 2 * 10**part.quantity.places)
    return (share or same_units(number, part.quantity)) and (
        number.value.denominator > 1 and gap == 0 if alone else gap <= rounding
    )


def _expression_agrees(number: Quantity, part: str) -> bool | ExpressionPair:
    try:
        return compute(TIMES.sub("*", part)).value == number.value
    except NoExpression:
        pass
    expression = without_units(part)
    value = number.value
    power = POWER.fullmatch(expression)
    if power is not None:
        return int(power[1]) ** int(power[2] or power[3]) == value
    if (
        FREE_LETTER.search(COMMAND.sub(" ", expression))
        or (value and value.denominator == 1 and ONE_LETTER.fullmatch(expression))
        or NO_NUMBER.search(expression)
        or _is_open(expression)
        or not is_mathematics(expression, truth="")
    ):
        return False
    return ExpressionPair(
        f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
        if value.denominator > 1
        else str(value),
        in_latex(expression),
    )


def _is_open(expression: str) -> bool:
    """Whether a bracket has no partner: `4(0`."""
    return any(
        expression.count(pair[0]) != expression.count(pair[1]) for pair in ("()", "[]", "{}")
    )
