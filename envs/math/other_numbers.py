"""Recognises sentences whose number is not the answer: the number of a step or of a part, a
number that describes a noun, and a quantity that was given away when the question asks for the
rest.

Left out: numbers that are denied or provisional (`envs.math.leads`, `envs.math.provisional`).
"""

import re

from envs.math.quantities import stem, words_of
from envs.math.vocabulary import NUMBERED, WORDS

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
    """Whether the question asks what is left, and `sentence` says what was given away, or it asks for a
    profit and the sentence says a loss:
    `introduction` are its words before the number.
    """
    if ASKS_A_GAIN.search(question) and A_LOSS.search(introduction):
        return True
    return ASKS_THE_REST.search(question) is not None and PARTED.search(introduction) is not None


def introduces_another_number(introduction: str, *, after: str, question: str) -> bool:
    """Whether the number between `introduction` and `after` is that of a step, a part or a noun."""
    if _names_a_part(introduction, question=question) or OF_A_NOUN.fullmatch(introduction):
        return True
    numbered = NUMBERED_BEFORE.search(introduction)
    return numbered is not None and WORDS.search(after) is not None


def _names_a_part(introduction: str, *, question: str) -> bool:
    """Whether `introduction` ends like `in step`, which `question` does not speak of."""
    named = IN_A_PART.search(introduction)
    return named is not None and stem(named["part"].lower()) not in words_of(question)
