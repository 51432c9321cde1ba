r"""Decides whether the words before a mark introduce the answer, or change it.

`So Natalia sold \boxed{72}` leads to the answer. `Twice \boxed{36}`, `more than \boxed{72}` and
`one of 70, \boxed{72}` state another number, or several. No word that changes a number (`CHANGING`)
may stand between it and the verb, or before it if the clause has no verb. The requested quantity
stands before the verb and may be anything (`The square root of 9 is \boxed{3}`), unless it denies
the whole (`It is false that x is \boxed{3}`).

Left out: the words after a mark (`answers`).
"""

import itertools
import re

from envs.math.parsing.foreign_changes import ONLY_FOREIGN_WORDS
from envs.math.parsing.introductions import names_an_operation
from envs.math.parsing.plain_text import plain
from envs.math.parsing.quantities import read_quantity, stem, words_of
from envs.math.parsing.vocabulary import (
    CHANGING,
    COMPARISONS,
    NUMERALS,
    OPERATIONS,
    ORDINARY_VERBS,
    WORDS,
    is_plural_noun,
    words,
)

DENYING = words(
    """
    or maybe perhaps possibly not don't dont doesn't isn't isnt either if unless might may could
    whether nor neither doubt never cannot wrong incorrect false suppose assume assuming nobody
    hardly seems seem appears probably presumably guess guessing
    can't couldn't wouldn't won't aren't wasn't weren't hasn't haven't didn't shouldn't mustn't
    """
)
DENIED = re.compile(
    r"\b(?:impossible|possible|false|untrue|wrong|incorrect|unlikely|doubtful|doubt|deny|denies"
    r"|denied|"
    r"reject|disagree|not (?:true|likely|certain|sure|clear|the case)|no way)\b[^.;]{0,40}\bthat\b"
    r"(?!.*\b(?:so|thus|hence|therefore)\b)",
    re.IGNORECASE,
)
RELATIVE = re.compile(
    r"\b(?:that|which|who) (?:is|are|was|were|has|have|do|does|did|can|could)"
    r"(?: not|n['\u2019]t)\b",
    re.IGNORECASE,
)
"""`the least number that is not divisible`: denies a property of the requested quantity."""
TENTATIVE = re.compile(
    r"\b(?:at first (?:sight|glance|blush|look|thought)"
    r"|on (?:the face of it|(?:a )?first (?:reading|inspection|thought|impression))"
    r"|naively|tentatively|superficially|seemingly|apparently"
    r"|(?:my|our|the|a) (?:first|initial|naive|gut|quick) (?:thought|guess|instinct|impression"
    r"|reaction|idea|feeling)s?)\b"
    r"(?!.*\b(?:but|however|though|although|while|whereas|actually|really|in fact|in reality|closer"
    r"|careful\w*)\b)",
    re.IGNORECASE | re.DOTALL,
)
"""`At first sight, thus the answer is 18`, without the result of a second look."""
IGNORING = re.compile(
    r"\bif (?:you|we|one|i) (?:ignore|disregard|forget|skip|exclude)\b", re.IGNORECASE
)
"""`If you ignore Tuesday, ...` answers another question."""
VERBS = ORDINARY_VERBS | words("becomes fell rose left")
"""Words after which the number is stated, besides those in -ed."""
PRONOUNS = words("he she it they we you i who which that this")
RESULT_IN = re.compile(
    r"\b(?:(?:evaluates?|simplif(?:y|ies)(?: from \S+)?|reduces?|amounts?|comes?|leads?"
    r"|rounds?|converges?|diverges?|tends?|rises?|rose"
    r"|falls?|fell|drops?|dropped|grows?|grew|equivalent|add(?:s|ed)?|sums?)"
    r"(?: up| down| out)? to|can (?:be )?[a-z]+(?: [a-z]+){0,6} in|(?:results?|resulting) in"
    r"|arrives? at|(?:given|found|up|down) by|(?:left|up) with)$",
    re.IGNORECASE,
)
JOINING = words("and by with from but than per both against versus")
"""Prepositions that join the number to another word, as the last word before it."""
FINAL = words(
    "final correct right exact required desired requested numerical numeric simplified overall "
    "corrected revised updated new actual true real proper best"
)
"""Attributes of an answer in `the ... answer is`."""
REWORKING = NUMERALS | OPERATIONS | COMPARISONS
BOUND = re.compile(r"\bat (?:most|least)$", re.IGNORECASE)
ASKS_A_BOUND = re.compile(r"\b(?:most|least|maxim|minim|small|larg|few|great)", re.IGNORECASE)
ROUGHLY = re.compile(
    r"(?:\b(?:about|around|roughly|approximately|approx\.?)|\\approx|\u2248)[\s$]*$",
    re.IGNORECASE,
)
RELATED = re.compile(
    r"(?:[<>\u2260\u2264\u2265\u2248\u221a~^_+*/|\u00d7\u00b7\u00f7\u2212\u2013-]|[<>/~]\s?="
    r"|(?<![0-9)n])!\s?=|\\neq?\s?=)$"
)
"""Signs after which a number is only related to the answer; `5! =` is a factorial."""
COMMAND = re.compile(r"\\([A-Za-z]+)\s*$")
PLACING = words(
    """
    in implies Rightarrow Longrightarrow rightarrow longrightarrow therefore to iff equiv quad qquad
    colon displaystyle big Big
    """
)
"""Commands that may stand before the answer."""
NUMBERING = re.compile(r"[#*\s]*[0-9]{1,2}[.)]\s*$")
DRESSED = re.compile(
    r"(?:\\(?:text|textbf|mathbf|mathrm|boldsymbol|bm|underline|color|f?box(?:ed)?|textcolor|large"
    r"|Large|huge)"
    r"(?:\{[a-z]*\})?\s*\{|\\begin\{[a-z*]+\}|(?<![A-Za-z}])[{(]|&|\\\\|\\left\s*\()\s*$"
)


EXCLUDING = re.compile(
    r"\b(?:rul(?:e|es|ed|ing) out|exclud(?:e|es|ed|ing)|eliminat(?:e|es|ed|ing))\b", re.IGNORECASE
)
"""`We can rule out option B`."""
SUPPOSING = re.compile(
    r"\b(?:maybe|perhaps|possibly|presumably|supposedly|conceivably)\b"
    r"|\b(?:i|we|let['\u2019]?s|let us|to|would|might|could|can) (?:\w+ )?(?:guess|suppose|assume"
    r"|presume|imagine|suspect|bet)\b"
    r"|\b(?:one|you|some|someone|people) (?:might|may|could|would) (?:\w+ )?(?:think|say|believe"
    r"|expect|guess|answer)\b",
    re.IGNORECASE,
)
"""`One might think that`, at any place in the clause."""


ATTRIBUTED = re.compile(
    r"\b(?!(?:i|we|you|one|that|this|which|it|us|to|can|could|would)\b)[a-z]+ "
    r"(?:say|says|said|claim|claims|claimed|insist|insists|insisted|argue|argues|argued|answer"
    r"|answers|answered)"
    r"(?: that)? (?:the |their |his |her )?(?:final |correct |right )?$",
    re.IGNORECASE,
)
"""`Many students say the answer is 18`: the answer of others."""


def is_attributed(lead: str) -> bool:
    """Whether the words before `answer is` attribute it to others."""
    return ATTRIBUTED.search(plain(lead) + " ") is not None


def denies(lead: str) -> bool:
    """Whether the words directly before a mark make it doubtful, or its sentence denies it."""
    if not lead.strip():
        return False
    if any(form.search(lead) for form in (DENIED, IGNORING, EXCLUDING, TENTATIVE)):
        return True
    clause = RELATIVE.sub(" ", re.split(r"[,;]", plain(lead))[-1])
    if SUPPOSING.search(clause):
        return True
    said = [word.lower().replace("\u2019", "'") for word in WORDS.findall(clause)][-3:]
    return bool(DENYING & set(said)) and "equivalently" not in said


def changes(lead: str, *, question: str) -> bool:
    """Whether `lead`, the sentence before a marked number, gives the number another meaning than
    the answer.
    """
    text = _bare(lead)
    if not text or NUMBERING.fullmatch(lead):
        return False
    if RELATED.search(text):
        return True
    command = COMMAND.search(text)
    if command is not None:
        return command[1] not in PLACING
    if text.endswith(("=", ":")):
        return False
    clauses = re.split(r"[,;](?![0-9])|\u2014", text)
    clause = clauses[-1]
    if not clause.strip():
        return (
            len(clauses) > 1 and read_quantity(clauses[-2].rpartition(":")[2].strip()) is not None
        )
    return _clause_changes(plain(clause).replace("*", " "), question=question)


def names_another_answer(lead: str) -> bool:
    """Whether the words before `answer is` name another answer: `the previous`, `twice
    the`.
    """
    said = [word.lower() for word in WORDS.findall(re.split(r"[,;:]", plain(lead))[-1])]
    places = [
        number
        for number, word in enumerate(said)
        if word in ("the", "a", "an", "my", "our", "your")
    ]
    if not places:
        return bool(REWORKING & set(said[-2:]))
    before, called = said[: places[-1]], said[places[-1] + 1 :]
    before = before[:-1] if before[-1:] == ["of"] else before
    return bool(REWORKING & set(before[-1:])) or not set(called) <= FINAL


def is_rough(lead: str) -> bool:
    """Whether `lead` calls the number that follows an approximation."""
    return ROUGHLY.search(lead) is not None


def _bare(text: str) -> str:
    r"""`text` without the markup of the number at its end: `$`, `\(`, `\text{`, spaces."""
    before = None
    while text != before:
        before = text
        text = (
            text.rstrip(" \t\r\n$`\"'\u201c")
            .removesuffix("**")
            .removesuffix("\\(")
            .removesuffix("\\[")
        )
        text = re.sub(r"\\[,;:! ]$|(?<=\s)[*_]{1,3}$|^[*_>#-]{1,3}$", "", DRESSED.sub("", text))
    return re.sub(r"^\s*[-*\u2022>]\s+", "", text)


def _clause_changes(clause: str, *, question: str) -> bool:
    if RESULT_IN.search(clause) is not None:
        return False
    if BOUND.search(clause) and ASKS_A_BOUND.search(question):
        return False
    said = WORDS.findall(clause)
    last = _last_verb([word.lower() for word in said])
    between = said[last + 1 :]
    if last < 0 and (re.search(r"[0-9)]$", clause) or not said):
        return True
    if re.search(r"[0-9)}\]]$", clause):
        return True
    if (CHANGING | ONLY_FOREIGN_WORDS) & {word.lower() for word in between}:
        return True
    if not between:
        return False
    final = between[-1].lower()
    joins = final == "to" and last < 0 and re.search(r"[0-9]|\bfrom\b", clause) is not None
    joins |= final in JOINING and len(between) > (final in ("by", "with"))
    receives = between[0].lower() == "the"  # `gives the chickens 20 cups`
    is_thing = is_plural_noun(final) and not receives and stem(final) not in words_of(question)
    return joins or is_thing or names_an_operation(clause)


def _last_verb(said: list[str]) -> int:
    """Place of the last verb in the words of a clause, or -1; a word after a pronoun is one."""
    after_pronouns = (
        number
        for number, (before, word) in enumerate(itertools.pairwise(said), start=1)
        if before in PRONOUNS and word not in JOINING and not _is_changing(word)
    )
    verbs = (number for number, word in enumerate(said) if _is_verb(word))
    return max([*verbs, *after_pronouns], default=-1)


def _is_verb(word: str) -> bool:
    if word in VERBS:
        return True
    return word.endswith("ed") and not word.endswith("eed") and not _is_changing(word)


def _is_changing(word: str) -> bool:
    """Whether `word` is a form of a word that changes a number: `rejects`, `rejected`."""
    return bool(
        CHANGING & {word, word.removesuffix("s"), word.removesuffix("ed"), word.removesuffix("d")}
    )
