r"""The value of an equation that ends a text.

`Altogether, 19 pink hats + 24 yellow hats = 43 hats.` states 43 hats, as solutions of word problems
end (GSM8K, Cobbe et al. 2021). The numbers and signs before the
last equality sign are computed without their words; where they give the number after it, that is the
stated value, whatever is counted. Where they do not, the equation is read as mathematics
(`envs.math.statements`).
"""

import re
from fractions import Fraction

from envs.math.expressions import NoExpression, compute
from envs.math.provisional import DIGITS, PROVISIONAL, words_asked
from envs.math.quantities import read_quantity
from envs.math.sentences import TAIL
from envs.math.vocabulary import CHANGING, HEDGES, WORDS

RESULT = re.compile(
    r"=\s*(?P<number>[-+]?[$\u20ac\u00a3]?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?)(?![0-9,.]?[0-9])(?P<rest>[^=]*)$"
)
OPERATIONS = {
    r"\s(?:times|multiplied by)\s": " * ",
    r"\splus\s": " + ",
    r"\sminus\s": " - ",
    r"\sdivided by\s": " / ",
    r"\\(?:times|cdot)(?![a-z])|[\u00d7\u00b7]|(?<=[0-9a-z) ])x(?=[ (]?[$0-9])": " * ",
    r"\\div(?![a-z])|\u00f7": " / ",
    r"(?<=[0-9)])(?=\([0-9(])": "*",
    r"[\u2212\u2013]": "-",
    r"%": "/100",
}
SHARE = re.compile(r"(?<=100)/100$")
"""`8/50 * 100% = 16%`: the sign belongs to the result."""
PER = re.compile(r" ?/ ?(?=[A-Za-z])")
GROUPING = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
DECIMAL = re.compile(r"([0-9]{0,9})\.([0-9]{1,9})(?![0-9])")
BEGIN = re.compile(r"(?<![\w.,/)])[-(]{0,2}[$\u20ac\u00a3]?[0-9.]")
CLAUSE = re.compile(r"[,;:](?![0-9])|\b(?:because|so|is|are|was|be)\b")
ARITHMETIC = re.compile(r"[-+*/().0-9 ]+")
OPERATED = re.compile(r"[0-9)] *[-+*/]+ *[(0-9]")
CIRCUMSTANCES = re.compile(r"[A-Za-z0-9,'\u2019 ()/.$-]{0,160}")
MAX_BEGINNINGS = 12
MAX_WORDS = 6


def computed_value(sentence: str, *, question: str) -> tuple[str, str, str] | None:
    """The words before the equation that ends `sentence`, its left side, and its value with its
    unit; None where it ends in none, or the equation does not hold, or words change its value.
    """
    result = RESULT.search(sentence)
    if result is None:
        return None
    terms = sentence[: result.start()].rpartition("=")[2]
    lead = sentence[: result.start() - len(terms)]
    number = read_quantity(result["number"])
    if number is None:
        return None
    percent = result["rest"].lstrip().startswith(("%", "\\%"))
    numbers = {number.value, number.value / 100} if percent else {number.value}
    for begin in list(BEGIN.finditer(terms))[:MAX_BEGINNINGS]:
        side = terms[begin.start() :]
        if CLAUSE.search(side):
            continue
        if HEDGES & words_asked(side):
            return None
        if numbers & values_of(side):
            value = _with_unit(result, terms=side, question=question)
            return None if value is None else (lead + terms[: begin.start()], side, value)
    return None


def values_of(side: str) -> set[Fraction]:
    """What the numbers and signs of `side` give without its words, as a share of 100 too."""
    for sign, operation in OPERATIONS.items():
        side = re.sub(sign, operation, side)
    side = GROUPING.sub("", PER.sub(" ", side))
    side = " ".join(re.sub(r"[A-Za-z'\u2019]+\.?|[$\u20ac\u00a3]", " ", side).split())
    side = DECIMAL.sub(_as_fraction, side)
    values = set[Fraction]()
    for text in {side, SHARE.sub("", side)}:
        if ARITHMETIC.fullmatch(text) and OPERATED.search(text):
            try:
                values.add(compute(text).value)
            except NoExpression:
                continue
    return values


def _as_fraction(decimal: re.Match[str]) -> str:
    """`18.10` as `(1810/100)`."""
    return f"({decimal[1] or ''}{decimal[2]}/1{'0' * len(decimal[2])})"


def _with_unit(result: re.Match[str], *, terms: str, question: str) -> str | None:
    """The number after the equality sign with its unit; None where words after it change it."""
    rest = result["rest"].rstrip(" .*$")
    if not CIRCUMSTANCES.fullmatch(rest.strip("%$ ")):
        return None
    known = set(DIGITS.findall(question[-TAIL:])) | set(DIGITS.findall(terms))
    if not {number.rstrip(".,") for number in DIGITS.findall(rest)} <= known:
        return None
    ends = [word.end() for word in WORDS.finditer(rest)][:MAX_WORDS]
    for end in [*reversed(ends), len(rest) - len(rest.lstrip("% "))]:
        if read_quantity(result["number"] + rest[:end], question=question) is not None:
            said = words_asked(rest[end:])
            changing = (CHANGING | PROVISIONAL) & said - words_asked(question) or HEDGES & said
            return None if changing else result["number"] + rest[:end]
    return None
