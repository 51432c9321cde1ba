r"""Removes markup around an answer: Markdown, mathematics signs, quotes, tags, and signs that end a
sentence.
"""

import re

MARKUP = re.compile(
    r"<\|[^|>]{1,40}\|>"
    r"|</?(?:eos|(?:final[ _-]?)?answer|b|strong|em|i|p|span|div|br|center"
    r"|code)(?: [^<>]{0,40})? ?/?>|<<[^<>]{0,80}>>|\\n(?![a-z])",
    re.IGNORECASE,
)
COLOURED = re.compile(r"\\(?:text)?color ?\{[a-zA-Z]+\}")
PAIRS = (
    *(
        ("$$", "$$"),
        ("$", "$"),
        ("\\(", "\\)"),
        ("\\[", "\\]"),
        ("**", "**"),
        ("__", "__"),
        ("*", "*"),
        ("_", "_"),
        ("```", "```"),
    ),
    *(
        ("`", "`"),
        ('"', '"'),
        ("'", "'"),
        ("\u201c", "\u201d"),
        ("\u2018", "\u2019"),
        ("\u00ab", "\u00bb"),
    ),
)
LEADING = re.compile(
    r"(?:(?:->|=>|[:=,\u21d2\u2192]|\\(?:implies|Rightarrow|therefore)(?![a-z])|\u2234"
    r"|##+(?= ))\s*)+"
)
TRAILING = (
    ".,;: \t\r\n\\\u3002\u220e\u25a0\u25a1\u2713\u2714\u2705\u2611\ufe0f\u2728"
    "\U0001f389\U0001f38a\U0001f3af\U0001f44d\U0001f4af\U0001f60a\U0001f642"
)
EMPHASISED = (
    re.compile(
        r"(?:^|(?<=[A-Za-z:,.=] )|(?<=[(\n]))"
        r"(\*\*|__|[*_`])(?=\S)([^*_`\n]{1,60})(?<=\S)\1(?=[\s.,;:)!?]|$)"
    ),
    re.compile(r"(?<=[0-9] )(\*\*|__|[*_])([A-Za-z ]{1,60})\1(?=[\s.,;:)!?]|$)"),
)
"""Markdown around a number, and around the unit after it."""


def without_markup(text: str) -> str:
    """`text` without markup, quotes, mathematics signs and brackets around all of it, and without
    signs that end a sentence.
    """
    before = None
    text = COLOURED.sub("", text) if "color" in text else text
    text = MARKUP.sub(" ", text) if "<" in text or "\\n" in text else text
    text = (
        text.removesuffix("</s>") if "<s>" not in text else text
    )  # the end of a sequence, not of struck words
    while text != before:
        before = text
        text = text.strip()
        text = text.rstrip(TRAILING).strip() if not text.endswith(("..", "\u2026")) else text
        for start, end in PAIRS:
            inside = text[len(start) : len(text) - len(end)]
            if (
                text.startswith(start)
                and text.endswith(end)
                and len(text) > len(start + end)
                and start not in inside
                and end not in inside
            ):
                text = inside
        leading = LEADING.match(text)
        text = text[leading.end() :] if leading is not None else text
    return text
