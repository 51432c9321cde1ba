r"""The answer after a line mark: `#### 18`, `Answer: 18`, `<answer>18</answer>`, `The answer is
18`.

It is the sentence after the mark, or the next one if the mark ends its line.
"""

import re
from typing import NamedTuple

from envs.math.finding.marks import Mark
from envs.math.parsing.languages import SCRIPT, concludes, has_foreign_retraction, in_english
from envs.math.parsing.leads import changes, denies, is_attributed, names_another_answer
from envs.math.parsing.provisional import without_explanations
from envs.math.parsing.sentences import (
    SURROUNDINGS,
    TAIL,
    corrections,
    first_sentence,
    sentence_begin,
    taken_back,
    without_exclamation,
)

MAX_ANSWER_CHARACTERS = 1000  # limit of a final answer
BLOCKS = {"```": "```", "$$": "$$", "\\[": "\\]"}
BULLET = re.compile(r"[-*\u2022] +(?=\S)")
TAG_END = re.compile(r"</(?:(?:final[ _-]?)?answer|solution)>|\[/answer\]", re.IGNORECASE)
IF, WOULD = re.compile(r"\bif\b", re.IGNORECASE), re.compile(r"\bwould\b", re.IGNORECASE)
"""`If the price were $3, the answer would be 54` answers another question."""


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


def introduces_another_answer(lead: str, mark: Mark, *, question: str) -> bool:
    """Whether the words before a line mark turn the marked value into something else."""
    if mark.foreign:
        return not concludes(lead)
    if mark.kind == "phrase":
        return names_another_answer(f"{lead} ")
    return mark.kind == "hash" and changes(lead, question=question)


def lined_answer(text: str, mark: Mark, *, question: str) -> MarkedAnswer:
    """The answer after the line mark at `mark`, the last one of `text`."""
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
    bare = mark.kind not in ("hash", "tag")
    statement = without_exclamation(statement, f"{question}\n{text[-TAIL:]}", bare=bare)
    lead = text[sentence_begin(text, mark.start) : mark.start]
    spoilt = (
        (mark.kind == "phrase" and (_is_imagined(text, lead, mark) or is_attributed(lead)))
        or denies(lead)
        or introduces_another_answer(lead, mark, question=question)
    )
    statement = _undressed_line(without_explanations(statement), opened=_opened(text, mark))
    if mark.foreign or SCRIPT.search(statement):
        before = text[max(0, mark.start - SURROUNDINGS) : mark.end]
        english = in_english(statement, question=question, before=before, marked=mark.foreign)
        spoilt, statement = (
            spoilt or english is None or has_foreign_retraction(rest),
            english or statement,
        )
    spoilt = spoilt or taken_back(rest, statement)
    return MarkedAnswer(statement, mark.start, spoilt, corrections(rest))


def _is_imagined(text: str, lead: str, mark: Mark) -> bool:
    return IF.search(lead) is not None and WOULD.search(text, mark.start, mark.end) is not None


def _after_line_mark(text: str, end: int) -> tuple[str, str]:
    """The sentence after a line mark, and a part of the text that follows."""
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
