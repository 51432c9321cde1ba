r"""Finds the marked final answer in a model's text, and words around the mark that retract it.

An answer is marked by `#### x`, `\boxed{x}` (also `\fbox`, `\boxed x`), `<answer>x</answer>`,
`Answer: x` or `the answer is x`, in any case and markup (`envs.math.marks`); a line mark at the end
of its line refers to the next line. Of several marks the last one counts, because a text may
correct itself. A mark is spoilt, which makes the answer wrong, if its own sentence has another
answer or a doubt (`3 or \boxed{4}`), or if a later sentence retracts it (`Wait, that is wrong.`).
`envs.math.conclusions` finds the answer of a text without a mark.

The words before a mark are judged in `envs.math.leads`, and the marked words in
`envs.math.statements`. Everything here takes time linear in the text, which may be megabytes of
anything.
"""

import re
from collections import deque
from typing import NamedTuple

from envs.math.contrasts import contrasted, denies_itself
from envs.math.dress import MARKUP, undressed
from envs.math.languages import (
    JOINED_ELSEWHERE,
    PUNCTUATION,
    SCRIPT,
    changes_elsewhere,
    concludes,
    in_english,
    lead_changes_elsewhere,
    leads_elsewhere,
    retracts_elsewhere,
)
from envs.math.leads import (
    changes,
    denies,
    is_attributed,
    is_rough,
    leads_on,
    names_another_answer,
)
from envs.math.marks import Mark, last_marks, without_repetition
from envs.math.notation import is_several
from envs.math.plain_text import DRESS, plain
from envs.math.quantities import SIMPLE, Quantity, is_unit, read_quantity
from envs.math.sentences import (
    INDEPENDENT,
    RETRACTION,
    SURROUNDINGS,
    TAIL,
    contradicts_in_its_clause,
    corrections,
    first_sentence,
    sentence_begin,
    taken_back,
    without_exclamation,
)
from envs.math.statements import read_statement
from envs.math.vocabulary import (
    ALTERNATIVES,
    AMBIGUOUS,
    COMPARISONS,
    DATES,
    HEDGES,
    NUMERALS,
    OPERATIONS,
    PREFACES,
    QUANTIFIERS,
)

MAX_ANSWER_CHARACTERS = 1000  # of a final answer; a longer one is no final answer
BLOCKS = {"```": "```", "$$": "$$", "\\[": "\\]"}
BULLET = re.compile(r"[-*\u2022] +(?=\S)")
REMARK = re.compile(
    r"(?:absolutely |definitely |indeed |now )?(?:correct|right|good|fine|helpful|useful|clear|reasonable|valid|consistent|"
    r"verified|confirmed|below|above|shown|given|as follows|found|obtained|what)\b",
    re.IGNORECASE,
)
WORDS = re.compile(r"[A-Za-z]+(?:['\u2019][A-Za-z]+)*")
OPTION_B = re.compile(r"^[*_ \t]{0,8}B[*_]{0,2}:", re.MULTILINE)
TAG_END = re.compile(r"</(?:final[ _-]?)?answer>|\[/answer\]", re.IGNORECASE)
CLOSERS = re.compile(
    r"(?:[ \t\r$*_`}\])]|\\[)\]]|\\[,;:! ]|\n(?!\s*[A-Z]|[ \t]*\n)|\n+(?=[ \t]*(?:\\[)\]]|\$\$|\}|\\end)))*"
)
"""Closing markup of a box, up to the end of its paragraph."""
WIDTHLESS = re.compile(
    "(?<![0-9])[\u200b\u200c\u200d\u2060\ufeff]|[\u200b\u200c\u200d\u2060\ufeff](?![0-9])"
)
EMOJI = re.compile(
    "[\u2600-\u2712\u2714-\u2716\u2719-\u274b\u274f-\u2775\u2794-\u27bf\u2b50\ufe0f\U0001f300-\U0001faff]"
)
"""Pictures, without the crosses that call an answer wrong and without numerals in circles."""
GOES_ON = re.compile(
    r"\s*(?:=|\\approx|\\equiv|\u2248|\((?!as |which ))|,? +(?:or|i\.e\.) |,? *or (?:approximately|about|roughly|equivalently) "
)
RESTATED = re.compile(r"\bor\b|\(|i\.e\.|which is|that is")
PART_OF = re.compile(
    r"(?:[0-9.<>~^_+\u2212\u2013-]|[0-9)}] ?[-+*/] "
    r"|\\(?:cdot|times|neg|div|pm|sqrt|approx|sim|[lg]eq?|neq?)\s*\{?|\\(?:sqrt|[dt]?frac)[^$\n]{0,200}\{)\$?$"
)
OPERATED = re.compile(
    r"\s*(?:\.[0-9]|\{,\}|\\\\\s*[-+$]*[0-9]|[\^!/+<>?~_&|]|[*](?!\*)|-(?! ?[A-Za-z])|[,;:]?\s*(?:(?:and|to)\s+)?[-+$]*[0-9]"
    r"|\\(?:times|cdot|div|pm|le|ge|leq|geq|neq?|pi|sqrt|[dt]?frac|(?:f|b|frame)?box(?:ed)?)(?![a-z]))"
)

IF, WOULD = re.compile(r"\bif\b", re.IGNORECASE), re.compile(r"\bwould\b", re.IGNORECASE)
"""`If the price were $3, the answer would be 54` answers another question."""
ANOTHER_CASE = re.compile(r"[,;] (?:and )?[$\\(]*-?[0-9][0-9.,]*[$\\)]* (?:for|if|when)\b")
"""`18 for odd n, 20 for even n`"""
LISTED = re.compile(r"[\s$]*(?:,|and|,\s*and)[\s$]*")
"""Between the boxes of several solutions."""


class MarkedAnswer(NamedTuple):
    """The text after the last mark."""

    text: str
    """Without the mark and what surrounds it."""
    position: int
    """Position in the text where the mark begins."""
    spoilt: bool = False
    """Whether the text around it holds another answer, a doubt or a retraction."""
    rest: str = ""
    """The sentences after it, which may correct it; empty if they only name another value."""


def marked_answer(text: str, *, question: str = "") -> MarkedAnswer | None:
    """The last marked answer of `text`; None without a mark, empty for an empty mark."""
    text = in_plain_signs(text)
    marks = last_marks(text)
    text = without_repetition(text, marks)
    while marks:
        mark = marks.pop()
        if mark.kind == "phrase" and REMARK.match(text, _after_spaces(text, mark.end)):
            continue  # in "the answer is correct" it marks nothing
        if mark.kind == "short" and OPTION_B.search(text, mark.end, mark.end + SURROUNDINGS):
            continue  # marks the first of several options or persons
        box = _box_around(text, marks, mark)
        if box is not None:
            mark = box
            marks = deque(earlier for earlier in marks if earlier.start < box.start)
        return (
            _boxed(text, mark, marks, question=question)
            if mark.kind == "box"
            else _lined(text, mark, question=question)
        )
    return None


def in_plain_signs(text: str) -> str:
    """`text` without characters of no width and pictures, and with the digits and signs of other scripts as
    ASCII.
    """
    if text.isascii():
        return text
    return EMOJI.sub("", WIDTHLESS.sub("", text)).translate(PUNCTUATION)


def _after_spaces(text: str, start: int) -> int:
    end = start
    while end < len(text) and end < start + 20 and text[end] in " \t*_:":
        end += 1
    return end


def _box_around(text: str, marks: deque[Mark], mark: Mark) -> Mark | None:
    """The box of `marks` whose content holds `mark`."""
    if mark.kind == "box":
        return None
    for box in reversed(marks):
        if box.kind == "box":
            _, end = _content(text, box.end)
            return box if mark.start < end else None
    return None


def _content(text: str, start: int) -> tuple[str, int]:
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
    line = inside.partition("\n")[0]  # never closed: the rest of its line
    return line.strip(), first + len(line)


def _boxed(text: str, mark: Mark, marks: deque[Mark], *, question: str) -> MarkedAnswer:
    content, end = _content(text, mark.end)
    marks = deque(
        earlier
        for earlier in marks
        if not (earlier.kind == "box" and _content(text, earlier.end)[1] >= end)
    )
    after = MARKUP.sub(" ", text[end : end + SURROUNDINGS]).replace("</s>", " ")
    attached = re.match(r"(?:\\?%)?[A-Za-z]+", after)
    after = after[CLOSERS.match(after).end() :] if after[:1] not in "^_" else after  # type: ignore[union-attr]
    sentence, rest = first_sentence(after)
    sentence = INDEPENDENT.sub("", sentence.rstrip(" .$"))
    sentence = TAG_END.split(sentence, maxsplit=1)[0]
    if attached is not None and not is_unit(attached[0]):
        return MarkedAnswer(f"{content}{attached[0]}", mark.start, True)
    begin = sentence_begin(text, mark.start)
    lead = text[begin : mark.start]
    inner = [earlier for earlier in marks if earlier.start >= begin]
    spoilt = denies(text[begin : inner[0].start] if inner else lead) or taken_back(rest, content)
    if inner and inner[-1].kind != "box":
        between = text[inner[-1].end : mark.start]
        between = between.lstrip(" }*_")
        opened = between.replace("\\(", " ").replace("\\[", " ")
        spoilt = (
            spoilt
            or (inner[-1].foreign and retracts_elsewhere(rest))
            or _leads_elsewhere(text[begin : inner[-1].start], inner[-1], question=question)
        )
        if undressed(opened) and not leads_on(opened, question=question):
            content = f"{between} {content}".replace("$", " ")
    elif solutions := _solutions(text, [*inner, mark]):
        content = ", ".join(solutions)
    elif inner:
        spoilt = spoilt or undressed(_content(text, inner[-1].end)[0]) != undressed(content)
    elif is_rough(lead) and _has_decimals(content):
        content = f"\\approx {content}"
    elif leads_elsewhere(lead):
        spoilt = (
            spoilt
            or bool(PART_OF.search(text, begin, mark.start))
            or lead_changes_elsewhere(lead)
            or changes_elsewhere(sentence)
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


def _solutions(text: str, boxes: list[Mark]) -> list[str]:
    """The contents of boxes that list different solutions; [] for other boxes."""
    read = [_content(text, box.end) for box in boxes]
    gaps = [text[end : box.start] for (_, end), box in zip(read[:-1], boxes[1:], strict=True)]
    contents = list(dict.fromkeys(content for content, _ in read))
    listed = len(contents) > 1 and all(LISTED.fullmatch(gap) for gap in gaps)
    return contents if listed else []


def _with_sentence(
    content: str, sentence: str, mark: Mark, *, spoilt: bool, question: str
) -> MarkedAnswer:
    """The answer in a box with the rest of its sentence: a unit, a restatement, a value that is
    denied.
    """
    contrast = contrasted(sentence)
    own = (
        read_quantity(undressed(f"{content} {contrast.answer}"), question=question)
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
        and read_quantity(undressed(measured), question=question) is not None
    ):
        return MarkedAnswer(undressed(measured), mark.start)
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


def _has_decimals(content: str) -> bool:
    quantity = read_quantity(undressed(content))
    return quantity is not None and quantity.places > 0


def _leads_elsewhere(lead: str, mark: Mark, *, question: str) -> bool:
    """Whether the words before a line mark turn the marked value into something else."""
    if mark.foreign:
        return not concludes(lead)
    if mark.kind == "phrase":
        return names_another_answer(f"{lead} ")
    return mark.kind == "hash" and changes(lead, question=question)


def _spoils(sentence: str) -> bool:
    """Whether the rest of the sentence after a box changes the answer, makes it doubtful or adds
    another.
    """
    if any(form.search(sentence) for form in (RETRACTION, ANOTHER_CASE)) or JOINED_ELSEWHERE.match(
        sentence
    ):
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


def _lined(text: str, mark: Mark, *, question: str) -> MarkedAnswer:
    if mark.kind == "tag":
        inside = text[mark.end : mark.end + 4 * MAX_ANSWER_CHARACTERS]
        closing = TAG_END.search(inside)
        if closing is not None:
            statement, rest = inside[: closing.start()], inside[closing.end() :]
        else:
            statement, _, rest = inside.strip().partition("\n")
        statement = statement.strip()
    else:
        statement, rest = _after_line_mark(text, mark.end)
        if mark.kind != "hash":
            statement = without_exclamation(statement, f"{question}\n{text[-TAIL:]}")
    lead = text[sentence_begin(text, mark.start) : mark.start]
    spoilt = (
        (mark.kind == "phrase" and (_is_imagined(text, lead, mark) or is_attributed(lead)))
        or denies(lead)
        or _leads_elsewhere(lead, mark, question=question)
    )
    statement = _undressed_line(statement, opened=_opened(text, mark))
    if mark.foreign or SCRIPT.search(statement):
        before = text[max(0, mark.start - SURROUNDINGS) : mark.end]
        english = in_english(statement, question=question, before=before, marked=mark.foreign)
        spoilt, statement = (
            spoilt or english is None or retracts_elsewhere(rest),
            english or statement,
        )
    spoilt = spoilt or taken_back(rest, statement)
    return MarkedAnswer(statement, mark.start, spoilt, corrections(rest))


def _is_imagined(text: str, lead: str, mark: Mark) -> bool:
    return IF.search(lead) is not None and WOULD.search(text, mark.start, mark.end) is not None


def _after_line_mark(text: str, end: int) -> tuple[str, str]:
    """The sentence after a line mark, and a part of what follows it."""
    begin = end
    line_end = text.find("\n", begin)
    line = text[begin : line_end if line_end >= 0 else len(text)]
    if not line.strip(" \t*_:}\r"):
        ahead = re.compile(r"[\s*_:}]*").match(text, end)
        assert ahead is not None
        begin = max(ahead.end(), end)
        bullet = BULLET.match(text, begin)
        begin = bullet.end() if bullet is not None else begin
    following = text[begin : begin + MAX_ANSWER_CHARACTERS + SURROUNDINGS].lstrip(" \t*_:}")
    for opening, closing in BLOCKS.items():
        block, closed, rest = following.removeprefix(opening).partition(closing)
        if following.startswith(opening) and closed and "\n" in block:
            body = block.partition("\n")[2] if opening == "```" else block
            return " ".join(body.split()), rest
    return first_sentence(following)


def _opened(text: str, mark: Mark) -> str:
    """Text that may open markup around the statement: the line up to `mark`, and the signs after
    it.
    """
    begin = text.rfind("\n", max(0, mark.start - SURROUNDINGS), mark.start) + 1
    ahead = re.compile(r"[\s*_:}]{0,40}").match(text, mark.end)
    assert ahead is not None  # it may be empty
    return text[max(begin, mark.start - SURROUNDINGS) : ahead.end()]


def _undressed_line(answer: str, *, opened: str) -> str:
    """`answer` without its full stop and without closing markup that `opened` opens."""
    answer = answer.strip().rstrip("\u3002")
    answer = answer if answer.endswith("..") else answer.removesuffix(".").rstrip()
    for sign in ("***", "**", "*", "__", "_", "`"):
        run = rf"(?<!{re.escape(sign[0])}){re.escape(sign)}(?!{re.escape(sign[0])})"
        if sign in opened and len(re.findall(run, answer)) % 2:
            answer = re.sub(rf"(?<=\S){run}(?=[\s.,;:!?)*_`]|$)", "", answer, count=1).rstrip()
    if answer.endswith("}") and answer.count("}") > answer.count("{"):
        answer = answer.removesuffix("}").rstrip()
    return answer if answer.endswith("..") else answer.removesuffix(".").rstrip()
