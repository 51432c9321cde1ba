r"""Converts between notations of the same mathematics: unicode signs, lists of roots, numerals with
a base.

Left out: whether two expressions are equal (`verification`).
"""

import re
from typing import NamedTuple

from envs.math.parsing.plain_text import DRESS, VULGAR, unslashed
from envs.math.parsing.questions import number_of_base

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
POWER = re.compile(r"(?<=[0-9A-Za-z)]) ?\*\* ?(?=[-0-9A-Za-z(])")
PROGRAM_EXPONENTIAL = re.compile(r"(?<![A-Za-z])\\?exp ?\(([^()]*)\)")
SETS = (
    (
        re.compile(r"\\varnothing(?![a-z])|\\\{\s*\\\}|\u2205|\bno (?:real )?solutions?\b"),
        "\\\\emptyset",
    ),
    (
        re.compile(r"\\mathbb ?\{?R\}?|\u211d|\ball (?:real numbers|reals)\b"),
        "(-\\\\infty,\\\\infty)",
    ),
    (re.compile(r"^[\s$]*infinity[\s$]*$"), "\\\\infty"),
    (re.compile(r"\bDNE\b"), "does not exist"),
)
"""Names of sets, and of infinity."""
SET = re.compile(r"\s*(?:\\left ?)?\\\{(.*?)(?:\\right ?)?\\\}\s*", re.DOTALL)
TUPLE = re.compile(r"\s*(?:\\left ?)?\((.*?)(?:\\right ?)?\)\s*", re.DOTALL)
ANGLED = re.compile(r"\s*(?:\\left ?)?\\langle(.*?)(?:\\right ?)?\\rangle\s*", re.DOTALL)
COLUMN = re.compile(
    r"\s*\\begin\{(?P<kind>[pb])matrix\}[^&]*\\end\{(?P=kind)matrix\}\s*", re.DOTALL
)
SEVERAL = re.compile(r"(?<!\{),(?!\\!|[0-9]{3}(?![0-9]))|=.*\bor\b.*=", re.DOTALL)
BOTH_SIGNS = re.compile(
    r"[\s$]*(?P<before>[^,;=]*?)(?:\\pm(?![a-z])|±)\s*(?P<after>[^-+,;=]+?)[\s$]*"
)
BRACES = re.compile(r"(?:\\left ?)?\\\{[^()\[\]]*\\\}")
BRACKETS = re.compile(r"(?:\\left ?)?[(\[][^()\[\]]*,[^()\[\]]*[)\]]")
CASES = re.compile(r"\\(?:begin|end)\{cases\}")
PARAMETER = re.compile(r",?\s*([a-z])\s*(?:\\in|\u2208)\s*(?:\\mathbb ?\{?Z\}?|\u2124)")
NOTATION = frozenset(SPELLINGS) | frozenset(RAISED + LOWERED + "√∛\u2044\u2215" + MINUSES)
"""Characters outside of ASCII that `in_latex` spells."""

UNION = re.compile(r"\\cup(?![a-z])|\u222a")
EITHER = re.compile(r"\s*(?:\\text ?\{ *or *\}|\bor\b|\\lor(?![a-z]))\s*")
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
RATIO = re.compile(r"[0-9]+ ?: ?[0-9]+")
IN_RATIO = re.compile(r"^\s*([0-9]+) to ([0-9]+)\s*$")
ROOT_LABEL = re.compile(r"\s*([A-Za-z](?:_\{?[0-9]\}?)?)\s*=")
NUMERAL = re.compile(
    r"(?P<digits>[0-9A-Fa-f]+)\s*(?:_\s*\{?\s*|\((?:in )?base |in base )(?P<base>[0-9]+"
    r"|[a-z]+)\s*[})]?"
)


class Numeral(NamedTuple):
    """Digits in a base, `10101_2`."""

    digits: str
    base: int


def in_latex(text: str) -> str:
    r"""`text` with unicode mathematics as LaTeX: `2√5` as `2\sqrt{5}`, `x²` as `x^{2}`."""
    text = POWER.sub("^", PROGRAM_EXPONENTIAL.sub(r"e^{\1}", text))
    if text.isascii():
        return text
    text = ROOT.sub(_root, unslashed(text))
    text = EXPONENT.sub(lambda match: f"^{{{match[0].translate(LEVEL)}}}", text)
    text = INDEX.sub(lambda match: f"_{{{match[0].translate(LEVEL)}}}", text)
    return text.translate(SIGNS)


def _root(match: re.Match[str]) -> str:
    command = "\\sqrt" if match["sign"] == "√" else "\\sqrt[3]"
    return f"{command}{{{match['inner'] or match['single'] or ''}}}"


def is_several(text: str) -> bool:
    r"""Whether `text` is a point, a set or a list, `1, -1` or `\pm 1`, which no preceding word
    joins to another number.
    """
    text = text.strip().strip("$").strip()
    if any(form.fullmatch(text) for form in (SET, ANGLED)):
        return True
    return "\\pm" in text or "±" in text or SEVERAL.search(text) is not None


def both_signs(text: str) -> str:
    r"""`\pm 5` as `5,-5`, `1 \pm 2i` as `1+2i,1-2i`; others unchanged."""
    signed = BOTH_SIGNS.fullmatch(text)
    if signed is None:
        return text
    before, after = signed["before"].strip(), signed["after"]
    if sum(map(before.count, "([{")) != sum(map(before.count, ")]}")):
        return text
    return f"{before}+{after},{before}-{after}" if before else f"{after},-{after}"


def as_list(truth: str, answer: str) -> str:
    r"""`x = 1 \text{ or } x = -3` as `1,-3` if `truth` lists as many; others unchanged."""
    wanted = _elements(truth)
    plain = DRESS.sub(r" \1 ", answer).replace("$", " ")
    joined = _outside_brackets(JOINT, plain)
    labelled = "=" not in truth and any(
        ROOT_LABEL.match(element) for element in _elements(plain)[1:]
    )
    if len(wanted) < 2 or not (joined or labelled):
        return answer
    for joint in reversed(joined):
        plain = f"{plain[: joint.start()]},{plain[joint.end() :]}"
    elements = _elements(re.sub(r"^\s*either\b", "", plain))
    if len(elements) != len(wanted) or not all(element.strip() for element in elements):
        return answer
    labels = [_root_label(element) for element in elements]
    asked = [_root_label(element) for element in wanted]
    if "" not in labels and labels == asked:
        return ",".join(elements)
    if len({*labels} - {""}) > 1:
        return answer
    return ",".join(ROOT_LABEL.sub("", element, count=1).strip() for element in elements)


def _root_label(element: str) -> str:
    """The label before an element; empty without one."""
    match = ROOT_LABEL.match(element.replace("\\", ""))
    return str(match[1]) if match else ""


def as_ratio(truth: str, answer: str) -> str:
    """`3 to 4` as `3:4` if `truth` is a ratio; others unchanged."""
    if answer.count(":") > truth.count(":") > 0:
        return ""  # a ratio of more parts
    return IN_RATIO.sub(r"\1:\2", answer) if RATIO.fullmatch(truth.strip("$ ")) else answer


def with_named_sets(text: str) -> str:
    r"""`text` with names of sets in one notation: `\mathbb{R}` as `(-\infty,\infty)`."""
    for names, notation in SETS:
        text = names.sub(notation, text)
    return text


def in_brackets_of(truth: str, answer: str) -> str:
    r"""`answer` with the brackets of `truth`: `1, 3 \text{ and } 7` as `\{1,3,7\}`, `x = 4, y = 7`
    as `(4,7)`, `\langle 1,2 \rangle` as a column; others unchanged.
    """
    column, angled = COLUMN.fullmatch(truth), ANGLED.fullmatch(answer.strip("$ "))
    if column is not None and angled is not None:
        rows = "\\\\".join(_elements(angled[1]))
        return f"\\begin{{pmatrix}}{rows}\\end{{pmatrix}}"
    whole = SET.fullmatch(truth)
    if whole is not None and "\\{" not in answer and not answer.lstrip("$ ").startswith("{"):
        listed = as_list(whole[1], answer)
        return answer if listed == answer and "," not in answer else f"\\{{{listed}\\}}"
    whole = TUPLE.fullmatch(truth)
    values = _values_in_order(answer) if whole is not None else []
    if whole is not None and len(values) == len(_elements(whole[1])):
        return f"({','.join(values)})"
    return answer


def _values_in_order(text: str) -> list[str]:
    r"""The values of `x = 4, y = 7`, if their letters are in the order of the alphabet."""
    text = CASES.sub(" ", text).replace("\\\\", ",").replace("$", " ")
    for joint in reversed(_outside_brackets(JOINT, text)):
        text = f"{text[: joint.start()]},{text[joint.end() :]}"
    parts = [part.strip() for part in _elements(text) if part.strip()]
    labels = [match[1] for part in parts if (match := ROOT_LABEL.match(part))]
    if len(labels) < 2 or len(labels) != len(parts) or labels != sorted(set(labels)):
        return []
    return [ROOT_LABEL.sub("", part, count=1).strip() for part in parts]


def with_parameter_of(truth: str, answer: str) -> str:
    r"""`answer` with the integer parameter of `truth`: `2\pi k, k \in \mathbb{Z}` for
    `2\pi n, n \in \mathbb{Z}`.
    """
    wanted = PARAMETER.search(truth)
    said = PARAMETER.search(answer.replace("$", ""))
    if wanted is None or said is None:
        return answer
    bare = PARAMETER.sub("", answer.replace("$", ""), count=1)
    renamed = re.sub(rf"(?<![A-Za-z\\]){said[1]}(?![A-Za-z])", wanted[1], bare)
    named = "=" in truth
    return f"{renamed if named else ROOT_LABEL.sub('', renamed, count=1)}{wanted[0]}"


def as_interval(truth: str, answer: str) -> str:
    r"""`-2 \le x < 7` as `[-2,7)` if `truth` is an interval that cannot be a point; others
    unchanged.
    """
    pieces = UNION.split(truth)
    halves = EITHER.split(answer.replace("$", ""))
    if len(pieces) > 1 and len(pieces) == len(halves):
        return "\\cup".join(map(as_interval, pieces, halves))
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


def are_of_two_kinds(truth: str, answer: str) -> bool:
    r"""Whether one is a set and the other a point or an interval: `\{0,2\}` and `(0,2)`."""
    sides = truth.strip(), answer.strip(" $")
    return any(
        BRACES.fullmatch(one) is not None and BRACKETS.fullmatch(other) is not None
        for one, other in (sides, sides[::-1])
    )


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
