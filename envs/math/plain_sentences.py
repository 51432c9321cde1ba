r"""The number that a sentence of any words states: `Therefore Maria can fill 42 jars in a week`.

The other readers know the words around a number. This one knows those that do harm: a sentence
states its number if its main clause has no other one, if no word between the verb and the number or
after it changes the number (`CHANGING`), and if nothing in the sentence doubts, denies or goes on.
It reads English prose and plain numbers only, and is asked last.
"""

import re

from envs.math.clauses import IMAGINED
from envs.math.closing_sentences import (
    ABOUT_ANSWER,
    BEYOND,
    DATE,
    LIMITING,
    PERIOD,
    TO,
    without_point,
)
from envs.math.foreign_changes import has_foreign_word
from envs.math.introductions import names_an_operation
from envs.math.languages import FOREIGN_VERBS
from envs.math.leads import (
    ASKS_A_BOUND,
    DENIED,
    DENYING,
    RELATED,
    RESULT_IN,
    SUPPOSING,
    TENTATIVE,
    is_rough,
)
from envs.math.other_numbers import introduces_another_number, tells_the_other_part
from envs.math.plain_text import plain
from envs.math.provisional import DOUBT, PROVISIONAL, words_asked
from envs.math.quantities import Quantity, is_compared, read_quantity
from envs.math.questions import asks_a_difference
from envs.math.sentences import RETRACTION
from envs.math.values import CUT_OFF
from envs.math.vocabulary import (
    ABOUT_ITSELF,
    CHANGING,
    HEDGES,
    NUMBERED,
    NUMERALS,
    OF_A_SOLUTION,
    WORDS,
    words,
)

DIGIT = re.compile(r"[0-9]")
NUMBER = re.compile(
    r"(?<![\w.,^_{\\/])-?(?:US)?[$\u20ac\u00a3\u00a5\u20b9]?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)(?:/[0-9]+)?"
    r"(?:(?<!,)|(?=\W))(?![0-9]*[\w^/*+=!])"
)
NO_PROSE = re.compile(
    r"\\|[!<>~^_]|\.\.|[^\x00-\x7f\u20ac\u00a3\u00a5\u20b9\u2013\u2014\u2019\u00d7\u00b7\u00b0]"
)
DOLLARS = re.compile(r"\$(?=[^$0-9][^$\n]*\$)|(?<=[^$])\$(?![0-9.])")
"""Signs around mathematics, and not before an amount."""
BRACKETED = re.compile(r" ?\(([^()]*)\)")
LAST_BRACKET = re.compile(r"(?:^|(?<=\S) )\((?P<inside>[^()]{1,200})\)[.\s]*$")
BREAK = re.compile(
    r"(?:[,;:]|(?<![0-9])\s[-\u2013\u2014]|\u2014)\s+"
    r"|\s+(?=(?:because|since|as|while|when|where|after|so|which)\b)",
    re.IGNORECASE,
)
"""Between two clauses."""
SUBORDINATE = re.compile(
    r"(?:and )?(?:because|since|as|given|while|when|where|after|with|who|whose|which is|in|on|for|of|from|by|at"
    r"|having|out of|including|counting|i\.e\.|that is|[a-z]+ed (?:at|when|by|for|in)"
    r"|adding|subtracting|multiplying|dividing|using|putting)\b",
    re.IGNORECASE,
)
EXPLAINING = re.compile(
    r"(?:because|since|as(?! well\b)|including|counting|using|rejecting"
    r"|having [a-z]+(?:ed|nt|en|id|ld)|[a-z]+ed (?:at|by|for|in))\b",
    re.IGNORECASE,
)
"""Beginnings of a clause that may have any number beside the stated one."""
ADDED = re.compile(
    r"\b(?:as well as|along with|together with|aside from|apart from)\b", re.IGNORECASE
)
REQUEST = re.compile(r"^(?:please |just )?(?:give|grant|allow) (?:me|us)\b", re.IGNORECASE)
"""`Give me 17 seconds`"""
CONCLUDING = re.compile(
    r"(?:and )?(?:so|thus|therefore|hence|consequently|in conclusion|in total|altogether|overall|finally"
    r"|which (?:is|makes|gives|leaves|means|yields)|giving|leaving|making)\b",
    re.IGNORECASE,
)
VERBS = (
    r"(?:\b(?:is|are|was|were|be|been|equals?|makes?|made|gives?|yields?|gets?|got|leaves?|totals?|has|have|had"
    r"|obtains?|becomes|(?:comes?|came|amounts?|works?|adds?|sums?)(?: up| out| down)? (?:to|at|as)"
    r"|(?:ends?|left) (?:up )?with)\b|=)"
)
LAST_VERB = re.compile(rf"{VERBS}(?!.*{VERBS}.*[0-9])", re.IGNORECASE)
STATED = re.compile(rf"{VERBS}[^0-9=]*[0-9]", re.IGNORECASE)
"""A number that is stated before the last verb."""
UNSOLVED = re.compile(r"[0-9]\s*[a-z]\b|\b[a-z]\s*[-+*/^]|[-+*/]\s*[a-z]\b|\^")
COPULA = re.compile(
    r"\b(?:is|are|was|be|equals|becomes|gives|yields|obtain|get|(?:comes?|works?|amounts?|simplifies|evaluates)(?: out)? to)\b"
    r"(?!.*\b(?:is|are|was|be|equals|becomes|gives|yields|obtain|get|to)\b)(?=[: ])",
    re.DOTALL,
)
MATHEMATICAL = re.compile(r"^(?:\$|\\|[-(\[{0-9\u221a\u03c0]|[a-z]\W)")
AT_A_PLACE = re.compile(
    rf"\b(?:in|on|at|from|by|for|{'|'.join(sorted(NUMBERED))}) $", re.IGNORECASE
)
"""`on page 57`, `founded in 57`: a number without a unit that names a place or a time."""
SECOND_LETTER = re.compile(r"=.*[0-9].*[A-Za-z] ?=$")
"""`x = 3 and y =`"""
OPENING = words("so thus therefore hence then and the a")
GOING_ON = words(
    """
    so then thus hence therefore making giving leaving bringing yielding totalling totaling adding
    plus gives makes leaves another total now next need find must still let finally altogether answer
    """
)
"""Words after a statement that go on from its number."""
HARMFUL = PROVISIONAL | CHANGING | words("too alone loss discount")
FREE = words("total maximum minimum only just exactly final left over up single some any")
NUMBER_WORDS = NUMERALS - words("one some any all few many several single first")
ROUGHLY = words("about approximately approx around roughly")
MAX_UNIT_WORDS = 5


def has_number(text: str) -> bool:
    """Whether `text` has a number, in digits or in words."""
    return DIGIT.search(text) is not None or not NUMBER_WORDS.isdisjoint(words_asked(text))


def is_harmful(sentence: str, *, unless: frozenset[str] = frozenset()) -> bool:
    """Whether `sentence` doubts, denies, retracts or asks anything, but in words of `unless`."""
    said = {word.lower().replace("\u2019", "'") for word in WORDS.findall(sentence)}
    if (HEDGES | DENYING) & said - unless or sentence.rstrip().endswith("?"):
        return True
    forms = (
        RETRACTION,
        DOUBT,
        TENTATIVE,
        SUPPOSING,
        DENIED,
        ABOUT_ANSWER,
        IMAGINED,
        ADDED,
        REQUEST,
    )
    return any(form.search(sentence) for form in forms)


def without_explanation(text: str) -> str:
    """`text` without words in brackets at its end that hold neither a number nor a doubt."""
    bracket = LAST_BRACKET.search(text)
    inside = "" if bracket is None else bracket["inside"]
    if bracket is None or "\\" in inside or not _is_explained(inside):
        return text
    changes = HARMFUL & words_asked(inside) or has_number(inside) or is_harmful(inside)
    return text if changes else text[: bracket.start()]


def stated_number(sentence: str, *, question: str, marked: bool) -> str | None:
    """The number, with its unit, that `sentence` states; None if it states none, or several, or
    changes or doubts it. `marked`: the sentence stands behind a mark, and may begin with its number.

    >>> stated_number("Therefore Maria can fill 42 jars in a week.", question="", marked=False)
    '42 jars in a week'
    """
    prose = _prose(sentence)
    if prose is None or is_harmful(prose):
        return None
    prose = BRACKETED.sub(lambda part: " " if _is_explained(part[1]) else part[0], prose)
    clauses = [clause.strip() for clause in BREAK.split(prose) if clause.strip()]
    place = _main_clause(clauses)
    if place is None:
        return None
    before = clauses[place - 1] if place else ""
    if not DIGIT.search(before) and PROVISIONAL & words_asked(before):
        return None
    value = _stated(clauses[place], question=question, marked=marked)
    if value is None or tells_the_other_part(clauses[place], prose, question=question):
        return None
    number = read_quantity(value, question=question)
    assert number is not None  # `_stated` has read it
    for later in clauses[place + 1 :]:
        if _goes_on(later, number=number, question=question):
            return None
    return value


def stated_predicate(sentence: str, *, question: str) -> str | None:
    """What a `sentence` says after its last verb, if that looks like mathematics; None if words before
    it doubt it or make it another thing.
    """
    cut_off = CUT_OFF.search(sentence) is not None
    sentence = without_point(sentence.replace("**", "").rstrip(" .!"))
    verb = COPULA.search(sentence)
    if has_foreign_word(sentence):
        return None
    if cut_off or verb is None or is_harmful(sentence):
        return None
    head, predicate = sentence[: verb.start()], sentence[verb.end() :].strip(" :")
    if head.count("(") > head.count(")") or STATED.search(head):
        return None
    last = BREAK.split(predicate)[-1]
    if last != predicate and SUBORDINATE.match(last) and not DIGIT.search(last):
        predicate = predicate[: -len(last)].rstrip(" ,;:")
    if HARMFUL & words_asked(head + predicate) - words_asked(question) - FREE - ROUGHLY:
        return None
    return predicate if MATHEMATICAL.search(predicate) else None


def _goes_on(clause: str, *, number: Quantity, question: str) -> bool:
    """Whether a `clause` after the one that states `number` says another number."""
    begin = WORDS.findall(clause.lower().removeprefix("and "))[:1]
    if GOING_ON & {*begin} or read_quantity(clause, question=question) is not None:
        return True
    return has_number(clause) and EXPLAINING.match(clause) is None


def _prose(sentence: str) -> str | None:
    """`sentence` in plain characters; None if it is mathematics, another language or no sentence."""
    sentence = plain(DOLLARS.sub("", sentence.replace("**", "").replace("__", "").replace("`", "")))
    if CUT_OFF.search(sentence):
        return None
    bare = sentence.rstrip(" .!")
    end = sentence[len(bare) :]
    if bare[-1:].isdigit() and "!" in end and end != "!":
        return None  # a factorial: `6!.`
    sentence = without_point(bare)
    if (
        has_foreign_word(sentence)
        or NO_PROSE.search(sentence)
        or FOREIGN_VERBS & words_asked(sentence)
    ):
        return None
    if len(WORDS.findall(sentence)) < 3 or not DIGIT.search(sentence):
        return None
    return sentence


def _is_explained(inside: str) -> bool:
    """Whether brackets hold an explanation, and neither a value nor how it was rounded."""
    said = WORDS.findall(inside)
    rounded = {"nearest", "rounded"} & {*said}
    return len(said) > 2 and read_quantity(inside) is None and not rounded


def _main_clause(clauses: list[str]) -> int | None:
    """Place of the only clause with a number that is no subordinate one, or of the last if it
    concludes from the others.
    """
    places = [
        place
        for place, clause in enumerate(clauses)
        if DIGIT.search(clause) and not SUBORDINATE.match(clause)
    ]
    if not places:
        return len(clauses) - 1 if clauses and DIGIT.search(clauses[-1]) else None
    last = places[-1]
    concludes = CONCLUDING.match(clauses[last]) or (last and SUBORDINATE.match(clauses[last - 1]))
    return last if len(places) == 1 or concludes else None


def _stated(clause: str, *, question: str, marked: bool) -> str | None:
    """The only number after the last verb of `clause`, with its unit."""
    verb = LAST_VERB.search(clause)
    begin = verb.end() if verb is not None and DIGIT.search(clause, verb.end()) else 0
    head, predicate = clause[:begin], clause[begin:]
    number = NUMBER.search(predicate)
    if number is None:
        return None
    rest = PERIOD.sub(" ", predicate[number.end() :]).rstrip()
    if DIGIT.search(predicate[: number.start()] + rest):
        return None
    lead = predicate[: number.start()]
    begins = not begin and len(words_asked(lead) - OPENING) < 2
    equated = head.endswith("=")
    if begins and not (marked and (verb is not None or read_quantity(clause) is not None)):
        return None
    if not equated and STATED.search(head):
        return None
    if equated and (UNSOLVED.search(head.split("=")[-2]) or SECOND_LETTER.search(head)):
        return None
    if _changes(head, lead=lead, rest=rest, question=question):
        return None
    ends = [word.end() for word in WORDS.finditer(rest)][:MAX_UNIT_WORDS]
    for end in [*reversed(ends), len(rest) - len(rest.lstrip("% \u00b0"))]:
        if read_quantity(number[0] + rest[:end], question=question) is not None:
            left = rest[end:]
            harmful = HARMFUL & words_asked(left) - words_asked(question) - FREE
            plainly = re.fullmatch(r"[A-Za-z'\u2019 -]*", left) is not None
            return number[0] + rest[:end] if plainly and not harmful else None
    return None


def _changes(head: str, *, lead: str, rest: str, question: str) -> bool:
    """Whether the words around a number make it another one, or no answer."""
    asked = words_asked(question)
    bound = words("at most least") if ASKS_A_BOUND.search(question) else frozenset()
    if (
        HARMFUL & words_asked(lead) - asked - FREE - bound
        or PROVISIONAL & words_asked(head) - asked
    ):
        return True
    before = head + lead
    if any(form.search(before) for form in (LIMITING, BEYOND, TO, DATE)) or is_rough(before):
        return True
    if names_an_operation(before) or (
        AT_A_PLACE.search(before)
        and not RESULT_IN.search(before.rstrip())
        and not WORDS.search(rest)
    ):
        return True
    if RELATED.search(before.rstrip()) or introduces_another_number(
        before, after=rest, question=question
    ):
        return True
    said = WORDS.findall(rest.lower())
    if any(word.endswith("est") and len(word) > 5 for word in {*said} - asked):
        return True
    if said[:1] == ["times"] or (ABOUT_ITSELF | OF_A_SOLUTION) & {*said[:2]} - asked:
        return True
    return is_compared(rest) and not asks_a_difference(question)
