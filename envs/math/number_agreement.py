r"""Whether the parts of a statement are a true number, in a unit that does not contradict it.

`18` and `18 dollars` agree, `18 dollars` and `18 euros` do not; a second part restates the number,
in another unit or rounded, or is an expression that an algebra system compares.
"""

import re
from fractions import Fraction

from envs.math.conversions import converted, same_amount, units_of_the_kind
from envs.math.expressions import NoExpression, compute
from envs.math.markup import without_markup
from envs.math.mathematics import COMMAND, Comparison, is_mathematics, without_units
from envs.math.notation import in_latex
from envs.math.quantities import Quantity, read_quantity, same_units
from envs.math.questions import asked_units, contradicts
from envs.math.statements import Part, Rounded, read_statement

DECIMAL_PLACES = 6  # of an answer that may be a rounded fraction, as in math-verify
NEAR = Fraction(1, 10**5)  # and how near it must be, relative to the truth
LISTED = re.compile(r"[0-9],(?![0-9]{3}(?![0-9]))")
NO_NUMBER = re.compile(
    r"[<>?'\"@#&|;:~,]|(?<!\\sum)(?<!\\prod)_|\.\."
    r"|\\(?:pm|mp|[lc]?dots|neq?|not|l[et]q?|g[et]q?|in|approx|sim|to|cup|cap|quad)(?![A-Za-z])|[0-9] +[0-9]|\\\{"
    r"|[0-9] +[a-z] +[0-9]"  # a word of another language: `3 e 5`
    r"|^ *[*/^]|[-+*/^] *$|[\x00-\x08\x0e-\x1f\x7f]"  # no operand; control characters
)
TIMES = re.compile(r"(?<=[0-9)]) ?x ?(?=[0-9(])")
FREE_LETTER = re.compile(r"(?<=[0-9])[abdfghj-z](?![A-Za-z])")
"""A letter at a number is a variable or a unit that is no known one: `42h`."""


def is_share(number: Quantity) -> bool:
    """Whether a number may be meant as a share of 1, which makes a percent sign ambiguous."""
    return "%" not in number.units and number.value.denominator > 1 and abs(number.value) < 1


def is_percentage(part: Part) -> bool:
    """Whether a part has a percent sign."""
    quantity = part.quantity if isinstance(part, Rounded) else part
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
) -> bool | tuple[Comparison, ...]:
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
