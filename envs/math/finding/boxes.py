r"""The answer in a box, `\boxed{18}`, and the effect of its sentence on it.

Units and restatements after a box belong to the answer (`\boxed{18} apples`, `\boxed{18} = 9 \cdot
2`); an operation on it, another box or a doubt spoils it.
"""

import re
from collections import deque

from envs.math.finding.line_marks import (
    MAX_ANSWER_CHARACTERS,
    TAG_END,
    MarkedAnswer,
    introduces_another_answer,
)
from envs.math.finding.marks import Mark
from envs.math.parsing.contrasts import contrasted, denies_itself
from envs.math.parsing.languages import (
    FOREIGN_JOIN,
    SCRIPT,
    ends_in_foreign_language,
    foreign_lead_changes,
    has_foreign_change,
    has_foreign_retraction,
    in_english,
)
from envs.math.parsing.leads import TENTATIVE, changes, denies, is_rough
from envs.math.parsing.markup import MARKUP, without_markup
from envs.math.parsing.notation import is_several
from envs.math.parsing.plain_text import DRESS, plain
from envs.math.parsing.provisional import without_explanations
from envs.math.parsing.quantities import SIMPLE, Quantity, is_unit, read_quantity
from envs.math.parsing.sentences import (
    RETRACTION,
    SURROUNDINGS,
    TAIL,
    contradicts_in_its_clause,
    corrections,
    first_sentence,
    is_factorial,
    sentence_begin,
    taken_back,
)
from envs.math.parsing.statements import read_statement
from envs.math.parsing.vocabulary import (
    ALTERNATIVES,
    AMBIGUOUS,
    COMPARISONS,
    DATES,
    HEDGES,
    NUMERALS,
    OPERATIONS,
    PREFACES,
    QUANTIFIERS,
    WORDS,
)

CLOSERS = re.compile(
    r"(?:[ \t\r$*_`}\])]|\\[)\]]|\\[,;:! ]|\n(?!\s*[A-Z]|[ \t]*\n)"
    r"|\n+(?=[ \t]*(?:\\[)\]]|\$\$|\}|\\end)))*"
)
"""Closing markup of a box, up to the end of its paragraph."""
GOES_ON = re.compile(
    r"\s*(?:=|\\approx|\\equiv|\u2248|\((?!as |which ))|,? +(?:or|i\.e\.) "
    r"|,? *or (?:approximately|about|roughly|equivalently) "
)
RESTATED = re.compile(r"\bor\b|\(|i\.e\.|which is|that is")
PART_OF = re.compile(
    r"(?:[0-9.<>~^_+\u2212\u2013-]|[0-9)}] ?[-+*/] "
    r"|\\(?:cdot|times|neg|div|pm|sqrt|approx|sim|[lg]eq?|neq?)\s*\{?"
    r"|\\(?:sqrt|[dt]?frac)[^$\n]{0,200}\{)\$?$"
)
OPERATED = re.compile(
    r"\s*(?:\.[0-9]|\{,\}|\\\\\s*[-+$]*[0-9]|[\^!/+<>?~_&|]|[*](?!\*)|-(?! ?[A-Za-z])"
    r"|[,;:]?\s*(?:(?:and|to)\s+)?[-+$]*[0-9]"
    r"|\\(?:times|cdot|div|pm|le|ge|leq|geq|neq?|pi|sqrt|[dt]?frac"
    r"|(?:f|b|frame)?box(?:ed)?)(?![a-z]))"
)
EXCLAIMED = re.compile(r"!+[\s*_`.]*")
"""The end of an exclamation; in `$\\boxed{5}!$` it is a factorial."""
ANOTHER_CASE = re.compile(r"[,;] (?:and )?[$\\(]*-?[0-9][0-9.,]*[$\\)]* (?:for|if|when)\b")
"""`18 for odd n, 20 for even n`"""
IN_BRACKETS = re.compile(r"\(([^()0-9A-Za-z]{1,10})\)")
"""`\\boxed{72}(\u4e2a)`, what is counted in another script."""


def content_of_box(text: str, start: int) -> tuple[str, int]:
    r"""Content of the box whose command ends at `start`, and the end of the box."""
    opening = re.compile(r"[ \t]{0,8}\{").match(text, start)
    if opening is None:
        bare = re.compile(
            r"[ \t]*(\\[dt]?frac *\{[^{}]*\} *\{[^{}]*\}|(?:\\?\$)?[^\s{}$]{0,1000})"
        ).match(text, start)
        assert bare is not None  # it may be empty
        return bare[1].rstrip(".,;:"), bare.start(1) + len(bare[1].rstrip(".,;:"))
    first, depth = opening.end(), 1
    inside = text[
        first : first + 2 * MAX_ANSWER_CHARACTERS
    ]  # a longer one exceeds the limit in any case
    for brace in re.finditer(r"\\?[{}]", inside):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)  # an escaped brace is a character
        if depth == 0:
            return inside[: brace.start()].strip(), first + brace.end()
    line = inside.partition("\n")[0]  # the box is never closed: take the rest of its line
    return line.strip(), first + len(line)


def boxed_answer(text: str, mark: Mark, marks: deque[Mark], *, question: str) -> MarkedAnswer:
    """The answer in the box at `mark`, the last one of `text`; `marks` are those before it."""
    content, end = content_of_box(text, mark.end)
    marks = deque(
        earlier
        for earlier in marks
        if not (earlier.kind == "box" and content_of_box(text, earlier.end)[1] >= end)
    )
    after = MARKUP.sub(" ", text[end : end + SURROUNDINGS]).replace("</s>", " ")
    attached = re.match(r"(?:\\?%)?[A-Za-z]+", after)
    closers = CLOSERS.match(after)
    if closers is not None and after[:1] not in "^_":
        after = after[closers.end() :]
    sentence, rest = first_sentence(after)
    if EXCLAIMED.fullmatch(sentence) and not is_factorial(content, text[-TAIL:]):
        sentence = ""
    sentence = sentence.rstrip(" .$")
    sentence = without_explanations(TAG_END.split(sentence, maxsplit=1)[0])
    if attached is not None and not is_unit(attached[0]):
        return MarkedAnswer(f"{content}{attached[0]}", mark.start, True)
    begin = sentence_begin(text, mark.start)
    lead = text[begin : mark.start]
    inner = [earlier for earlier in marks if earlier.start >= begin]
    spoilt = denies(text[begin : inner[0].start] if inner else lead) or taken_back(rest, content)
    if inner and inner[-1].kind != "box":
        between = text[inner[-1].end : mark.start].lstrip(" }*_")
        opened = between.replace("\\(", " ").replace("\\[", " ")
        before = text[begin : inner[-1].start]
        spoilt = spoilt or (inner[-1].foreign and has_foreign_retraction(rest))
        spoilt = spoilt or introduces_another_answer(before, inner[-1], question=question)
        if without_markup(opened):
            content = f"{between} {content}".replace("$", " ")
    elif inner:
        first = without_markup(content_of_box(text, inner[-1].end)[0])
        if first != without_markup(content):
            said, again = read_quantity(first), read_quantity(without_markup(content))
            same = said is not None and again is not None and said.value == again.value
            spoilt, content = spoilt or not same, f"{first} = {content}"  # both must be right
    elif is_rough(lead):
        content = f"\\approx {content}"
    elif ends_in_foreign_language(lead):
        spoilt = (
            spoilt
            or bool(PART_OF.search(text, begin, mark.start))
            or foreign_lead_changes(lead)
            or has_foreign_change(sentence)
        )
    elif PART_OF.search(text, begin, mark.start) or (
        not is_several(content) and changes(lead, question=question)
    ):
        spoilt = True
    if _is_cut_off(text, mark, end):
        return MarkedAnswer(content, mark.start, True)
    if SCRIPT.search(content) or (inner and inner[-1].foreign):
        english = in_english(DRESS.sub(r" \1 ", content), question=question)
        spoilt, content = spoilt or english is None, english or content
    rest = corrections(rest)
    if not sentence:
        return MarkedAnswer(content.strip(), mark.start, spoilt, rest)
    answer = _with_sentence(content, sentence, mark, spoilt=spoilt, question=question)
    return answer._replace(rest=rest)


def _with_sentence(
    content: str, sentence: str, mark: Mark, *, spoilt: bool, question: str
) -> MarkedAnswer:
    """The answer in a box with the rest of its sentence: a unit, a restatement, a denied value."""
    bracketed = IN_BRACKETS.match(sentence)
    if bracketed is not None and SCRIPT.search(bracketed[1]):
        spoilt = spoilt or has_foreign_change(bracketed[1])
        sentence = sentence[bracketed.end() :].strip(" .\u3002")
        if not sentence:
            return MarkedAnswer(content.strip(), mark.start, spoilt)
    contrast = contrasted(sentence)
    own = (
        read_quantity(without_markup(f"{content} {contrast.answer}"), question=question)
        if contrast is not None
        else None
    )
    if (
        contrast is not None
        and own is not None
        and not denies_itself(own, contrast, question=question)
    ):
        sentence = contrast.answer
    if GOES_ON.match(sentence):
        return MarkedAnswer(f"{content} {sentence}".strip(), mark.start, spoilt)
    measured = f"{content} {sentence.rstrip(' .$')}"
    if SIMPLE.fullmatch(content.strip()) and RESTATED.search(sentence):
        parts = read_statement(measured, question=question)
        if parts and all(isinstance(part, Quantity) and part.units for part in parts):
            return MarkedAnswer(measured, mark.start, spoilt)
    spoilt = spoilt or _spoils(sentence) or contradicts_in_its_clause(sentence, content)
    if (
        not spoilt
        and SIMPLE.fullmatch(content.strip())
        and read_quantity(without_markup(measured), question=question) is not None
    ):
        return MarkedAnswer(without_markup(measured), mark.start)
    return MarkedAnswer(content.strip(), mark.start, spoilt)


def _is_cut_off(text: str, mark: Mark, end: int) -> bool:
    """Whether the text ends inside the box at `mark`, so that more of the answer may be missing."""
    opened = re.match(r"[ \t]{0,8}\{", text[mark.end : mark.end + 9])
    return (
        opened is not None
        and text[end - 1 : end] != "}"
        and not text[end:].strip()
        and text[end - 1 : end] not in "$)]"
    )


def _spoils(sentence: str) -> bool:
    """Whether the rest of the sentence after a box changes the answer, makes it doubtful or adds
    another.
    """
    if any(
        form.search(sentence) for form in (RETRACTION, ANOTHER_CASE, TENTATIVE)
    ) or FOREIGN_JOIN.match(sentence):
        return True
    if OPERATED.match(sentence) and not re.match(r"\^ ?\{? ?\\circ|/ ?[A-Za-z]", sentence):
        return True
    said = [word.lower() for word in WORDS.findall(plain(sentence)) if word not in DATES]
    if (HEDGES | ALTERNATIVES) & set(said) - {"then", "while", "also", "besides"}:
        return True
    compares_in_times = said[:1] == ["times"] and said[1:2] in ([], ["the"], ["as"], ["a"])
    if (NUMERALS - AMBIGUOUS | OPERATIONS) & set(said[:1]) and not compares_in_times:
        return True
    if said[:1] != ["which"] and (COMPARISONS - QUANTIFIERS - {"than"}) & set(said[:3]):
        return True
    compared = re.match(r"[A-Za-z]+ than (\w+)", sentence)
    if compared is None or said[0] not in QUANTIFIERS:
        return False
    return not compared[1].istitle() or compared[1].lower() in PREFACES
