r"""Converts text to plain characters: one form of minus and of thousands separator, fractions as
`1/2`, and no LaTeX spacing or markup around numbers and units.

Left out: mathematics for an algebra system (`notation`).
"""

import re
from fractions import Fraction

TIE = re.compile(r"(?<=[\w}${])~(?=[\w\\{$])")
GROUPING = re.compile(
    r"(?<=[0-9])(?:\{,\}|,\\!|\\[,;:! ]|['\u2019\u00a0\u2007\u2009\u202f])(?=[0-9]{3}(?![0-9]))"
)
SPACED_GROUPS = re.compile(r"(?<![0-9.,/])[0-9]{1,3}(?: [0-9]{3})+(?![0-9/]|\.[0-9]{4})")
UNDERSCORED = re.compile(r"(?<![\w.])[0-9]{1,3}(?:_[0-9]{3})+(?![\w.])")
"""`1_000_000`, as programming languages group digits."""
DECIMALS = re.compile(r",[0-9]{1,2}(?![0-9,])")
DRESS = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mathsf|mbox|hbox|operatorname"
    r"|boldsymbol|bf|rm|unit|boxed|fbox|underline)"
    r" ?\{([^{}]*)\}"
)
MEASURED = re.compile(r"\\(?:SI|qty) ?\{([^{}]*)\} ?\{([^{}]*)\}")
POWER_OF_TEN = re.compile("(?<=10)[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207b]+")
REPEATING = re.compile(r"([0-9]{0,30})\.([0-9]{0,30})\\(?:overline|bar) ?\{([0-9]{1,30})\}")
FRACTION = re.compile(r"\\[dtc]?frac *(?:\{ *(-?[0-9]+) *\} *\{ *([0-9]+) *\}|([0-9]) *([0-9]))")
PLAIN = (
    (re.compile(r"[\u2010-\u2013\u2212\ufe63]"), "-"),
    (
        re.compile(
            r"\\[,;:! ]|\\q?quad(?![a-z])|\\(?:left|right|displaystyle)(?![a-z])"
            r"|[\u00a0\u2000-\u200a\u202f\u3000]"
        ),
        " ",
    ),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\\$|\\dollar"), "$"),
    (re.compile(r"\\pounds|\\textsterling"), "£"),
    (re.compile(r"\\euro|\\texteuro"), "€"),
    (re.compile(r"\\Omega(?![a-z])|[\u03a9\u2126]"), " ohm"),
    (
        re.compile(r"\^ ?\{? ?\\(?:circ|degree)(?![a-z]) ?\}?|\\(?:degree|textdegree)(?![a-z])|º"),
        "°",
    ),
    (re.compile(r"\\(?:times|cdot)(?![a-z])|[\u00d7\u00b7]"), "*"),
    (
        re.compile(r"\\[dt]?frac *\{ *([A-Za-z]+) *\} *\{ *([A-Za-z]+ ?(?:\^ ?\{?[23]\}?)?) *\}"),
        r" \1/\2",
    ),
    (re.compile(r"²"), "^2"),
    (re.compile(r"³"), "^3"),
    (re.compile(r"\bper cent\b"), "%"),
    (re.compile(r"(?<=[0-9]) out of (?=[0-9]+$)"), "/"),
)
FRACTIONS = "1/2 1/3 2/3 1/4 3/4 1/5 2/5 3/5 4/5 1/6 5/6 1/7 1/8 3/8 5/8 7/8 1/9 1/10"
VULGAR = dict(zip("½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒", FRACTIONS.split(), strict=True))
RAISED, LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹", "₀₁₂₃₄₅₆₇₈₉"
SLASHED = re.compile(rf"(?P<top>[{RAISED}]+|[0-9]+)[\u2044\u2215/](?P<bottom>[{LOWERED}]+|[0-9]+)")
DIGITS = str.maketrans(RAISED + LOWERED, "0123456789" * 2)


def plain(text: str) -> str:
    r"""`text` in plain characters: no LaTeX spacing, markup or numeric fractions, one kind of minus
    and of thousands separator.
    """
    if text.isascii() and not set(text) & set("\\{$~' "):
        return text
    text = GROUPING.sub(",", TIE.sub(" ", unslashed(text)))
    text = MEASURED.sub(r"\1 \2", POWER_OF_TEN.sub(_power_of_ten, text))
    for _ in range(3):
        text = DRESS.sub(r" \1 ", text)
    text = REPEATING.sub(_fraction, text)
    text = FRACTION.sub(lambda match: f" {match[1] or match[3]}/{match[2] or match[4]}", text)
    for pattern, replacement in PLAIN:
        text = pattern.sub(replacement, text)
    for character in VULGAR.keys() & set(text):
        text = text.replace(character, f" {VULGAR[character]}")
    text = " ".join(text.split())
    return SPACED_GROUPS.sub(_joined_groups, text)


def ungrouped(text: str) -> str:
    """`text` with `1_000` as `1000`."""
    return UNDERSCORED.sub(lambda match: match[0].replace("_", ""), text)


def _joined_groups(match: re.Match[str]) -> str:
    """`12 500` as `12,500`, and `12 500` before a decimal comma as `12500`."""
    return match[0].replace(" ", "" if DECIMALS.match(match.string, match.end()) else ",")


def unslashed(text: str) -> str:
    """`text` with `⁵⁄₁₂` as `5/12`, and after a whole number with a space: `3⁵⁄₁₂`."""
    if text.isascii():
        return text
    return SLASHED.sub(
        lambda match: f"{_space(match)}{match[0].translate(DIGITS)}".replace("\u2044", "/").replace(
            "\u2215", "/"
        ),
        text,
    )


def _power_of_ten(match: re.Match[str]) -> str:
    """`10⁵` as `10^5`."""
    return f"^{match[0].translate(DIGITS).replace(chr(0x207B), '-')}"


def _space(match: re.Match[str]) -> str:
    return (
        " "
        if match["top"][0] in RAISED and match.string[match.start() - 1 : match.start()].isdecimal()
        else ""
    )


def _fraction(decimal: re.Match[str]) -> str:
    r"""`0.1\overline{6}` as a fraction, 1/6."""
    fixed, period = decimal[1] + decimal[2], decimal[3]
    number = Fraction(
        int(fixed + period) - int(fixed or 0), 10 ** len(decimal[2]) * (10 ** len(period) - 1)
    )
    return f"{number.numerator}/{number.denominator}"
