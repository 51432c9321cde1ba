r"""Finds words and values of a sentence that make its number provisional: `So far`, `half`,
`maybe`, or an earlier value.

Words of the question are harmless: `The original price was $40` answers a question for it.
"""

import re

from envs.math.parsing.leads import (
    ASKS_A_BOUND,
    BOUND,
    DENIED,
    DENYING,
    SUPPOSING,
    TENTATIVE,
)
from envs.math.parsing.quantities import read_quantity, stem
from envs.math.parsing.sentences import RETRACTION
from envs.math.parsing.vocabulary import CHANGING, HEDGES, NUMERALS, WORDS, words

DIGITS = re.compile(r"[0-9][0-9.,]*")
DOUBT = re.compile(
    r"\b(?:maybe|perhaps|possibly|either|unsure|guess|might|could|probably|uncertain|not sure"
    r"|cannot (?:say|tell))\b",
    re.IGNORECASE,
)
PROVISIONAL = words(
    """
    far best worst yet first next initially intermediate partial provisional temporary temporarily
    example instance suppose imagine previous previously earlier wrong naive bound upper lower
    possible option options candidate candidates trial attempt step subtotal before without except
    supposed expected meant original old try trying test consider choose pick let let's second
    another other others also say given hint note check twice half double triple thrice claim claims
    claimed yesterday tomorrow someone some one many most few any not never
    """
)
"""Words of a sentence whose number is not a final answer; words of the question are harmless."""
HARMLESS = re.compile(
    r"\bthe next (?=[a-z])|\bequally likely\b|\b(?:in|of|on|by|to|and|since|until) (?-i:May)\b"
    r"|\bof one (?=[a-z]+ (?:is|was|equals)\b)",
    re.IGNORECASE,
)
"""`The next number` of a sequence is what is asked for, equally likely cases are not a doubt, `in
May` is a month, and `the weight of one box is` names an object.
"""
STATED = re.compile(
    r"\b(?:is|are|was|were|has|have|had"
    r"|equals) (?:[a-z]+ ){0,3}[$\\(]{0,3}(-?[0-9][0-9.,]*+)(?!\s*[-+*/\u00d7\u00f7=^0-9.])",
    re.IGNORECASE,
)
"""A value that is stated before the last one."""
OPERATED = re.compile(
    r"[\u00b2\u00b3^]|[0-9]\s*[a-z]\b|\b[a-z]\s*[-+*/]\s*[0-9]|[0-9]\s*[-+*/]\s*[a-z]\b"
)
"""The left side of an equation that is not solved: `2x = 18`."""


ABOUT_ANSWER = re.compile(
    r"\b(?:the|this|that|my|our) (?:[a-z]+ )?(?:answer|question|puzzle|problem) "
    r"(?:has|have|had|requires?|needs?|takes?|took|contains?|consists?|lies?|involves?|uses?"
    r"|depends?|asks?|says?)\b",
    re.IGNORECASE,
)
"""`The answer has 17 digits` describes an answer without giving it."""
REQUEST = re.compile(r"^(?:please |just )?(?:give|grant|allow) (?:me|us)\b", re.IGNORECASE)
"""`Give me 17 seconds`"""
IMAGINED = re.compile(
    r"[*_]{0,2}(?:even if|if|had|were)\b[^.?]{0,200}\bwould(?:n['\u2019]t)?\b", re.IGNORECASE
)
"""`If she had sold only cupcakes, she would have made $70`: another case."""
BRACKETED = re.compile(r" ?\(([^()]*)\)")
HARMFUL = PROVISIONAL | CHANGING | words("too alone loss discount")
FREE = words("total maximum minimum only just exactly final left over up single some any")
"""Words after a value that leave it unchanged."""
NUMBER_WORDS = NUMERALS - words("one some any all few many several single first")
COUNTED_IN = re.compile(
    r"\b(?:incl|excl|includ\w*|exclud\w*|inclusive|exclusive|count(?:s|ed|ing)?|with|without|if"
    r"|when|plus|makes? it)\b",
    re.IGNORECASE,
)
_OTHER = rf"[$*\\(]{{0,3}}(-?[0-9][0-9.,]*+|(?:{'|'.join(sorted(NUMBER_WORDS))})\b)"
OTHERWISE = re.compile(
    rf"(?:^|[,;:] )(?:a total of |(?:the|in) total,? (?:is )?)?{_OTHER}"
    r"(?= ?$| (?:with|without|if|when|incl|excl|count)[a-z]*\b)"
    rf"|: {_OTHER}(?= [a-z]+(?: [a-z]+)?$)"
    rf"|\b(?:it|that|this|there|they|total|count) (?:would |will )?(?:is|are|be|makes?|becomes?) "
    rf"(?:a total of )?{_OTHER}"
    rf"|\bmakes? (?:it )?{_OTHER}",
    re.IGNORECASE,
)
"""A number that includes or excludes something else than the value before the brackets."""
WHOLE = re.compile("[0-9]{1,9}")


def has_number(text: str) -> bool:
    """Whether `text` has a number, in digits or in words."""
    return re.search("[0-9]", text) is not None or not NUMBER_WORDS.isdisjoint(words_asked(text))


def is_harmful(sentence: str, *, unless: frozenset[str] = frozenset()) -> bool:
    """Whether `sentence` doubts, denies, retracts or asks anything; words in `unless` do not
    count.
    """
    said = {word.lower().replace("\u2019", "'") for word in WORDS.findall(sentence)}
    if (HEDGES | DENYING) & said - unless or sentence.rstrip().endswith("?"):
        return True
    forms = (RETRACTION, DOUBT, TENTATIVE, SUPPOSING, DENIED, ABOUT_ANSWER, IMAGINED, REQUEST)
    return any(form.search(sentence) for form in forms)


def without_explanations(text: str) -> str:
    """`text` without words in brackets that hold no doubt."""
    return BRACKETED.sub(
        lambda part: (
            " "
            if _is_explained(part[1])
            and not is_harmful(part[1])
            and not _counts_otherwise(part[1], before=text[: part.start()])
            else part[0]
        ),
        text,
    ).rstrip()


def _counts_otherwise(inside: str, *, before: str) -> bool:
    """Whether brackets after a value give another one: `3 (excl. the host, 4 with him)`; in `8 (5
    with sugar, 3 without)` they give its parts.
    """
    other = OTHERWISE.search(inside) if COUNTED_IN.search(inside) else None
    if other is None:
        return False
    number = next(value for value in other.groups() if value is not None)
    if number.rstrip(".,") in {value.rstrip(".,") for value in DIGITS.findall(before)}:
        return False
    return sum(map(int, WHOLE.findall(inside))) not in map(int, WHOLE.findall(before))


def _is_explained(inside: str) -> bool:
    """Whether brackets hold only an explanation, neither a value nor a note on rounding."""
    said = WORDS.findall(inside)
    rounded = {"nearest", "rounded"} & {*said}
    return len(said) > 2 and "\\" not in inside and read_quantity(inside) is None and not rounded


def words_asked(question: str) -> frozenset[str]:
    """The words of `question`, in lower case."""
    return frozenset(word.lower() for word in WORDS.findall(question))


def is_provisional(lead: str, *, question: str, terms: str = "") -> bool:
    """Whether the words before a value make it provisional, or contain another value that is not
    one of the `terms` from which the value is computed.
    """
    said = [word.lower() for word in WORDS.findall(HARMLESS.sub(" ", lead))]
    bound = BOUND.search(lead.rstrip(" $\\(")) is not None and ASKS_A_BOUND.search(question)
    asked = {stem(word) for word in words_asked(question)}
    harmless = {word for word in said if stem(word) in asked}
    harmless |= {"at", "most", "least"} if bound else set()
    if (PROVISIONAL | HEDGES - {"should"}) & set(said) - harmless:
        return True
    unsolved = lead.rstrip().endswith("=") and OPERATED.search(
        re.split(r"[,;]|\b(?:so|thus|therefore|hence|that)\b", lead, flags=re.IGNORECASE)[-1]
    )
    stated = STATED.findall(re.split(r"[,;] (?:and )?(?:so|thus|therefore|hence)\b", lead)[-1])
    return bool(unsolved) or not {value.rstrip(".,") for value in stated} <= {
        *DIGITS.findall(terms)
    }
