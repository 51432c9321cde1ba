r"""The main clause of a sentence, which states its value, and sentences that are about another case.

`Since Ben is 3 years older than Cara, Ben is 11.` states its value after the first clause, `5 boxes
hold 6 eggs each, for a total of 30 eggs` at its end. The omitted parts must not contain a doubt.

Left out: reading the value (`envs.math.closing_sentences`).
"""

import re

from envs.math.vocabulary import DOUBTS, WORDS, words

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
ADDRESSED = re.compile(r"[^0-9]*\b(?:you|your)\b[^0-9]*$", re.IGNORECASE)
"""`Let me know if you have questions`, without a number."""
IMAGINED = re.compile(
    r"[*_]{0,2}(?:even if|if|had|were)\b[^.?]{0,200}\bwould(?:n['\u2019]t)?\b", re.IGNORECASE
)
"""`If she had sold only cupcakes, she would have made $70`: another case."""


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


def _said(text: str) -> set[str]:
    return {word.lower() for word in WORDS.findall(text)}
