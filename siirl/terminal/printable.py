"""Escapes control characters in foreign text before it is printed on a terminal.

Task names, instructions, outcomes, generated text and errors of user code are printed. An escape
sequence in them could colour, move or overwrite other output, and a lone surrogate cannot be
written at all. Left out: files, which keep the text unchanged.
"""

import unicodedata

LAYOUT = "\n\t"
COMMANDING = (
    "Cc",
    "Cs",
    "Zl",
    "Zp",
)  # control characters, lone surrogates, separators of lines and paragraphs
# These change the order in which letters are shown, which can hide a line's content
# (https://www.unicode.org/reports/tr36/, section 3.1).
REORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str, *, keep: str = LAYOUT) -> str:
    r"""`text` with control characters escaped as in Python, for example `\x1b`.

    Args:
        text: Anything.
        keep: Characters that are not escaped, by default newlines.
    """
    return "".join(
        sign if sign in keep or not _commands(sign) else sign.encode("unicode_escape").decode()
        for sign in text
    )


def _commands(sign: str) -> bool:
    return unicodedata.category(sign) in COMMANDING or sign in REORDERING
