r"""Reads answers of a closing sentence that are words or letters: yes and no, an option, an
attribute.

`Therefore, option (B) is correct.` and `The function is even.` are answers like a number; denials
and doubts before them spoil them in the same way (`provisional`).
"""

import re

from envs.math.finding.last_lines import sentences_of
from envs.math.parsing.leads import denies
from envs.math.parsing.plain_text import plain
from envs.math.parsing.provisional import DOUBT, is_provisional, words_asked
from envs.math.parsing.sentences import RETRACTION
from envs.math.parsing.vocabulary import CHANGING, HEDGES, PREFACES, WORDS

OPTION = re.compile(
    r"(?:\b(?:[Oo]ption|[Cc]hoice)(?: is)?:? \(?(?P<named>[A-J])\)?"
    r"(?: is (?:the )?(?:correct|right)(?: (?:one|option|choice|answer))?"
    r"| (?:satisfies|fits|matches|meets) (?:both|all|the|every|each|this|these) [a-z ]{1,40}"
    r"| as (?:the|our|my) (?:only |correct |right |final )?(?:answer|option|choice)(?: left)?"
    r"| (?:remains|is left)"
    r"|(?:(?<=\))|[:.,]| [-\u2013\u2014]) (?P<text>[^;?]{1,80}))?"
    r"|(?:^|[ ,])\(?(?P<first>[A-J])\)? is (?:the )?(?:correct|right|final"
    r"|only)(?: (?:answer|option|choice))?"
    r"(?: that (?:works|fits|remains))?"
    r"|\b(?:choose|chose|select|pick) \(?(?P<chosen>[A-J])\)?)$"
)


NAME = r"[A-Za-z][a-z'-]+(?: [A-Za-z][a-z'-]+){0,2}"
LAST_NAME = re.compile(
    r".*\b(?:is|are|was|were|be|becomes|equals|named|called|on|in|by|belongs to|gives|yields"
    rf"|(?:we|you|i) (?:get|obtain|find))(?: an?"
    rf"| the)? [*\"]{{0,3}}(?P<name>{NAME})[*\"]{{0,3}}[.!]*",
    re.DOTALL,
)
FIRST_NAME = re.compile(
    r"(?:(?:So|Thus|Therefore|Hence),? )?[*]{0,2}(?P<name>[A-Z][a-z]+)[*]{0,2} "
    r"(?:is|was|has|had|[a-z]+s) (?P<rest>[A-Za-z ,'-]+)[.!*]*"
)
"""`Evelyn has the greatest average speed.`"""
MISSING = re.compile(
    r"(?P<lead>.*)\b(?P<name>cannot be determined|does not exist)[*_]{0,3}(?: \(DNE\))?[.!*_]*",
    re.DOTALL,
)
"""`The limit does not exist (DNE).`"""
SUPPOSED = re.compile(r"\b(?:if|whether|suppose|unless|not|claims?)\b(?!.*,)", re.IGNORECASE)
ANSWERED = re.compile(
    r"(?:(?:So|Thus|Therefore|Hence),? )?[*]{0,2}(?P<name>Yes|No)[*]{0,2}(?:[.,:;!][*]{0,2}"
    r"| [-\u2013\u2014]) (?P<rest>.+)",
    re.IGNORECASE | re.DOTALL,
)
REVERSED = re.compile(
    r"\b(?:yes|wait|actually|but|however|although|though|maybe|perhaps|unless|if|sorry|depends)\b",
    re.IGNORECASE,
)


def is_word(truth: str) -> bool:
    """Whether `truth` is a name or another word, so that a sentence may state it in the form
    `LAST_NAME`.
    """
    return re.fullmatch(rf"{NAME}|[Nn]o|DNE", plain(truth).strip(" .$")) is not None


def stated_name(line: str, *, question: str) -> str | None:
    """The name, `Yes` or `No` that the last `line` of a text states, or None."""
    answered = ANSWERED.fullmatch(line)
    if answered is not None:
        turned = REVERSED.search(answered["rest"]) or RETRACTION.search(answered["rest"])
        return None if turned or answered["rest"].endswith("?") else answered["name"]
    sentence = sentences_of(line)[-1].strip()
    missing = MISSING.fullmatch(sentence)
    if missing is not None:
        doubted = DOUBT.search(missing["lead"]) or SUPPOSED.search(missing["lead"])
        return None if doubted else missing["name"]
    first = FIRST_NAME.fullmatch(sentence)
    if first is not None and words_asked(first["rest"]) <= words_asked(question) | PREFACES:
        return first["name"]
    last = LAST_NAME.fullmatch(sentence)
    if last is None or DOUBT.search(sentence):
        return None
    lead, said = sentence[: last.start("name")], words_asked(last["name"])
    if denies(lead) or is_provisional(lead, question=question) or CHANGING & said:
        return None
    return last["name"]


def letter(option: re.Match[str], *, lead: str, question: str) -> str | None:
    """The letter of an option that a sentence names after `lead`; None if it is denied or doubtful,
    or has another letter beside it.
    """
    beside = option["text"] or ""
    doubtful = (
        denies(lead)
        or is_provisional(lead, question=question)
        or bool(_doubts(beside))
        or re.search(r"\b[B-J]\b|\bA\)", beside) is not None
    )
    return None if doubtful else str(option["named"] or option["first"] or option["chosen"])


def _doubts(text: str) -> frozenset[str]:
    """The words of the text of an option that make it doubtful."""
    return HEDGES & {word.lower() for word in WORDS.findall(text)}
