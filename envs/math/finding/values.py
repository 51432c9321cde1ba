r"""Decides whether a piece of a closing text is a value (a quantity, a time, a statement,
mathematics) or a label of one.

Left out: the position of the piece (`lone_values`, `closing_sentences`).
"""

import re

from envs.math.parsing.conversions import read_compound
from envs.math.parsing.markup import without_markup
from envs.math.parsing.mathematics import is_mathematics, without_units
from envs.math.parsing.notation import RATIO, numeral
from envs.math.parsing.provisional import PROVISIONAL
from envs.math.parsing.quantities import SIGN_WORDS, read_quantity, stem, words_of
from envs.math.parsing.statements import read_statement
from envs.math.parsing.vocabulary import AMOUNTS, CHANGING, LINKS, OF_A_SOLUTION, WORDS, words

ITEM = re.compile(r"(?:[-*+\u2022|]|\(?[0-9a-z]{1,2}[.)]|#+)\s+")
CUT_OFF = re.compile(r"(?:[,;:+/=(\[{<-]|\.\.\.?|\u2026|\?)[\s*_$]*$")
NUMBER = re.compile(r"[-+$\u20ac\u00a3]{0,2}\.?[0-9\u00bc-\u00be]")
MATRIX = re.compile(r"\\(?:begin|end)\{(?:[a-z]?matrix|cases)\}")
JOINT = re.compile(
    r"(?:(?<=[0-9})$])|(?<=[0-9]i)),? (?:or"
    r"|and) (?=[$\\(]{0,3}(?:[a-z](?:\([a-z]\))? ?[=<>\u2264\u2265\\]|-?[0-9\\]))"
)
MATHEMATICAL = re.compile(
    r"[0-9]|\\(?:pi|infty|frac|sqrt|mathbb|varnothing|emptyset)"
    r"|[\u03c0\u221e\u00b2\u00b3\u2070-\u209f]|^[a-z]\W"
)
LABEL = re.compile(
    r"(?P<label>[A-Za-z][A-Za-z ']{0,80}?)\s*[:=]\s*(?P<value>(?!.*[a-z]\$? ?= ?[-0-9]).*[0-9].*)",
    re.DOTALL,
)
LABELS = (
    AMOUNTS
    | LINKS
    | words(
        "the final grand overall net result results solution sum product difference quotient "
        "average mean median revenue number altogether conclusion summary so thus therefore hence "
        "simplified "
        "domain range interval midpoint vertex root roots zeros slope limit derivative integral "
        "determinant "
        "inverse gradient center centre radius coordinates ratio probability"
    )
)
NO_LABELS = words(
    "working workings calculation calculations discount loss check verification explanation reason "
    "reasoning remark proof"
)
MAX_LABEL_WORDS = 6
TIME = re.compile(r"[0-9]{1,2}:[0-9]{2}(?: ?[ap]\.?m\.?)?", re.IGNORECASE)


def is_expression(text: str) -> bool:
    """Whether `text` is an expression, an equation, or a list of them joined by `or` and `and`."""
    if sum(map(text.count, "([")) != sum(map(text.count, ")]")):
        return False
    bare = MATRIX.sub(" ", JOINT.sub(", ", without_units(text)).replace("$", " "))
    return is_mathematics(bare, truth="") and MATHEMATICAL.search(bare) is not None


def is_plain_label(label: str, *, question: str) -> bool:
    """Whether `label`, before a colon or an equals sign, only names the requested quantity."""
    said = {word.lower() for word in WORDS.findall(label)}
    if len(label) == 1:
        return True
    asked = {word for word in said if stem(word) in words_of(question)}
    unlike = CHANGING | (PROVISIONAL | OF_A_SOLUTION) - asked | NO_LABELS
    return len(said) <= MAX_LABEL_WORDS and not (unlike & said - LABELS)


def is_value(text: str, *, question: str) -> bool:
    """Whether the whole `text` is one value, possibly restated."""
    inside = without_markup(text)
    if (
        TIME.fullmatch(inside)
        or RATIO.fullmatch(inside)
        or numeral(inside) is not None
        or read_quantity(inside, question=question) is not None
        or read_compound(inside, question=question) is not None
    ):
        return True
    begins = NUMBER.match(inside) or SIGN_WORDS.match(inside)
    parts = read_statement(inside, question=question) if begins else ()
    return is_expression(inside) or (
        bool(parts) and all(not isinstance(part, str) or is_expression(part) for part in parts)
    )
