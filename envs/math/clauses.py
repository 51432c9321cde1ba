r"""The part of a closing text that states its value: the main clause of a sentence, and the
sentences before those that only explain or check it.

`Since Ben is 3 years older than Cara, Ben is 11.` states its value after the first clause, `5 boxes
hold 6 eggs each, for a total of 30 eggs` at its end. `Thus x = 8. This is the only solution.`
states it before a remark. The omitted parts must not contain a doubt or a denial.

Left out: reading the value (`envs.math.conclusions`).
"""

import re

from envs.math.sentences import RETRACTION, SENTENCE_END
from envs.math.vocabulary import DOUBTS, HEDGES, WORDS, words

INSERTED = re.compile(r", (?:which|who|whose|where)\b[^,]*,(?= )")
ONE_CLAUSE = r"(?:[^,]|,(?=[0-9]{3}|[^()]*\)))*$"
"""Up to the end, without a comma but in a number and in brackets: `(0.5, -3)`."""
SUBORDINATE = re.compile(
    r"^(?:(?:so|thus|therefore|hence),? )?(?:since|because|as|given that|with|after|out of|of|starting|when)\b.*, "
    rf"(?=[A-Za-z0-9$]{ONE_CLAUSE})",
    re.IGNORECASE,
)
REASON = re.compile(r"(?:since|because|as|given|when)\b", re.IGNORECASE)
RESULT = re.compile(
    r",? (?:(?:and )?(?:so(?! far\b)|thus|therefore|hence),?|for a total of|(?:which|that) (?:is|makes|gives|leaves|totals)"
    r"|(?<=, )(?:giving|leaving|namely)) "
    rf"(?={ONE_CLAUSE})",
    re.IGNORECASE,
)
TOTAL = re.compile(r", (?=\$?[0-9][^,]*\b(?:in total|altogether|in all|overall)\.?$)")
UNSURE = DOUBTS | words("if unless or either whether except without")
VERB = re.compile(
    r"\b(?:is|are|was|were|has|have|had|gets?|needs?|makes?|equals?|costs?|takes?|earns?|pays?|becomes?|[a-z]+ed)\b"
    r"|^[0-9]+ [a-z]"
)
COMPARED = re.compile(
    r" (?:(?:more|fewer|less) [a-z]+|[a-z]{2,}er|more|fewer|less) than (?:the |his |her |their |its )?"
    r"(?!that\b|this\b|it\b|what\b|twice\b|half\b)(?!.*\b(?:or|and|but)\b)[A-Za-z' ]+$"
)
"""`12 years older than Ann`, `6 more pens than Sam`: the number is the difference."""
ADDRESSED = re.compile(r"[^0-9]*\b(?:you|your)\b[^0-9]*\?$", re.IGNORECASE)
EXPLAINING = re.compile(
    r"[*_]{0,2}(?:check(?:ing)?|verification|explanation|reason(?:ing)?|note|remark|to (?:double-?check|check|verify))\b[^.:]{0,30}:"
    r"|let(?:'s| us| me) (?:check|verify|double-?check)\b|note that\b|this is because\b|(?:this|that) makes sense\b|here(?: is|'s) why\b",
    re.IGNORECASE,
)
CHECKING = re.compile(
    r"[*_]{0,2}(?:let\S* )?(?:us |me )?(?:to )?(?:double-?)?(?:check|verif)", re.IGNORECASE
)
COMPUTED = re.compile(r"= ?[$\\(]*(-?[0-9]+(?:[.,][0-9]+)*)")
RESTATED = re.compile(r"[:.] [$\\(]*(-?[0-9]+(?:[.,][0-9]+)*) =")
"""`Note: 42 = 6 * 7`."""
NUMBER = re.compile(r"-?[0-9]+(?:[.,][0-9]+)*")
CONCLUSIVE = re.compile(
    r"[*_]{0,2}(?:(?:so|therefore|thus|hence|in conclusion|consequently|altogether|in total)\b|[a-z] ?= )",
    re.IGNORECASE,
)
GOING_ON = HEDGES | words(
    "then now next need find must let so therefore thus hence finally first second step also "
    "total together altogether left gives gets buys not"
)
IMAGINED = re.compile(
    r"[*_]{0,2}(?:even if|if|had|were)\b[^.?]{0,200}\bwould(?:n['\u2019]t)?\b", re.IGNORECASE
)
"""`If she had sold only cupcakes, she would have made $70`: another case."""
MAX_ASIDES = 8


def main_clause(sentence: str) -> str:
    """The clause of `sentence` that states its value; a sentence of one clause unchanged."""
    sentence = INSERTED.sub("," if REASON.match(sentence) else "", sentence)
    for form in (SUBORDINATE, RESULT, TOTAL):
        cut = form.search(sentence)
        if (
            cut is None
            or UNSURE & _said(sentence[: cut.end()])
            or " than " in sentence[cut.end() :]
        ):
            continue
        if form is not SUBORDINATE or VERB.search(sentence, cut.end()) is not None:
            sentence = sentence[cut.end() :]
    return sentence


def without_asides(text: str) -> str | None:
    """`text` without the sentences after its conclusion that explain it, check it or address the
    reader; None if it has no such sentence.
    """
    ends = [match.end() for match in SENTENCE_END.finditer(text) if match.end() < len(text)]
    for number, end in enumerate(reversed(ends[-MAX_ASIDES:]), start=1):
        aside = text[end:].strip()
        begin = ends[-number - 1] if number < len(ends) else 0
        if EXPLAINING.match(aside):
            explains = _only_explains(aside, text[:end].strip().rpartition("\n")[2])
            return text[:end] if explains else None
        if number == 1 and (ADDRESSED.fullmatch(aside) or _is_remark(aside, text[begin:end])):
            return text[:end]
    return None


IRRELEVANT = re.compile(
    r"\b(?:does|do|did|would|will|should)(?: not|n['\u2019]t) (?:affect|change|matter|alter|influence|concern)\b"
    r"[^0-9;:]{0,40}$",
    re.IGNORECASE,
)
"""`..., but that does not affect this problem.`"""
CORRECTING = words("actually correct answer wrong mistake instead rather really should")


def _only_explains(aside: str, conclusion: str) -> bool:
    """Whether `aside` retracts nothing, concludes nothing, and computes the value of `conclusion`;
    a check may compute anything.
    """
    if IRRELEVANT.search(aside) and not CORRECTING & _said(aside):
        return "\n" not in aside
    computed = COMPUTED.findall(aside)
    checks = CHECKING.match(aside) is not None
    stated = {*computed[-1:], *RESTATED.findall(aside)}
    if computed and not checks and stated.isdisjoint(NUMBER.findall(conclusion)):
        return False
    return (
        RETRACTION.search(aside) is None
        and not (HEDGES - words("while instead rather although though")) & _said(aside)
        and CONCLUSIVE.search(aside.rpartition(". ")[2]) is None
    )


def _is_remark(aside: str, conclusion: str) -> bool:
    """Whether `aside` comments on a conclusion without adding a value."""
    if CONCLUSIVE.match(conclusion.strip()) is None or RETRACTION.search(aside):
        return False
    if IMAGINED.match(aside):
        return True
    said = _said(aside)
    if GOING_ON & (said - words("not") if "because" in said else said) or aside.endswith("?"):
        return False
    compares = "than" in said or "because" in said
    if not set(COMPUTED.findall(aside)) <= set(NUMBER.findall(conclusion)):
        return False
    return (compares or not re.search(r"[0-9]", aside)) and "\n" not in aside


def _said(text: str) -> set[str]:
    return {word.lower() for word in WORDS.findall(text)}
