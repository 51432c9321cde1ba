r"""The value that the last sentence of a text states, where nothing is marked.

`Therefore, the area is 15 square units.` states 15 square units. Nothing provisional may stand
before the value (`envs.math.provisional`), nothing after it that changes it, and no second value in
its clause (`envs.math.clauses`).
"""

import re

from envs.math.clauses import COMPARED, IMAGINED, main_clause
from envs.math.contrasts import contrasted
from envs.math.dress import EMPHASISED, undressed
from envs.math.languages import after_conclusion, in_english
from envs.math.leads import changes, denies, is_rough
from envs.math.named_answers import ASKS_YES_OR_NO, OPTION, YES_OR_NO, letter
from envs.math.notation import is_several
from envs.math.plain_text import plain
from envs.math.provisional import DIGITS, OPERATED, PROVISIONAL, WORDS, is_provisional, words_asked
from envs.math.quantities import read_quantity
from envs.math.sentences import TAIL, without_exclamation
from envs.math.statements import AFFIRMED, ASKS_THE_REST, KEPT, PARTED
from envs.math.values import CUT_OFF, ITEM, LABEL, NUMBER, TIME, is_plain_label, is_value
from envs.math.vocabulary import CARDINALS, CHANGING

NAMED_SET = re.compile(
    r"(?<=\bis )all (?:real numbers|reals)$|(?<=\bare )no (?:real )?solutions$|(?<=\bhas )no (?:real )?solutions?$"
)
SYSTEM = re.compile(
    r"(?<![\w$])\$?(?!(?P<same>[a-z]) ?=.*(?P=same) ?=)[a-z] ?= ?-?[0-9][0-9./]*\$?(?:,? and |, )\$?[a-z] ?= ?-?[0-9][0-9./]*\$?$"
)
"""`x = 3 and y = -2`, two letters."""
CONTRACTED = re.compile(r"\b(it|that|this|there|he|she)['\u2019]s\b", re.IGNORECASE)
QUOTED = re.compile(r"(?<=[ :])[\"\u201c]([^\"\u201c\u201d]{1,40})[\"\u201d]")
AGAIN_TALL = re.compile(r"(?<=\)) (?:tall|long|wide|deep|high|old)(?=[.!]*$)")
"""`5 ft 4 in (64 inches) tall`"""
RATIO = re.compile(r"\b(?:ratio|odds|proportion)\b", re.IGNORECASE)
IN_RATIO = re.compile(r"(?<=[0-9]) to (?=[0-9])")
FOR_ALL = re.compile(r",? for (?:all|any|every) [a-z ]{0,30}\$?[a-z]\$?$")
"""`f(x) = x^2 for all real x`"""
SHARES = "half|third|quarter|fourth|fifth|sixth|eighth|tenth|hundred|thousand|million"
VALUE = re.compile(
    r"(?<![\w.,^_{(\\*$#-])(?:\\?\$|\\\(|\((?=-?[0-9])|[\u20ac\u00a3\u00a5\u20b9]|\\\{|\\(?:sqrt|[dt]?frac|pi|infty|sin|cos|tan|ln|log|binom)(?![a-z])"
    r"|(?:(?<=is )|(?<=gives )|(?<=get )|(?<=equals )|(?<=obtain )|(?<=so )|(?<=so, )|(?<=thus )|(?<=hence ))"
    r"[a-z](?= ?[-+^\u00b2\u00b3<>\u2264\u2265])|(?:sqrt|exp)\(|\{(?=-?[0-9])"
    r"|[-\u2212]?(?:\.?[0-9]|[\u221a\u03c0\u00bc-\u00be])"
    rf"|(?:(?:negative|minus) )?(?:zero|{'|'.join(list(CARDINALS)[2:])}|(?:one|an?)(?= (?:{SHARES})\b))\b)",
    re.IGNORECASE,
)
"""Beginning of a value."""
CIRCUMSTANCES = re.compile(r"[A-Za-z,'\u2019 -]{0,120}")
PERIOD = re.compile(
    r" (?:over|in|after|during|within|for|at the end of|by the end of) (?:the |those |these |all )?"
    r"(?:[a-z]+ |[0-9]+ )?(?:second|minute|hour|day|week|month|year|trip|round|game)s?\b",
    re.IGNORECASE,
)
"""`over the three months`, `at the end of those 4 hours`: says when, whatever its number."""
PLACES = re.compile(
    r" (?:to|at|in|for|of|below|above|between|up|from|on|that|who|which|when|after|because|since|as|with|left|available|altogether)\b",
    re.IGNORECASE,
)
LIMITING = re.compile(
    r"\b(?:every|each|per|(?<!up )(?<!down )(?<!increased )(?<!decreased )(?<!dropped )"
    r"(?<!fell )(?<!rose )(?<!grew )(?<!differ )(?<!won )by|all|these|those|this|my|part|step)[\s$\\(]*$",
    re.IGNORECASE,
)
DATE = re.compile(
    r"\b(?:Jan|Febr)uary $|\b(?:March|April|May|June|July|August) $|\b(?:Septem|Octo|Novem|Decem)ber $"
)
"""`bought on July 12` names a day."""


def stated_value(sentence: str, *, text: str, question: str) -> str | None:
    """The value that a closing `sentence` of `text` states, with its unit; None where it states none, or more
    than that.
    """
    if CUT_OFF.search(sentence) or ITEM.match(sentence) or IMAGINED.match(sentence):
        return None
    sentence = sentence.removeprefix("> ").replace("**", "").replace("__", "")
    sentence = QUOTED.sub(r"\1", CONTRACTED.sub(r"\1 is", sentence))
    sentence = AGAIN_TALL.sub("", sentence)
    sentence = IN_RATIO.sub(":", sentence) if RATIO.search(sentence) else sentence
    contrast = contrasted(sentence)
    sentence = main_clause(contrast.answer if contrast is not None else sentence)
    for emphasised in EMPHASISED:
        sentence = emphasised.sub(r"\2", sentence)
    said = YES_OR_NO.match(sentence)
    if said is not None and ASKS_YES_OR_NO.search(question):
        return said[1]
    if WORDS.search(sentence) is not None:  # `18!` alone is a factorial
        sentence = without_exclamation(sentence, f"{question}\n{text}")
    sentence = re.sub(r"(?<=\S)[.*_\s]*$", "", sentence)
    labelled = LABEL.fullmatch(sentence)
    named = labelled is not None and ":" in sentence[: labelled.start("value")]
    option = OPTION.search(sentence)
    if option is not None:
        return letter(option, lead=sentence[: option.start()], question=question)
    if labelled is not None and named and not is_plain_label(labelled["label"], question=question):
        return None
    sentence = FOR_ALL.sub("", AFFIRMED.sub("", sentence.rstrip(". ")))
    for form in (NAMED_SET, SYSTEM):
        whole = form.search(sentence)
        if whole is not None and not is_provisional(sentence[: whole.start()], question=question):
            return whole[0]
    for start in VALUE.finditer(sentence):
        lead, value = sentence[: start.start()], sentence[start.start() :]
        value = _without_circumstances(value, question=question)
        if is_value(value, question=question):
            if is_provisional(lead, question=question, terms=value.rpartition("=")[0]):
                return None
            parts = (
                ASKS_THE_REST.search(question) and PARTED.search(lead) and not KEPT.search(sentence)
            )
            if parts or LIMITING.search(lead) or DATE.search(lead):
                return None
            if is_rough(lead):
                return f"\\approx {value}"
            if denies(lead):
                return None
            apart = is_several(value) or TIME.fullmatch(undressed(value)) is not None
            joined = not apart and changes(lead, question=question)
            return None if joined else value
    return None


def stated_elsewhere(sentence: str, *, question: str) -> str | None:
    """The only number, with its unit, of the last clause of a `sentence` in another language."""
    clause = after_conclusion(re.split(r"[,;:](?![0-9])", plain(sentence))[-1])
    english = in_english(clause, question=question)
    if english is None or len(DIGITS.findall(english)) != 1 or OPERATED.search(english):
        return None
    number = NUMBER.search(english)
    value = english[number.start() :] if number is not None else ""
    return value if is_value(value, question=question) else None


def _without_circumstances(text: str, *, question: str) -> str:
    """The first words of `text` that are a value, where those after them neither change it nor hold
    another: `12 ways to arrange them`.
    """
    asked_words = words_asked(question)
    asked_numbers = set(DIGITS.findall(question[-TAIL:]))
    for end in [match.start() for match in re.finditer(r"(?<=[A-Za-z0-9%$)}]) (?=[A-Za-z])", text)][
        :6
    ]:
        rest = PERIOD.sub(" ", text[end:])
        named = re.search(r"[A-Za-z$]", text[:end]) or re.match(r" [a-z]+ [a-z]+ than", rest)
        if named and COMPARED.fullmatch(rest) and is_value(text[:end], question=question):
            return text[:end]
        if set(DIGITS.findall(rest)) <= asked_numbers:
            rest = DIGITS.sub(" ", rest)
        said = {word.lower() for word in WORDS.findall(rest)}
        if (
            not CIRCUMSTANCES.fullmatch(rest)
            or (said & (CHANGING | PROVISIONAL)) - asked_words
            or not is_value(text[:end], question=question)
        ):
            continue
        counted = read_quantity(undressed(text[:end]), question=question)
        if PLACES.match(rest) or (counted is not None and counted.counted):
            return text[:end] if not is_value(text, question=question) else text
    return text
