r"""Marks of an answer: `#### x`, `\boxed{x}`, `<answer>x</answer>`, `Answer: x`, `the answer is
x`, and these in other languages.

Left out: the text after and around a mark (`answers`), and answers without a mark (`conclusions`).
"""

import re
from collections import deque
from typing import NamedTuple

from envs.math.parsing.languages import FOREIGN_MARK, may_be_foreign

MAX_MARKS = 8  # the marked answer is sought among this many last marks
MARK = re.compile(
    r"""
    (?P<hash>\#\#\#\#+(?![ *_]{0,4}(?:step|part|case)[ ][0-9ivx]{1,3}\b[^\n]*\n\s*\S)
      (?:[ *_]{0,4}(?:final[ ])?answer[*_]{0,2}:?[ \t]*$)?)
    | (?P<box>\\(?:f|b|frame)?box(?:ed)?(?![a-z]))
    | (?P<tag><(?:final[ _-]?)?answer>|\[answer\]|<solution>(?=[^<>\n]{1,80}</solution>))
    | (?P<short>^[*_ \t]{0,8}(?-i:A)[*_]{0,2}:)
    | (?P<result>^[\#*_ \t]{0,8}(?:final[ ](?:result|solution)|result|solution)[*_]{0,3}:
      (?=[ *_$]{0,8}[-0-9]))
    | (?P<dash>^[\#*_ \t]{0,8}
      (?:(?:final[ ])?answer[ *_]{0,8}[ ][\u2013\u2014-]|final[ ]answer[*_]{0,3})
      [ ](?=[ *_$\\]{0,8}[-0-9]))
    | (?P<point>^[\#_ \t]{0,8}\*\*(?:final[ ])?answer\.\*\*)
    | (?P<heading>^[\#*_ \t]{0,8}(?:final[ ])?answer[*_ \t]{0,8}$)
    | (?P<colon>(?<![A-Za-z])ans(?:wer)?(?:["'](?=[ ]?:))?[ \t*_]{0,8}
      (?:\([^()\n]{1,40}\)|[ ](?:to|in|of|for)\b[^\n.:?!=\u2192]{1,80}+)?
      [ \t*_}]{0,8}(?:[-=]>|[:=\u2192]))
    | (?P<phrase>(?<![A-Za-z])answers?
      (?:,?[ ](?:to|of|for|in|then|thus|therefore|rounded)\b[^\n.:?!=]{0,80}?)?
      (?:[ ](?:we|i)[ ][a-z]+)?
      (?:,?[ ](?:is|are|equals|comes[ ]to|(?:would|should|will|must)[ ]be)\b|'s\b):?)
    """,
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)


class Mark(NamedTuple):
    """Place of an answer's mark."""

    kind: str
    """The group of `MARK`, or of `FOREIGN_MARK`."""
    start: int
    end: int

    @property
    def foreign(self) -> bool:
        """Whether it is in another language than English."""
        return self.kind.startswith("foreign")


def last_marks(text: str) -> deque[Mark]:
    """The last marks of `text`, in order, at most `MAX_MARKS`."""
    marks = _marks(MARK, text)
    if not may_be_foreign(text):
        return marks
    return deque(
        sorted((*marks, *_marks(FOREIGN_MARK, text)), key=lambda mark: mark.start), maxlen=MAX_MARKS
    )


def without_repetition(text: str, marks: deque[Mark]) -> str:
    """`text` and its `marks` without the last one, if the text ends within a repetition of the
    previous one: `The answer is 27. The answer is`.
    """
    if len(marks) < 2:
        return text
    repeated, begun = text[marks[-2].start : marks[-1].start], text[marks[-1].start :].rstrip()
    before = text[marks[-3].start : marks[-2].start] if len(marks) > 2 else None
    is_empty = not text[marks[-1].end :].strip()
    cut_off = repeated.startswith(begun) and len(begun) < len(repeated.rstrip())
    return text[: marks.pop().start] if cut_off and (is_empty or repeated == before) else text


def _marks(pattern: re.Pattern[str], text: str) -> deque[Mark]:
    found = deque(pattern.finditer(text), maxlen=MAX_MARKS)
    return deque([Mark(str(match.lastgroup), *match.span()) for match in found])
