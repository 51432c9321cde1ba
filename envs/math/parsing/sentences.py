r"""Splits text into sentences, and finds those that retract an answer, such as "Wait, no"."""

import re

from envs.math.parsing.markup import without_markup
from envs.math.parsing.quantities import read_quantity
from envs.math.parsing.vocabulary import WORDS, words

TAIL = 4000  # characters at the end of a text in which its conclusion is sought
SURROUNDINGS = 2000  # characters after an answer that may retract it
CAPITALS = "".join(
    chr(code) for code in (*range(0x100, 0x250), *range(0x1EA0, 0x1EFA)) if chr(code).isupper()
)
"""Capitals of Vietnamese, Polish, Turkish and others."""
SENTENCE_END = re.compile(
    r"(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bDr)(?<!\bSt)(?<!\bRs)(?<!\bapprox)(?!(?<=\bNo)\.\s+[0-9])"
    r"[.!?](?:[\"')*\]`$_]|\\[)\]])*\s+"
    r"(?=[a-z] ?= |\([^()]*\)[.\s]*$"
    r"|(?:[$*_(]|\\[(\[] ?)*(?:\\(?:(?:f|frame)?box|blacksquare|square\b|qed)|[0-9]+\*\*|\Z)"
    rf"|[*_(]*[A-Z\u00bf\u00a1\u00c0-\u00de\u0391-\u03a9\u0410-\u042f{CAPITALS}])|\u3002|\n"
    rf"|</think>"
)
RETRACTING = words(
    "or no nope not wait actually maybe perhaps possibly sorry oops correction alternatively hmm "
    "hm unless scratch ignore "
    "disregard but however although though rather edit never"
)
NO_FURTHER = re.compile(
    r"no (?:further|more|other|additional|need|problem|matter|one)\b", re.IGNORECASE
)
RETRACTION = re.compile(
    r"(?:\b(?:is|was|be|are|am|looks|seems)(?:n't)?|['\u2019]s) (?:\w+ )?"
    r"(?:wrong|incorrect|not (?:right|correct|sure|certain)|mistaken|false|unsure|uncertain"
    r"|a mistake)\b"
    r"|\b(?:not|n't) (?:\w+ )?(?:sure|certain|confident|right|correct)\b|\bi (?:\w+ )?guess"
    r"|\b(?:cannot|can['\u2019]?t|can not|could ?n[o'\u2019]t) (?:possibly |actually )?be (?:right"
    r"|correct|true|the|so|it)\b"
    r"|\b(?:does|do|did)(?: not|n['\u2019]t) (?:work|hold|fit|check|match|satisfy|add up|make sense"
    r"|solve)\b"
    r"|\bfails?\b|\bcontradict\w*"
    r"|\b(?:is|was|['\u2019]s) (?:not|n['\u2019]t) (?:a solution|the answer|valid|possible|it)\b"
    r"|\bisn['\u2019]t (?:a solution|the answer|valid|possible|it)\b"
    r"|\b(?:should|could|might|may) (?:\w+ )?(?:be"
    r"|have been) (?!(?:correct|right|clear|fine|enough|helpful)\b)"
    r"|\b(?:has|have|had|needs?|ought) to be (?:replaced|corrected|revised|changed|discarded)\b"
    r"|\balso possible\b|\banother (?:possible )?answer\b|\b(?:is|was|be|['\u2019]s) "
    r"too (?:low|high|small|large|big|little|few|many|much)\b"
    r"|\b(?:other|alternative|second|next|real|true) (?:\w+ )?(?:possibility|guess|candidate|answer"
    r"|option|choice)(?: is|:| (?:w|c)ould be)"
    r"|(?:\bis|['\u2019]s) (?:really|actually|in fact|rather|instead)\b[^.\n]{0,15}?[0-9]"
    r"|\b(?:just kidding|alternatively)\b|\bmade (?:a|an) (?:mistake|error)|\bsecond thoughts?\b"
    r"|\blet me (?:re|correct|fix|try)",
    re.IGNORECASE,
)


NAMED_ANSWER = (
    r"(?:correct|right|actual|true|real|corrected|proper) (?:final )?"
    r"(?:answer|count|total|value|result|number|sum|amount|figure|solution)"
)
CORRECTED = re.compile(
    rf"\b{NAMED_ANSWER}\b[^.;:\n0-9]{{0,40}}?(?:\b(?:is|are|was|be|equals|comes to)|:)"
    r"[\s$*\\(]*(?P<stated>-?[0-9][0-9,.]*)"
    r"|(?P<before>-?[0-9][0-9,.]*)[^.;:\n0-9]{0,40}, (?:and )?"
    rf"(?:which|this|that) is (?:therefore |thus |then )?the {NAMED_ANSWER}",
    re.IGNORECASE,
)
"""`so the correct count is 53`, `192, which is the right answer`."""
INSTEAD = re.compile(
    r"(?:^|[,;:] )(?:(?:so|thus|then|hence) )?it(?:['\u2019]s"
    r"| (?:is|was|must be|has to be|had to be)) "
    r"(?P<other>[^,;]+)$",
    re.IGNORECASE,
)
"""`It must be 20.`"""
THEREFORE = re.compile(
    r"^, (?:and )?(?:so|thus|hence|therefore|meaning|which means)(?: that)?,? (?:he|she|it|they|we"
    r"|you|i) [a-z]+ "
    r"(?P<other>[^,;]+)$",
    re.IGNORECASE,
)
"""`, so she has 20 apples`, directly after an answer."""
EXCLAMATION = re.compile(
    r"(?P<number>(?<![0-9,.])[0-9][0-9,.]*|(?<=[A-Za-z)}%$\u20ac]))"
    r"(?P<closed>(?:[*_`\"\u201d]{1,3}|\${1,2}|\\\)|</[a-z]{1,9}>){0,3})"
    r"(?P<mark>!+)(?P<dress>[*_`\s]*)$"
)
"""An exclamation mark at the end, after a number or a word and markup that closes there."""
NO_FACTORIAL = re.compile(r"(?<=\s)[A-Za-z]{2,}$|[%\u20ac]$")
"""Words of which there is no factorial: `18 apples!`."""
FACTORIAL = re.compile(
    r"(?:[0-9)]|\b[nkmr])!(?:\s*(?:[-+/=^}$,.?\\\u00d7\u00b7]|\* ?[0-9(nkmr])|[)0-9]| [a-z]+ )"
    r"|\b[Ff]actorial"
)
"""A factorial in a computation or before a noun: `6! = 720`, `5! ways`."""
REMAINDER = re.compile(r"\b(?:left|remain\w*|more|fewer|less|than|each|every|per)\b", re.IGNORECASE)


def without_exclamation(sentence: str, text: str, *, bare: bool = True) -> str:
    """`sentence` without an exclamation mark at its end, unless it is a factorial: `text` mentions
    factorials and computes another one, `3! = 6` before `4!`.

    Without `bare`, one directly after a number or a letter is a factorial in any case; `**18**!`
    and `18 apples!` are none.
    """
    ending = EXCLAMATION.search(sentence)
    if ending is None or is_factorial(ending["number"], text):
        return sentence
    if not (bare or ending["closed"] or NO_FACTORIAL.search(sentence[: ending.start("mark")])):
        return sentence
    return sentence[: ending.start("mark")] + ending["dress"]


def is_factorial(number: str, text: str) -> bool:
    """Whether `!` after `number` is probably a factorial in `text`, which mentions some and does
    not compute `number` itself.
    """
    computed = rf"=[\s$*\\(]*{re.escape(number)}(?![0-9!]|[ $]*[-+*/^\u00d7\u00b7])"
    return FACTORIAL.search(text) is not None and not (number and re.search(computed, text))


def first_sentence(text: str) -> tuple[str, str]:
    """The first sentence of `text`, and what follows it."""
    end = SENTENCE_END.search(text)
    if end is None:
        return text.strip(), ""
    return text[: end.start() + 1].strip(), text[end.end() :]


def sentence_begin(text: str, position: int) -> int:
    """Beginning of the sentence (or line) that contains `position`; limited to a few words before
    it.
    """
    window = text[max(0, position - 200) : position]
    last = None
    for last in SENTENCE_END.finditer(window):
        pass
    return position - len(window) + (last.end() if last is not None else 0)


def taken_back(rest: str, answer: str) -> bool:
    """Whether a sentence after the answer retracts it, or the next line is another number."""
    if not rest.strip():
        return False
    sentences = [
        sentence
        for sentence in re.split(r"(?<=[.!?])\s+|\n+", rest[:SURROUNDINGS])
        if sentence.strip()
    ]
    for number, sentence in enumerate(sentences):
        first = WORDS.search(sentence)
        if first is not None and _retracts(sentence, first):
            return True
        if RETRACTION.search(sentence):
            return True
        if _is_corrected(sentence, answer):
            return True
        if number == 0 and (other := read_quantity(without_markup(sentence))) is not None:
            said = read_quantity(without_markup(answer))
            return said is not None and said.value != other.value
        if number == 0 and _is_replaced(sentence, answer):
            return True
    return False


def is_another(text: str, answer: str) -> bool:
    """Whether `text` is another quantity than `answer`, without a unit that `answer` lacks."""
    said, other = read_quantity(without_markup(answer)), read_quantity(without_markup(text))
    if said is None or other is None or said.value == other.value:
        return False
    return set(other.units) <= set(said.units)


def _is_corrected(sentence: str, answer: str) -> bool:
    """Whether `sentence` calls another number than the answer the correct one."""
    corrected = CORRECTED.search(sentence)
    if corrected is None:
        return False
    said = read_quantity(without_markup(answer))
    other = read_quantity((corrected["stated"] or corrected["before"]).rstrip(".,"))
    return said is not None and other is not None and said.value != other.value


def _is_replaced(sentence: str, answer: str) -> bool:
    """Whether `sentence` says `it is 20` after the answer 18."""
    instead = INSTEAD.search(without_markup(sentence))
    return instead is not None and is_another(instead["other"], answer)


def contradicts_in_its_clause(clause: str, answer: str) -> bool:
    """Whether the `clause` after the answer 18 concludes another quantity: `, so she has 20`."""
    drawn = THEREFORE.match(clause.rstrip(" .$"))
    return (
        drawn is not None
        and REMAINDER.search(clause) is None
        and is_another(drawn["other"], answer)
    )


def corrections(rest: str) -> str:
    """Sentences after an answer that may correct it; empty if they only name another value."""
    if not rest or rest.isspace():
        return ""
    first = first_sentence(rest.strip())[0]
    return "" if read_quantity(without_markup(first)) is not None else rest


def _retracts(sentence: str, first: re.Match[str]) -> bool:
    """Whether the `first` word of a sentence, at its beginning, retracts the text before it."""
    begins = not sentence[: first.start()].strip(" (*_-\u2014.,;")
    return (
        begins and first[0].lower() in RETRACTING and not NO_FURTHER.match(sentence, first.start())
    )
