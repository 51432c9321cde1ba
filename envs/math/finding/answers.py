r"""Finds the marked final answer in a model's text, and words around the mark that retract it.

An answer is marked by `#### x`, `\boxed{x}` (also `\fbox`, `\boxed x`), `<answer>x</answer>`,
`Answer: x` or `the answer is x`, in any case and markup (`marks`); a line mark at the end of its
line refers to the next line. Of several marks the last one counts, because a text may correct
itself. A mark is spoilt, and the answer wrong, if its own sentence has another answer or a doubt
(`3 or \boxed{4}`), or if a later sentence retracts it (`Wait, that is wrong.`). `conclusions` finds
the answer of a text without a mark.

`boxes` reads the content of a box, and `line_marks` the answer after other marks. `leads` judges
the words before a mark, and `statements` the marked words. Everything here takes time linear in the
text, which may be megabytes of arbitrary content.
"""

import re

from envs.math.finding.boxes import boxed_answer
from envs.math.finding.line_marks import MarkedAnswer, lined_answer
from envs.math.finding.marks import last_marks, without_repetition
from envs.math.parsing.languages import PUNCTUATION
from envs.math.parsing.sentences import SURROUNDINGS

REMARK = re.compile(
    r"(?:absolutely |definitely |indeed |now )?(?:correct|right|good|fine|helpful|useful|clear"
    r"|reasonable|valid|consistent|"
    r"verified|confirmed|below|above|shown|given|as follows|found|obtained|what)\b",
    re.IGNORECASE,
)
OPTION_B = re.compile(r"^[*_ \t]{0,8}B[*_]{0,2}:", re.MULTILINE)
WIDTHLESS = re.compile(
    "(?<![0-9])[\u200b\u200c\u200d\u2060\ufeff]|[\u200b\u200c\u200d\u2060\ufeff](?![0-9])"
)
EMOJI = re.compile(
    "[\u2600-\u2712\u2714-\u2716\u2719-\u274b\u274f-\u2775\u2794-\u27bf"
    "\u2b50\ufe0f\U0001f300-\U0001faff]"
)
"""Pictographs, except crosses that mark an answer as wrong and circled numerals."""
STRUCK_OUT = re.compile(r"~~(?=[^\s~])[^~\n]{1,200}(?<=[^\s~])~~|<del>[^<>\n]{1,200}</del>")


def marked_answer(text: str, *, question: str = "") -> MarkedAnswer | None:
    """The last marked answer of `text`; None without a mark, empty for an empty mark."""
    text = in_plain_signs(text)
    marks = last_marks(text)
    text = without_repetition(text, marks)
    while marks:
        mark = marks.pop()
        if mark.kind == "phrase" and REMARK.match(text, _after_spaces(text, mark.end)):
            continue  # "the answer is correct" marks nothing
        if mark.kind == "short" and OPTION_B.search(text, mark.end, mark.end + SURROUNDINGS):
            continue  # marks the first of several options or persons
        return (
            boxed_answer(text, mark, marks, question=question)
            if mark.kind == "box"
            else lined_answer(text, mark, question=question)
        )
    return None


def in_plain_signs(text: str) -> str:
    """`text` without zero-width characters, pictographs and struck-out words.

    Digits and signs of other scripts become ASCII.
    """
    if "~~" in text or "<del>" in text:
        text = STRUCK_OUT.sub("", text)
    if text.isascii():
        return text
    return EMOJI.sub("", WIDTHLESS.sub("", text)).translate(PUNCTUATION)


def _after_spaces(text: str, start: int) -> int:
    end = start
    while end < len(text) and end < start + 20 and text[end] in " \t*_:":
        end += 1
    return end
