r"""One mathematics in several notations: unicode signs, lists of roots, numerals with a base.

Left out: whether two expressions are equal (`envs.math.verification`).
"""

import re
from typing import NamedTuple

from envs.math.plain_text import DRESS, VULGAR, unslashed
from envs.math.questions import number_of_base

SPELLINGS = {
    "π": "\\pi",
    "θ": "\\theta",
    "\u03b1": "\\alpha",
    "β": "\\beta",
    "\u03b3": "\\gamma",
    "λ": "\\lambda",
    "μ": "\\mu",
    "\u03c3": "\\sigma",
    "φ": "\\phi",
    "ω": "\\omega",
    "Δ": "\\Delta",
    "∞": "\\infty",
    "\u00d7": "\\cdot",
    "·": "\\cdot",
    "⋅": "\\cdot",
    "÷": "\\div",
    "±": "\\pm",
    "≤": "\\le",
    "≥": "\\ge",
    "≠": "\\ne",
    "∈": "\\in",
    "\u222a": "\\cup",
    "∩": "\\cap",
    "\u2216": "\\setminus",
    "∅": "\\emptyset",
    "°": "^\\circ",
}
SPELLINGS |= {sign: f"\\frac{{{value.replace('/', '}{')}}}" for sign, value in VULGAR.items()}
MINUSES = "\u2212\u2013"
SPACED = {sign: f"{command} " for sign, command in SPELLINGS.items()}
SIGNS = str.maketrans(SPACED | dict.fromkeys(MINUSES, "-"))
RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ"
LOWERED = "₀₁₂₃₄₅₆₇₈₉"
EXPONENT, INDEX = re.compile(f"[{RAISED}]+"), re.compile(f"[{LOWERED}]+")
LEVEL = str.maketrans(RAISED + LOWERED, "0123456789+-n0123456789")
ROOT = re.compile(r"(?P<sign>[√∛]) ?(?:\((?P<inner>[^()]*)\)|(?P<single>[0-9]+|[a-zπ]))")
NOTATION = frozenset(SPELLINGS) | frozenset(RAISED + LOWERED + "√∛\u2044\u2215" + MINUSES)
"""Characters outside of ASCII that `in_latex` spells."""

INTERVAL = re.compile(r"\s*(?:\\left ?)?[(\[].*,.*(?:\\right ?)?[)\]]\s*", re.DOTALL)
BELOW = r"(?P<{}><|\\l(?:t|eq?)(?![a-z])|\u2264)"
ABOVE = r"(?P<{}>>|\\g(?:t|eq?)(?![a-z])|\u2265)"
RELATION = re.compile(
    r"[=\u2264\u2265,]|\\(?:[lg](?:t|eq?)|neq?|text|or|and|lor|land)(?![a-z])|[a-z]{2,} "
)
BETWEEN = re.compile(
    rf"(?P<low>[^<>]+?)\s*{BELOW.format('from')}\s*[a-z]\s*{BELOW.format('to')}\s*(?P<high>[^<>]+)"
)
UP_TO = re.compile(rf"[a-z]\s*{BELOW.format('to')}\s*(?P<high>[^<>]+)")
DOWN_TO = re.compile(rf"[a-z]\s*{ABOVE.format('from')}\s*(?P<low>[^<>]+)")
JOINT = re.compile(r",?\s+(?:or|and)\s+")
ROOT_LABEL = re.compile(r"\s*([A-Za-z](?:_\{?[0-9]\}?)?)\s*=")
NUMERAL = re.compile(r"(?P<digits>[0-9A-Fa-f]+)\s*_\s*\{?\s*(?P<base>[0-9]+|[a-z]+)\s*\}?")


class Numeral(NamedTuple):
    """Digits in a base, `10101_2`."""

    digits: str
    base: int


def in_latex(text: str) -> str:
    r"""`text` with unicode mathematics as LaTeX: `2√5` as `2\sqrt{5}`, `x²` as `x^{2}`."""
    if text.isascii():
        return text
    text = ROOT.sub(_root, unslashed(text))
    text = EXPONENT.sub(lambda match: f"^{{{match[0].translate(LEVEL)}}}", text)
    text = INDEX.sub(lambda match: f"_{{{match[0].translate(LEVEL)}}}", text)
    return text.translate(SIGNS)


def _root(match: re.Match[str]) -> str:
    command = "\\sqrt" if match["sign"] == "√" else "\\sqrt[3]"
    return f"{command}{{{match['inner'] or match['single'] or ''}}}"


def as_list(truth: str, answer: str) -> str:
    r"""`x = 1 \text{ or } x = -3` as `1,-3` where `truth` lists as many; others unchanged."""
    wanted = _elements(truth)
    plain = DRESS.sub(r" \1 ", answer).replace("$", " ")
    joined = _outside_brackets(JOINT, plain)
    if len(wanted) < 2 or not joined:
        return answer
    for joint in reversed(joined):
        plain = f"{plain[: joint.start()]},{plain[joint.end() :]}"
    elements = _elements(re.sub(r"^\s*either\b", "", plain))
    if len(elements) != len(wanted) or not all(element.strip() for element in elements):
        return answer
    labels = {match[1] if (match := ROOT_LABEL.match(element)) else "" for element in elements}
    if len(labels - {""}) > 1:
        return answer
    return ",".join(ROOT_LABEL.sub("", element, count=1).strip() for element in elements)


def as_interval(truth: str, answer: str) -> str:
    r"""`-2 \le x < 7` as `[-2,7)` where `truth` is an interval that no point could be; others
    unchanged.
    """
    if not INTERVAL.fullmatch(truth) or (
        "[" not in truth and "]" not in truth and "\\infty" not in truth
    ):
        return answer
    inequality = next(
        (
            match
            for form in (BETWEEN, UP_TO, DOWN_TO)
            if (match := form.fullmatch(answer.strip(" $")))
        ),
        None,
    )
    if inequality is None or RELATION.search(
        "".join(inequality.groupdict().get(end) or "" for end in ("low", "high"))
    ):
        return answer
    found = inequality.groupdict()
    low, high = found.get("low", "-\\infty"), found.get("high", "\\infty")
    opening = "[" if "from" in found and _includes(found["from"]) else "("
    closing = "]" if "to" in found and _includes(found["to"]) else ")"
    return f"{opening}{low.strip()},{high.strip()}{closing}"


def _includes(relation: str) -> bool:
    """Whether an order relation holds of equal numbers."""
    return "e" in relation or relation in "\u2264\u2265"


def _elements(text: str) -> list[str]:
    """`text` cut at its commas outside of brackets."""
    begin, elements = 0, []
    for comma in _outside_brackets(re.compile(","), text):
        elements.append(text[begin : comma.start()])
        begin = comma.end()
    return [*elements, text[begin:]]


def _outside_brackets(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    found = []
    for match in pattern.finditer(text):
        before = text[: match.start()]
        if sum(map(before.count, "([{")) == sum(map(before.count, ")]}")):
            found.append(match)
    return found


def numeral(text: str) -> Numeral | None:
    r"""`text` as digits with a base (`10101_2`, `10101_{\text{two}}`), or None."""
    match = NUMERAL.fullmatch(DRESS.sub(r"\1", in_latex(text)).strip(" $"))
    base = number_of_base(match["base"]) if match is not None else None
    if match is None or base is None:
        return None
    return Numeral(match["digits"].upper().lstrip("0") or "0", base)
