r"""The value stated by the last sentence of a text without a mark.

`Therefore, the area is 15 square units.` states 15 square units. Nothing provisional may precede
the value (`provisional`), nothing after it may change it, and its clause may have no second value.
`Since Ben is 3 years older than Cara, Ben is 11.` states its value after the first clause, `5 boxes
hold 6 eggs each, for a total of 30 eggs` at its end; an omitted clause must not hold a doubt.
"""

import re

from envs.math.finding.named_answers import OPTION, letter
from envs.math.finding.values import CUT_OFF, ITEM, LABEL, NUMBER, is_plain_label, is_value
from envs.math.parsing.contrasts import contrasted
from envs.math.parsing.foreign_changes import has_foreign_word
from envs.math.parsing.introductions import ASKS_THE_REST, NUMBERED_BEFORE, tells_the_other_part
from envs.math.parsing.languages import after_conclusion, in_english
from envs.math.parsing.leads import TENTATIVE, changes, denies, is_rough
from envs.math.parsing.markup import EMPHASISED, without_markup
from envs.math.parsing.notation import is_several
from envs.math.parsing.plain_text import plain
from envs.math.parsing.provisional import (
    ABOUT_ANSWER,
    DIGITS,
    FREE,
    HARMFUL,
    IMAGINED,
    OPERATED,
    REQUEST,
    is_provisional,
    without_explanations,
    words_asked,
)
from envs.math.parsing.quantities import is_compared, read_quantity
from envs.math.parsing.questions import CLOCK, asks_a_difference, asks_by
from envs.math.parsing.sentences import TAIL, without_exclamation
from envs.math.parsing.statements import AFFIRMED
from envs.math.parsing.vocabulary import CARDINALS, DOUBTS, OF_A_SOLUTION, WORDS, words

INSERTED = re.compile(r", (?:which|who|whose|where)\b[^,]*,(?= )")
ONE_CLAUSE = r"(?:[^,]|,(?=[0-9]{3}|[^()]*\)))*$"
"""Up to the end, without commas except in numbers and in brackets: `(0.5, -3)`."""
SUBORDINATE = re.compile(
    r"^(?:(?:so|thus|therefore|hence),? )?(?:since|because|as|given that|with|after|out of|of"
    r"|starting|when)\b.*, "
    rf"(?=[A-Za-z0-9$]{ONE_CLAUSE})",
    re.IGNORECASE,
)
REASON = re.compile(r"(?:since|because|as|given|when)\b", re.IGNORECASE)
RESULT = re.compile(
    r",? (?:(?:and )?(?:so(?! far\b)|thus|therefore|hence),?|for a total of"
    r"|(?:which|that) (?:is|makes|gives|yields|leaves|totals)"
    r"|(?<=, )(?:giving|leaving|namely)) "
    rf"(?={ONE_CLAUSE})",
    re.IGNORECASE,
)
TOTAL = re.compile(r", (?=\$?[0-9][^,]*\b(?:in total|altogether|in all|overall)\.?$)")
UNSURE = DOUBTS | words("if unless or either whether except without")
VERB = re.compile(
    r"\b(?:is|are|was|were|has|have|had|gets?|needs?|makes?|equals?|costs?|takes?|earns?|pays?"
    r"|becomes?|[a-z]+ed)\b"
    r"|^[0-9]+ [a-z]"
)
COMPARED = re.compile(
    r" (?:(?:more|fewer|less) [a-z]+|[a-z]{2,}er|more|fewer|less) than "
    r"(?:the |his |her |their |its )?"
    r"(?!that\b|this\b|it\b|what\b|twice\b|half\b)(?!.*\b(?:or|and|but)\b)[A-Za-z' ]+$"
)
"""`12 years older than Ann`, `6 more pens than Sam`: the number is the difference."""
NAMED = re.compile(
    r"(?<=\bis )(?:all (?:real numbers|reals)|infinity)$"
    r"|(?:(?<=\bare )|(?<=\bhas ))no (?:real )?solutions?$"
    r"|(?<![\w$])\$?(?!(?P<same>[a-z]) ?=.*(?P=same) ?=)[a-z] ?= ?-?[0-9][0-9./]*\$?"
    r"(?:,? and |, )\$?[a-z] ?= ?-?[0-9][0-9./]*\$?$"
)
"""Answers of other kinds: a set with a name, and two letters, `x = 3 and y = -2`."""
QUOTED = re.compile(r"(?<=[ :])[\"\u201c]([^\"\u201c\u201d]{1,40})[\"\u201d]")
DRESSED_OPTION = re.compile(r"\\(?:text|textbf|mathrm|mathbf) ?\{\([A-J]\)\}[~ ]*")
RATIO = re.compile(r"\b(?:ratio|odds|proportion)\b", re.IGNORECASE)
CHANCE = re.compile(r"\b(?:probability|chances?|likelihood)\b", re.IGNORECASE)
PART_OF = re.compile(
    r"[0-9]\S*(?: [a-z]+)? of (?:the|those|these|all|his|her|their) [$\u20ac\u00a3]?$",
    re.IGNORECASE,
)
"""`pays $12 of the $48`"""
ASKS_A_DISCOUNT = re.compile(r"\b(?:off|discount\w*)\b", re.IGNORECASE)
OFF = re.compile(r"(?<=%|t) off(?: (?:of )?(?:the|its) (?:[a-z]+ )?price)?$")
ONE_IN = re.compile(r"(?<![0-9.,])(?P<top>[0-9]+) in (?P<bottom>[0-9]+)(?=[.!*]*$)")
IN_RATIO = re.compile(r"(?<=[0-9]) to (?=[0-9]+\b(?!:))")
CONCLUDED = re.compile(
    r"(?:^|[.!?\n]\s{1,4})[*_]{0,2}(?:so|thus|therefore|hence|altogether|in total)\b", re.IGNORECASE
)
LEFT_OVER = re.compile(
    r",? (?:with|and|leaving) (?:none|nothing|no [a-z]+|[0-9]+(?: [a-z]+)?)(?: (?:is|are))? "
    r"(?:left(?: over)?|remaining)$"
)
SHARES = "half|third|quarter|fourth|fifth|sixth|eighth|tenth|hundred|thousand|million"
VALUE = re.compile(
    r"(?<![\w.,^_{(\\*$#-])(?:\\?\$|\\\(|[(\[](?=[-\u2212]?(?:[0-9]|\u221e|\\infty))|\+(?=[0-9])"
    r"|\\pm(?![a-z])"
    r"|[\u00b1\u20ac\u00a3\u00a5\u20b9]|\\\{|\\(?:sqrt|[dt]?frac|pi|infty|sin|cos|tan|ln|log"
    r"|binom)(?![a-z])"
    r"|(?:(?<=is )|(?<=gives )|(?<=get )|(?<=equals )|(?<=obtain )|(?<=so )|(?<=so, )|(?<=thus )"
    r"|(?<=hence ))"
    r"[a-z](?= ?[-+^\u00b2\u00b3<>\u2264\u2265])|(?:sqrt|exp)\(|\{(?=-?[0-9])"
    r"|(?:negative |minus |[-\u2212])?(?:\.?[0-9]|[\u221a\u03c0\u00bc-\u00be])"
    rf"|(?:(?:negative|minus) )?(?:zero|{'|'.join(list(CARDINALS)[2:])}"
    rf"|(?:one|an?)(?= (?:{SHARES})\b))\b)",
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
    r" (?:to|at|in|for|of|below|above|between|up|from|on|that|who|which|when|after|because|since|as"
    r"|with|left"
    r"|available|altogether|by [a-z]+ing)\b",
    re.IGNORECASE,
)
LIMITING = re.compile(
    r"\b(?:every|each|per|(?<!up )(?<!down )(?<!increased )(?<!decreased )(?<!dropped )"
    r"(?<!fell )(?<!rose )(?<!grew )(?<!differ )(?<!won )by|all|these|those|this|my|part"
    r"|step)[\s$\\(]*$",
    re.IGNORECASE,
)
DATE = re.compile(
    r"\b(?:Jan|Febr)uary $|\b(?:March|April|May|June|July|August) $"
    r"|\b(?:Septem|Octo|Novem|Decem)ber $"
)
"""`bought on July 12` names a day."""
BEYOND = re.compile(r"\b(?:after|before|past|until|till|since|beyond)[\s$\\(]*$", re.IGNORECASE)
"""`after 2024` is no year, and `after 18 minutes` is a duration."""
TO = re.compile(
    r"\b(?:fell|falls|rose|rises|drops|dropped|grew|grows|changed|changes|increased|decreased|went"
    r"|came)"
    r" (?:up |down )?to[\s$\\(]*$",
    re.IGNORECASE,
)
"""`fell to 25%`: not the amount by which it fell."""
EQUATED = re.compile(r".*= *[^0-9=]{0,8}[0-9][0-9,.]*", re.DOTALL)
NEXT_CLAUSE = re.compile(r"[,;:](?![0-9])|\u2248|\\approx|\bi\.e\.|\b(?:so|or|and|that is)\b")
CLAUSE_END = re.compile(
    r"[,;(](?![0-9])|\b(?:because|since|as|so|which|that|when|while|after|and|if)\b", re.IGNORECASE
)


def main_clause(sentence: str) -> str:
    """The clause of `sentence` that states its value; a sentence of one clause unchanged."""
    sentence = INSERTED.sub("," if REASON.match(sentence) else "", sentence)
    for form in (SUBORDINATE, RESULT, TOTAL):
        cut = form.search(sentence)
        if (
            cut is None
            or UNSURE & words_asked(sentence[: cut.end()])
            or " than " in sentence[cut.end() :]
        ):
            continue
        if form is not SUBORDINATE or VERB.search(sentence, cut.end()) is not None:
            sentence = sentence[cut.end() :]
    return sentence


def stated_value(sentence: str, *, text: str, question: str) -> str | None:
    """The value that a closing `sentence` of `text` states, with its unit; None if it states none
    or says more.
    """
    if CUT_OFF.search(sentence) or ITEM.match(sentence) or IMAGINED.match(sentence):
        return None
    if (
        " than " in sentence
        and CONCLUDED.search(text, 0, max(text.rfind(sentence), 0))
        and not asks_a_difference(question)
    ):
        return None  # the sentence compares an earlier conclusion
    if TENTATIVE.search(sentence) or has_foreign_word(sentence):
        return None
    sentence = without_exclamation(sentence, f"{question}\n{text}", bare=False)
    sentence = sentence.removeprefix("> ").replace("**", "").replace("__", "")
    sentence = QUOTED.sub(r"\1", sentence)
    sentence = without_explanations(DRESSED_OPTION.sub("", sentence))
    sentence = IN_RATIO.sub(":", sentence) if RATIO.search(sentence) else sentence
    sentence = ONE_IN.sub(r"\g<top>/\g<bottom>", sentence) if CHANCE.search(sentence) else sentence
    contrast = contrasted(sentence)
    sentence = main_clause(contrast.answer if contrast is not None else sentence)
    for emphasised in EMPHASISED:
        sentence = emphasised.sub(r"\2", sentence)
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
    sentence = _without_remarks(sentence.rstrip(". "), question=question)
    named_set = NAMED.search(sentence)
    if named_set is not None:
        lead = sentence[: named_set.start()]
        return None if is_provisional(lead, question=question) else named_set[0]
    if ABOUT_ANSWER.search(sentence) or REQUEST.search(sentence):
        return None
    return _first_value(sentence, question=question)


def _first_value(sentence: str, *, question: str) -> str | None:
    """The first value in a `sentence`; None if the words before it change its meaning."""
    begin, end = _behind_an_equation(sentence)
    for start in VALUE.finditer(sentence):
        if begin <= start.start() < end:
            continue
        lead, value = sentence[: start.start()], sentence[start.start() :]
        if PART_OF.search(lead) or _is_other_difference(value, lead=lead, question=question):
            return None
        value = _without_circumstances(value, question=question)
        if is_value(value, question=question):
            if tells_the_other_part(lead, sentence, question=question):
                return None
            return _after(lead, value, question=question)
    return None


def _after(lead: str, value: str, *, question: str) -> str | None:
    """`value` after the words before it; None if they change its meaning."""
    if is_provisional(lead, question=question, terms=value.rpartition("=")[0]):
        return None
    if (
        LIMITING.search(lead)
        or NUMBERED_BEFORE.search(lead)
        or _names_a_day(lead, question=question)
    ):
        return None
    if BEYOND.search(lead) and not _is_measured(value):
        return None
    quantity = read_quantity(without_markup(value), question=question)
    counted = frozenset() if quantity is None else frozenset(quantity.counted[:1])
    if counted & OF_A_SOLUTION - words_asked(question):
        return None
    if is_rough(lead):
        return f"\\approx {value}"
    if denies(lead) or (not is_several(value) and changes(lead, question=question)):
        return None
    return value


def _without_remarks(sentence: str, *, question: str) -> str:
    """`sentence` without words at its end that do not affect the value before them: `is the
    answer`, `with none left over`.
    """
    if ASKS_A_DISCOUNT.search(question):
        sentence = OFF.sub("", sentence)
    if not ASKS_THE_REST.search(question):
        sentence = LEFT_OVER.sub("", sentence)
    return AFFIRMED.sub("", sentence)


def stated_foreign_value(sentence: str, *, question: str) -> str | None:
    """The only number, with its unit, of the last clause of a `sentence` in another language."""
    clause = after_conclusion(re.split(r"[,;:](?![0-9])", plain(sentence))[-1])
    english = in_english(clause, question=question)
    if english is None or len(DIGITS.findall(english)) != 1 or OPERATED.search(english):
        return None
    number = NUMBER.search(english)
    value = english[number.start() :] if number is not None else ""
    return value if is_value(value, question=question) else None


def _is_other_difference(value: str, *, lead: str, question: str) -> bool:
    """Whether `value` begins with a difference that `question` does not ask for, or `lead` gives
    the new value although the question asks for the change.
    """
    compared = is_compared(CLAUSE_END.split(value)[0])
    if TO.search(lead) and (compared or asks_by(question)):
        return True
    return compared and bool(question) and not asks_a_difference(question)


def _behind_an_equation(sentence: str) -> tuple[int, int]:
    """Begin and end of the words after an equation's number, up to the end of its clause: a number
    among them is not stated.
    """
    equated = EQUATED.search(sentence)
    if equated is None:
        return 0, 0
    clause = NEXT_CLAUSE.search(sentence, equated.end())
    return equated.end(), len(sentence) if clause is None else clause.start()


def _is_measured(value: str) -> bool:
    """Whether `value` is a duration or another amount, not a point in time."""
    quantity = read_quantity(without_markup(value))
    return (
        quantity is not None
        and bool(quantity.units or quantity.counted)
        and not CLOCK & {*quantity.units}
    )


def _names_a_day(lead: str, *, question: str) -> bool:
    """Whether `lead` ends with a month that `question` does not name."""
    month = DATE.search(lead)
    return month is not None and month[0].strip() not in question


def _without_circumstances(text: str, *, question: str) -> str:
    """The first words of `text` that are a value, if the words after them neither change it nor add
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
            or (said & HARMFUL) - asked_words - FREE
            or "if" in said
            or not is_value(text[:end], question=question)
        ):
            continue
        counted = read_quantity(without_markup(text[:end]), question=question)
        if not rest.strip() or PLACES.match(rest) or (counted is not None and counted.counted):
            return text[:end] if not is_value(text, question=question) else text
    return text
