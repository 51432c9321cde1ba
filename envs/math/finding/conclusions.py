r"""Finds the answer of a text without a mark: a last line that is only a value, or a closing
sentence.

`**85**`, `$2\sqrt{3}$` or `Total: $650` alone on the last line is an answer. So is a last sentence
that plainly states one value: `Therefore, the area is 15 square units.` Only the end of a text
counts: a number in the middle is not an answer. The words around the value must follow the rules
for marked answers (`leads`, `quantities`) and stricter ones. `lone_values` reads a value alone on
its line, `closing_sentences` a sentence, and `named_answers` answers that are words.
"""

from envs.math.finding.answers import in_plain_signs
from envs.math.finding.closing_sentences import stated_foreign_value, stated_value
from envs.math.finding.last_lines import is_remark, last_lines, sentences_of, without_last_sentence
from envs.math.finding.line_marks import MarkedAnswer
from envs.math.finding.lone_values import alone_on_line, spoils
from envs.math.finding.named_answers import stated_name
from envs.math.parsing.languages import ends_in_foreign_language
from envs.math.parsing.sentences import TAIL

MAX_REMARKS = 6


def concluded_answer(text: str, *, question: str = "", named: bool = False) -> MarkedAnswer | None:
    """The answer at the end of a `text` without marks; None if the text does not end in an answer.
    `named`: the question asks for a word.
    """
    tail, whole = in_plain_signs(text[-TAIL:]), len(text) <= TAIL
    if named and (answer := _name_at_the_end(tail, whole=whole, question=question)) is not None:
        return answer
    return _before_remarks(tail, whole=whole, question=question)


def _before_remarks(text: str, *, whole: bool, question: str) -> MarkedAnswer | None:
    """The answer at the end of `text`, or before the remarks at its end."""
    lines = last_lines(text, whole=whole)
    for _ in range(MAX_REMARKS + 1):
        if not lines:
            return None
        answer = _at_the_end(lines, text=text, question=question)
        if answer is not None:
            return answer
        if not is_remark(sentences_of(lines[-1])[-1].strip()):
            return None
        lines = without_last_sentence(lines)
    return None


def _name_at_the_end(text: str, *, whole: bool, question: str) -> MarkedAnswer | None:
    lines = last_lines(text, whole=whole)
    name = stated_name(lines[-1], question=question) if lines else None
    return None if name is None else MarkedAnswer(name, len(text) - len(lines[-1]))


def _at_the_end(lines: list[str], *, text: str, question: str) -> MarkedAnswer | None:
    last, before = lines[-1], lines[:-1]
    position = max(text.rfind(last), 0)
    alone = alone_on_line(last, question=question, whole=not before)
    if alone is not None:
        return MarkedAnswer(alone, position, spoils(before, last, alone, question=question))
    sentence = sentences_of(last)[-1].strip()
    concluded = stated_value(sentence, text=text, question=question)
    if concluded is None and ends_in_foreign_language(sentence.rstrip(".\u3002 ")):
        concluded = stated_foreign_value(sentence, question=question)
    return None if concluded is None else MarkedAnswer(concluded, position)
