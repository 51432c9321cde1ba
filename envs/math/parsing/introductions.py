r"""Classifies the words before a number. Labels (`x =`, `Total:`) and the words of a plain sentence
leave it unchanged. Other words show that the number is not the answer: it numbers a step or a part,
describes a noun, or was given away when the question asks for the rest.

Left out: numbers that are denied or provisional (`leads`, `provisional`).
"""

import re

from envs.math.parsing.markup import without_markup
from envs.math.parsing.plain_text import plain
from envs.math.parsing.quantities import read_quantity, stem, words_of
from envs.math.parsing.vocabulary import (
    AMOUNTS,
    CHANGING,
    COMPUTED,
    LINKS,
    NUMBERED,
    ORDINARY_VERBS,
    PREFACES,
    SHORT,
    UNITS,
    WORDS,
    is_counted,
)

LABEL = re.compile(r"[^0-9<>!?~\u2260\u2264\u2265\u00b1]*")
ARGUMENTS = re.compile(r"(?<=[A-Za-z])(?:_ ?\{?[0-9A-Za-z]+\}?|\([^()]*\)|'+)")


def introduces(text: str, *, question: str) -> bool:
    """Whether `text` only introduces the number that follows it: a label, or the words of a plain
    sentence.
    """
    text = plain(text).replace("**", " ").replace("`", " ").replace("$", " ")
    if re.search(r"[^A-Za-z\s:=,.'\u2019\"()*_|-]", text) or re.search(
        r"[A-Za-z0-9)]\s*-\s*$", text
    ):
        return False
    return not names_an_operation(text) and all(
        is_introducing(word, question=question) for word in WORDS.findall(text)
    )


def names_an_operation(text: str) -> bool:
    """Whether `text` ends like `the sum of`: the number after it is then not the stated value."""
    match = ENDS_IN_OF.search(text)
    if match is None:
        return False
    article, noun = (match[1] or "").lower(), match[2].lower()
    return noun not in AMOUNTS and not (noun in COMPUTED and article in ("a", "an"))


def is_introducing(word: str, *, question: str) -> bool:
    """Whether `word` before a number leaves it unchanged."""
    lower = word.lower()
    if lower in CHANGING:
        return False
    known = lower in PREFACES or lower in ORDINARY_VERBS or lower in LINKS or is_counted(lower)
    named = len(word) == 1 or _is_name(word) or (lower in UNITS and lower not in SHORT)
    return known or named or stem(lower.partition("'")[0]) in words_of(question)


def _is_name(word: str) -> bool:
    return word[0].isupper() and not (word.isupper() and len(word) > 3)


def is_label(side: str, *, question: str) -> bool:
    r"""Whether a side of an equation names the value: `x`, `f(3)`, `a + b`, `\angle ABC`, `Total
    cost`.
    """
    side = without_markup(ARGUMENTS.sub("", without_markup(side)))
    if not re.search(r"[A-Za-z]", side) or not LABEL.fullmatch(side):
        return False
    if read_quantity(side) is not None:
        return False
    words = WORDS.findall(
        plain(
            re.sub(r"\\[A-Za-z]+", lambda match: " " if match[0] not in NAMING else match[0], side)
        )
    )
    mathematics = re.search(
        r"\\(?:sqrt|d?frac|pi|log|ln|sin|cos|tan|binom|infty|pm|neq?|not|le|ge|in)(?![A-Za-z])",
        side,
    )
    return mathematics is None and all(
        is_introducing(word, question=question) or word.isupper() or len(word) <= 2
        for word in words
    )


ENDS_IN_OF = re.compile(r"(?:\b([A-Za-z]+) )?\b([A-Za-z]+) of[\s:$]*$")
NAMING = ("\\text", "\\mathrm", "\\textbf", "\\mathbf", "\\textit", "\\operatorname", "\\mbox")


NUMBERED_BEFORE = re.compile(rf"\b(?:{'|'.join(sorted(NUMBERED))}) $", re.IGNORECASE)
"""`Step 8 shows it` names a step, and states nothing about a number."""
IN_A_PART = re.compile(
    rf"\b(?:in|from|see|by|of|at) (?:the )?(?P<part>{'|'.join(sorted(NUMBERED))}) $", re.IGNORECASE
)
OF_A_NOUN = re.compile(
    r"(?:an?|the|some) (?:[a-z]+ )?[a-z]+ (?:with|having|containing) ", re.IGNORECASE
)
"""`a number with 17 digits`"""
ASKS_THE_REST = re.compile(r"\b(?:left|remain(?:s|ing)?)\b[^.?!]*\?", re.IGNORECASE)
PARTED = re.compile(
    r"\b(?:gave|gives|sold|sells|ate|eats|lost|loses|spent|spends|used|uses)\b", re.IGNORECASE
)
ASKS_A_GAIN = re.compile(r"\b(?:profit|gain)\b[^.?!]*\?", re.IGNORECASE)
A_LOSS = re.compile(r"\b(?:a|the) loss of\b", re.IGNORECASE)


def tells_the_other_part(introduction: str, sentence: str, *, question: str) -> bool:
    """Whether `sentence` states the other part: what was given away if the question asks what is
    left, or a loss if it asks for a profit. `introduction` holds its words before the number.
    """
    if ASKS_A_GAIN.search(question) and A_LOSS.search(introduction):
        return True
    return ASKS_THE_REST.search(question) is not None and PARTED.search(introduction) is not None


def introduces_another_number(introduction: str, *, after: str, question: str) -> bool:
    """Whether the number between the two texts counts a step, a part or a noun."""
    if _names_a_part(introduction, question=question) or OF_A_NOUN.fullmatch(introduction):
        return True
    numbered = NUMBERED_BEFORE.search(introduction)
    return numbered is not None and WORDS.search(after) is not None


def _names_a_part(introduction: str, *, question: str) -> bool:
    """Whether `introduction` ends like `in step`, and `question` does not mention steps."""
    named = IN_A_PART.search(introduction)
    return named is not None and stem(named["part"].lower()) not in words_of(question)
