r"""A value alone on the last line of a text in which nothing is marked: `**85**`, `$2\sqrt{3}$`,
`Total: $650`.

A line above it spoils it that holds another value alone, a doubt, or words that make another thing
of it.
"""

import re

from envs.math.approximation import size_of
from envs.math.conversions import read_compound
from envs.math.last_lines import last_sentence
from envs.math.leads import changes, denies
from envs.math.markup import EMPHASISED, without_markup
from envs.math.notation import in_latex, numeral
from envs.math.plain_text import DRESS
from envs.math.provisional import DOUBT, PROVISIONAL, words_asked
from envs.math.quantities import read_quantity
from envs.math.sentences import SENTENCE_END
from envs.math.statements import read_statement
from envs.math.values import CUT_OFF, ITEM, LABEL, NUMBER, is_expression, is_plain_label, is_value
from envs.math.vocabulary import ALTERNATIVES, CHANGING, DATES, HEDGES, LINKS, WORDS, words

OPEN = re.compile(r"[-+*/(\[{]$(?<!\*\*)")
"""A line that continues in the next one."""
CHOICE = re.compile(r"\(?([A-J])\)?\.?")
TEXT = re.compile(r"[A-Za-z]+(?:[ -][A-Za-z]+)?")


def alone_on_line(line: str, *, question: str, whole: bool) -> str | None:
    """The value that `line` is, without markup; None if it has anything else."""
    if ITEM.match(line) or CUT_OFF.search(line):
        return None
    inside = without_markup(line.replace("**", " ") if ":" in line else line)
    for emphasised in EMPHASISED:
        inside = emphasised.sub(r"\2", inside)
    if not inside or "?" in inside or (inside.endswith("!") and "$" not in line):
        return None
    if (
        read_quantity(inside, question=question) is not None
        or read_compound(inside, question=question) is not None
    ):
        return inside
    if CHOICE.fullmatch(inside) or is_expression(inside) or numeral(inside) is not None:
        return inside
    inside = inside.replace("**", "")
    parts = read_statement(inside, question=question) if NUMBER.match(inside) else ()
    if parts and not any(
        isinstance(part, str) for part in parts[: 1 if inside[-1] == ")" else None]
    ):
        return inside
    option = re.match(r"\(?[A-J][.)]\s+(?=\S)", inside)
    if option is not None and read_quantity(inside[option.end() :]) is not None:
        return inside
    labelled = LABEL.fullmatch(DRESS.sub(r"\1", inside))
    further = labelled is not None and SENTENCE_END.search(labelled["value"].rstrip()) is not None
    if (
        labelled is not None
        and not further
        and is_plain_label(labelled["label"], question=question)
    ):
        return labelled["value"].strip()
    named = TEXT.fullmatch(re.sub(r"\\text ?\{([^{}]*)\}", r"\1", inside))
    dressed = whole or inside != line.rstrip(".")
    return (
        inside
        if named is not None and dressed and not CHANGING & set(named[0].lower().split())
        else None
    )


def total_of_line(line: str, *, question: str) -> str | None:
    """The value of a line whose label names a total, also in a list: `- **Total: 54 pages**`,
    `Total pages read: 12 + 18 + 24 = 54`.
    """
    labelled = LABEL.fullmatch(without_markup(_without_bullet(line).replace("**", " ")))
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
    return value if is_value(value, question=question) else None


def _without_bullet(line: str) -> str:
    bullet = ITEM.match(line)
    return line if bullet is None else line[bullet.end() :]


def spoils(before: list[str], alone: str, *, question: str) -> bool:
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
        not line[-1].isdigit() and (PROVISIONAL | HEDGES) & set(said) - words_asked(question)
    ):
        return True
    if line.endswith((":", ",")):
        return denies(sentence) or changes(sentence, question=question)
    return denies(sentence) or bool((ALTERNATIVES | LINKS) & set(said[-1:]))


def _differs(line: str, alone: str, *, question: str) -> bool:
    """Whether `line`, above the last one, is another value alone."""
    other = alone_on_line(line, question=question, whole=False)
    other = (
        alone_on_line(_without_bullet(line), question=question, whole=False)
        if other is None
        else other
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
