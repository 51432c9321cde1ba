r"""Finds the answer of a text without a mark: a last line that is only a value, or a closing
sentence.

`**85**`, `$2\sqrt{3}$` or `Total: $650` alone on the last line is an answer, and so is a last
sentence that states one value plainly: `Therefore, the area is 15 square units.` Only the end of a
text counts: a number in the middle is no answer. The rules for words around the value are those of
marked answers (`envs.math.leads`, `envs.math.quantities`), and stricter: nothing provisional (`So
far ...`), no second value, no doubt in the sentence before.
"""

import re

from envs.math.agreement import is_mathematics, without_units
from envs.math.answers import MarkedAnswer, in_plain_signs
from envs.math.approximation import size_of
from envs.math.clauses import COMPARED, IMAGINED, REASON, main_clause, without_asides
from envs.math.contrasts import contrasted
from envs.math.conversions import read_compound
from envs.math.dress import EMPHASISED, undressed
from envs.math.languages import after_conclusion, in_english, leads_elsewhere
from envs.math.last_lines import last_lines, last_sentence
from envs.math.leads import ASKS_A_BOUND, BOUND, changes, denies, is_rough
from envs.math.notation import in_latex, is_several, numeral
from envs.math.plain_text import DRESS, plain
from envs.math.quantities import SIGN_WORDS, read_quantity, stem, words_of
from envs.math.sentences import SENTENCE_END, TAIL, without_exclamation
from envs.math.statements import AFFIRMED, ASKS_THE_REST, KEPT, PARTED, read_statement
from envs.math.vocabulary import (
    ALTERNATIVES,
    AMOUNTS,
    CARDINALS,
    CHANGING,
    DATES,
    HEDGES,
    LINKS,
    words,
)

ITEM = re.compile(r"(?:[-*+\u2022|]|\(?[0-9a-z]{1,2}[.)]|#+)\s+")
CUT_OFF = re.compile(r"(?:[,;:+/=(\[{<-]|\.\.\.?|\u2026|\?)[\s*_$]*$")
OPEN = re.compile(r"[-+*/(\[{]$(?<!\*\*)")
"""A line that continues in the next one."""
NAMED_SET = re.compile(
    r"(?<=\bis )all (?:real numbers|reals)$|(?<=\bare )no (?:real )?solutions$|(?<=\bhas )no (?:real )?solutions?$"
)
SYSTEM = re.compile(
    r"(?<![\w$])\$?(?!(?P<same>[a-z]) ?=.*(?P=same) ?=)[a-z] ?= ?-?[0-9][0-9./]*\$?(?:,? and |, )\$?[a-z] ?= ?-?[0-9][0-9./]*\$?$"
)
"""`x = 3 and y = -2`, two letters."""
DIGITS = re.compile(r"[0-9][0-9.,]*")
NUMBER = re.compile(r"[-+$\u20ac\u00a3]{0,2}\.?[0-9]")
YES_OR_NO = re.compile(r"(Yes|No)\b(?:, (?!wait|but|or|maybe)|[.!]*$)")
ASKS_YES_OR_NO = re.compile(
    r"(?:^|[.!?] +|, )(?:is|are|was|were|do|does|did|can|could|will|has|have|must|should)\b[^.!?]*\?\s*$",
    re.IGNORECASE,
)
CHOICE = re.compile(r"\(?([A-J])\)?\.?")
OPTION = re.compile(
    r"(?:\b(?:[Oo]ption|[Cc]hoice)(?: is)?:? \(?(?P<named>[A-J])\)?"
    r"(?: is (?:the )?(?:correct|right)(?: (?:one|option|choice|answer))?"
    r"| (?:satisfies|fits|matches|meets) (?:both|all|the|every|each|this|these) [a-z ]{1,40}"
    r"| as (?:the|our|my) (?:only |correct |right |final )?(?:answer|option|choice)(?: left)?"
    r"| (?:remains|is left)"
    r"|(?:(?<=\))|[:.,]| [-\u2013\u2014]) (?P<text>[^;?]{1,80}))?"
    r"|(?:^|[ ,])\(?(?P<first>[A-J])\)? is (?:the )?(?:correct|right|final|only)(?: (?:answer|option|choice))?"
    r"(?: that (?:works|fits|remains))?)$"
)
TEXT = re.compile(r"[A-Za-z]+(?:[ -][A-Za-z]+)?")
MATRIX = re.compile(r"\\(?:begin|end)\{(?:[a-z]?matrix|cases)\}")
JOINT = re.compile(
    r"(?<=[0-9})$]),? (?:or|and) (?=[$\\(]{0,3}(?:[a-z] ?[=<>\u2264\u2265\\]|-?[0-9\\]))"
)
MATHEMATICAL = re.compile(
    r"[0-9]|\\(?:pi|infty|frac|sqrt|mathbb|varnothing|emptyset)|[\u03c0\u221e\u00b2\u00b3\u2070-\u209f]|^[a-z]\W"
)
CONTRACTED = re.compile(r"\b(it|that|this|there|he|she)['\u2019]s\b", re.IGNORECASE)
QUOTED = re.compile(r"(?<=[ :])[\"\u201c]([^\"\u201c\u201d]{1,40})[\"\u201d]")
AGAIN_TALL = re.compile(r"(?<=\)) (?:tall|long|wide|deep|high|old)(?=[.!]*$)")
"""`5 ft 4 in (64 inches) tall`"""
RATIO = re.compile(r"\b(?:ratio|odds|proportion)\b", re.IGNORECASE)
IN_RATIO = re.compile(r"(?<=[0-9]) to (?=[0-9])")
LABEL = re.compile(r"(?P<label>[A-Za-z][A-Za-z ']{0,80}?)\s*[:=]\s*(?P<value>.*[0-9].*)", re.DOTALL)
LABELS = (
    AMOUNTS
    | LINKS
    | words(
        "the final grand overall net result results solution sum product difference quotient "
        "average mean median revenue number altogether conclusion summary so thus therefore hence simplified "
        "domain range interval midpoint vertex root roots zeros slope limit derivative integral determinant "
        "inverse gradient center centre radius coordinates ratio probability"
    )
)
DOUBT = re.compile(
    r"\b(?:maybe|perhaps|possibly|either|unsure|guess|might|could|probably|uncertain|not sure|cannot (?:say|tell))\b",
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
"""Words of a sentence whose number is no final answer; those of the question are harmless."""
FOR_ALL = re.compile(r",? for (?:all|any|every) [a-z ]{0,30}\$?[a-z]\$?$")
"""`f(x) = x^2 for all real x`"""
TIME = re.compile(r"[0-9]{1,2}:[0-9]{2}(?: ?[ap]\.?m\.?)?", re.IGNORECASE)
NAMED_IN_BOLD = re.compile(
    r"\b(?:is|are|was|be|on|becomes) (?:an? |the )?\*\*(?!correct|right)([A-Za-z]+(?: [A-Za-z]+)?)\.?\*\*[.!]*$"
    r"|^\*\*(Yes|No)(?:\*\*,|,\*\*) [^?]*$"
)
NAMED = re.compile(
    r"\b(?:is|are|was|be|on) (?:an? )?(true|false|even|odd|neither|[A-Z][a-z]+day)[.!]*$|^\**(Yes|No)\**(?:,| [\u2013\u2014-]) [^?]*$"
)
"""`The function is even.`"""
NEXT = re.compile(r"\bthe next (?=[a-z])", re.IGNORECASE)
"""`The next number` of a sequence is what is asked for."""
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
WORDS = re.compile(r"[A-Za-z]+(?:['\u2019][A-Za-z]+)*")
LIMITING = re.compile(
    r"\b(?:every|each|per|(?<!up )(?<!down )(?<!increased )(?<!decreased )(?<!dropped )"
    r"(?<!fell )(?<!rose )(?<!grew )(?<!differ )(?<!won )by|all|these|those|this|my|part|step)[\s$\\(]*$",
    re.IGNORECASE,
)
DATE = re.compile(
    r"\b(?:Jan|Febr)uary $|\b(?:March|April|May|June|July|August) $|\b(?:Septem|Octo|Novem|Decem)ber $"
)
"""`bought on July 12` names a day."""
STATED = re.compile(
    r"\b(?:is|are|was|were|has|have|had|equals) (?:[a-z]+ ){0,3}[$\\(]{0,3}(-?[0-9][0-9.,]*+)(?!\s*[-+*/\u00d7\u00f7=^0-9.])",
    re.IGNORECASE,
)
"""A value that is stated before the last one."""
OPERATED = re.compile(
    r"[\u00b2\u00b3^]|[0-9]\s*[a-z]\b|\b[a-z]\s*[-+*/]\s*[0-9]|[0-9]\s*[-+*/]\s*[a-z]\b"
)
"""The left side of an equation that is not solved: `2x = 18`."""


def concluded_answer(text: str, *, question: str = "") -> MarkedAnswer | None:
    """The answer at the end of an unmarked `text`; None if it ends in anything but an answer."""
    tail, whole = in_plain_signs(text[-TAIL:]), len(text) <= TAIL
    stated = without_asides(tail.rstrip())
    answer = None if stated is None else _at_the_end(stated, whole=whole, question=question)
    return answer if answer is not None else _at_the_end(tail, whole=whole, question=question)


def _at_the_end(text: str, *, whole: bool, question: str) -> MarkedAnswer | None:
    lines = last_lines(text, whole=whole)
    if not lines:
        return None
    last, before = lines[-1], lines[:-1]
    position = len(text) - len(last)
    total = _total(last, question=question)
    if total is not None:
        other = _total(before[-1], question=question) if before else None
        return MarkedAnswer(total, position, other is not None and other != total)
    alone = _alone(last, question=question, whole=not before)
    if alone is not None:
        return MarkedAnswer(alone, position, _spoils(before, alone, question=question))
    sentence = last_sentence(last)
    concluded = (
        _named(sentence, NAMED_IN_BOLD, question=question)
        or _concluded(sentence, text=text, question=question)
        or _named(sentence, NAMED, question=question)
    )
    if concluded is None and leads_elsewhere(sentence.rstrip(".\u3002 ")):
        concluded = _concluded_elsewhere(sentence, question=question)
    return None if concluded is None else MarkedAnswer(concluded, position)


def _alone(line: str, *, question: str, whole: bool) -> str | None:
    """The value that `line` is, without markup; None if it has anything else."""
    if ITEM.match(line) or CUT_OFF.search(line):
        return None
    inside = undressed(line.replace("**", " ") if ":" in line else line)
    for emphasised in EMPHASISED:
        inside = emphasised.sub(r"\2", inside)
    if not inside or "?" in inside or (inside.endswith("!") and "$" not in line):
        return None
    if (
        read_quantity(inside, question=question) is not None
        or read_compound(inside, question=question) is not None
    ):
        return inside
    if CHOICE.fullmatch(inside) or _is_mathematics(inside) or numeral(inside) is not None:
        return inside
    inside = inside.replace("**", "")
    parts = read_statement(inside, question=question) if NUMBER.match(inside) else ()
    if parts and not any(isinstance(part, str) for part in parts):
        return inside
    option = re.match(r"\(?[A-J][.)]\s+(?=\S)", inside)
    if option is not None and read_quantity(inside[option.end() :]) is not None:
        return inside
    labelled = LABEL.fullmatch(DRESS.sub(r"\1", inside))
    further = labelled is not None and SENTENCE_END.search(labelled["value"].rstrip()) is not None
    if (
        labelled is not None
        and not further
        and _is_plain_label(labelled["label"], question=question)
    ):
        return labelled["value"].strip()
    named = TEXT.fullmatch(re.sub(r"\\text ?\{([^{}]*)\}", r"\1", inside))
    dressed = whole or inside != line.rstrip(".")
    return (
        inside
        if named is not None and dressed and not CHANGING & set(named[0].lower().split())
        else None
    )


def _total(line: str, *, question: str) -> str | None:
    """The value of a line whose label names a total, also in a list: `- **Total: 54 pages**`,
    `Total pages read: 12 + 18 + 24 = 54`.
    """
    labelled = LABEL.fullmatch(undressed(_without_bullet(line).replace("**", " ")))
    if labelled is None or CUT_OFF.search(line):
        return None
    said = {word.lower() for word in WORDS.findall(labelled["label"])}
    apart = (
        CHANGING
        | PROVISIONAL
        | words("for per each step if on running side hand steps")
        | {day.lower() for day in DATES}
    )
    said -= {"over"} if "left" in said else set()
    if not said & words("total altogether overall left remaining") or said & apart:
        return None
    value = labelled["value"].strip()
    return value if _is_value(value, question=question) else None


def _without_bullet(line: str) -> str:
    bullet = ITEM.match(line)
    return line if bullet is None else line[bullet.end() :]


def _is_mathematics(text: str) -> bool:
    """Whether `text` is an expression, an equation, or a list of them joined by `or` and `and`."""
    bare = MATRIX.sub(" ", JOINT.sub(", ", without_units(text)).replace("$", " "))
    return is_mathematics(bare, truth="") and MATHEMATICAL.search(bare) is not None


def _is_plain_label(label: str, *, question: str) -> bool:
    said = [word.lower() for word in WORDS.findall(label)]
    if len(label) == 1:
        return True
    return all(
        word in LABELS or (stem(word) in words_of(question) and word not in CHANGING | PROVISIONAL)
        for word in said
    )


def _spoils(before: list[str], alone: str, *, question: str) -> bool:
    """Whether the line before a value alone has another value or a doubt, or changes the value's
    meaning.
    """
    if not before:
        return False
    line = before[-1]
    sentence = last_sentence(line)
    if DOUBT.search(sentence) or _differs(line, alone, question=question):
        return True
    if line.endswith((".", "!", "?")):
        return False
    said = [word.lower() for word in WORDS.findall(sentence)]
    if OPEN.search(line) or (
        not line[-1].isdigit() and (PROVISIONAL | HEDGES) & set(said) - _words_asked(question)
    ):
        return True
    if line.endswith((":", ",")):
        return denies(sentence) or changes(sentence, question=question)
    return denies(sentence) or bool((ALTERNATIVES | LINKS) & set(said[-1:]))


def _words_asked(question: str) -> frozenset[str]:
    return frozenset(word.lower() for word in WORDS.findall(question))


def _differs(line: str, alone: str, *, question: str) -> bool:
    """Whether `line`, above the last one, is another value alone."""
    other = _alone(line, question=question, whole=False)
    other = (
        _alone(_without_bullet(line), question=question, whole=False) if other is None else other
    )
    if other is None or other == alone:
        return False
    names, values = _name_and_value(alone), _name_and_value(other)
    if names[0] != values[0]:
        return False
    mine, others = (read_quantity(value, question=question) for value in (names[1], values[1]))
    if mine is not None and others is not None:
        return mine.value != others.value
    sizes = size_of(in_latex(names[1])), size_of(in_latex(values[1]))
    if None not in sizes:
        return sizes[0] != sizes[1]
    return (
        others is not None
        or CHOICE.fullmatch(other) is not None
        or TEXT.fullmatch(other) is not None
    )


def _name_and_value(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    return (name.strip(), value.strip()) if sign and "=" not in value else ("", text)


def _concluded(sentence: str, *, text: str, question: str) -> str | None:
    """The value that a closing `sentence` of `text` states, with its unit; None if it states none,
    or more than that.
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
        lead = sentence[: option.start()]
        doubtful = (
            denies(lead)
            or _is_provisional(lead, question=question)
            or bool(_doubts(option["text"] or ""))
            or re.search(r"\b[B-J]\b|\bA\)", option["text"] or "") is not None
        )
        return None if doubtful else str(option["named"] or option["first"])
    if labelled is not None and named and not _is_plain_label(labelled["label"], question=question):
        return None
    sentence = FOR_ALL.sub("", AFFIRMED.sub("", sentence.rstrip(". ")))
    for form in (NAMED_SET, SYSTEM):
        whole = form.search(sentence)
        if whole is not None and not _is_provisional(sentence[: whole.start()], question=question):
            return whole[0]
    for start in VALUE.finditer(sentence):
        lead, value = sentence[: start.start()], sentence[start.start() :]
        value = _without_circumstances(value, question=question)
        if _is_value(value, question=question):
            if _is_provisional(lead, question=question, terms=value.rpartition("=")[0]):
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


def _doubts(text: str) -> frozenset[str]:
    """The words of the text of an option that make it doubtful; a reason may say that others fail."""
    failing = words("fail fails") if REASON.match(text) else frozenset()
    return HEDGES & {word.lower() for word in WORDS.findall(text)} - failing


def _named(sentence: str, form: re.Pattern[str], *, question: str) -> str | None:
    """The word that a closing `sentence` states in the form of `NAMED` or `NAMED_IN_BOLD`."""
    named = form.search(sentence)
    lead = sentence[: named.start()] if named is not None else ""
    if named is None or denies(lead) or _is_provisional(lead, question=f"{question} claim"):
        return None
    word = next(group for group in named.groups() if group)
    rest = {said.lower() for said in WORDS.findall(sentence[named.start(named.lastindex or 0) :])}
    changed = CHANGING & {*word.lower().split()} or HEDGES & rest
    return None if DOUBT.search(sentence) or changed - words("no not false") else word


def _concluded_elsewhere(sentence: str, *, question: str) -> str | None:
    """The only number, with its unit, of the last clause of a `sentence` in another language."""
    clause = after_conclusion(re.split(r"[,;:](?![0-9])", plain(sentence))[-1])
    english = in_english(clause, question=question)
    if english is None or len(DIGITS.findall(english)) != 1 or OPERATED.search(english):
        return None
    number = NUMBER.search(english)
    value = english[number.start() :] if number is not None else ""
    return value if _is_value(value, question=question) else None


def _without_circumstances(text: str, *, question: str) -> str:
    """The first words of `text` that are a value, if the words after them neither change it nor add
    another: `12 ways to arrange them`.
    """
    asked_words = _words_asked(question)
    asked_numbers = set(DIGITS.findall(question[-TAIL:]))
    for end in [match.start() for match in re.finditer(r"(?<=[A-Za-z0-9%$)}]) (?=[A-Za-z])", text)][
        :6
    ]:
        rest = PERIOD.sub(" ", text[end:])
        named = re.search(r"[A-Za-z$]", text[:end]) or re.match(r" [a-z]+ [a-z]+ than", rest)
        if named and COMPARED.fullmatch(rest) and _is_value(text[:end], question=question):
            return text[:end]
        if set(DIGITS.findall(rest)) <= asked_numbers:
            rest = DIGITS.sub(" ", rest)
        said = {word.lower() for word in WORDS.findall(rest)}
        if (
            not CIRCUMSTANCES.fullmatch(rest)
            or (said & (CHANGING | PROVISIONAL)) - asked_words
            or not _is_value(text[:end], question=question)
        ):
            continue
        counted = read_quantity(undressed(text[:end]), question=question)
        if PLACES.match(rest) or (counted is not None and counted.counted):
            return text[:end] if not _is_value(text, question=question) else text
    return text


def _is_value(text: str, *, question: str) -> bool:
    inside = undressed(text)
    if (
        TIME.fullmatch(inside)
        or read_quantity(inside, question=question) is not None
        or read_compound(inside, question=question) is not None
    ):
        return True
    begins = NUMBER.match(inside) or SIGN_WORDS.match(inside)
    parts = read_statement(inside, question=question) if begins else ()
    return _is_mathematics(inside) or (
        bool(parts) and not any(isinstance(part, str) for part in parts)
    )


def _is_provisional(lead: str, *, question: str, terms: str = "") -> bool:
    """Whether the words before a value make it provisional, or contain another value that is not
    one of the `terms` from which the value is computed.
    """
    said = [word.lower() for word in WORDS.findall(NEXT.sub(" ", lead))]
    bound = BOUND.search(lead.rstrip(" $\\(")) is not None and ASKS_A_BOUND.search(question)
    harmless = _words_asked(question) | ({"at", "most", "least"} if bound else set())
    if (PROVISIONAL | HEDGES - {"should"}) & set(said) - harmless:
        return True
    unsolved = lead.rstrip().endswith("=") and OPERATED.search(
        re.split(r"[,;]|\b(?:so|thus|therefore|hence|that)\b", lead, flags=re.IGNORECASE)[-1]
    )
    stated = STATED.findall(re.split(r"[,;] (?:and )?(?:so|thus|therefore|hence)\b", lead)[-1])
    return bool(unsolved) or not {value.rstrip(".,") for value in stated} <= {
        *DIGITS.findall(terms)
    }
