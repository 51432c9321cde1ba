r"""A value alone on the last line of a text in which nothing is marked: `**85**`, `$2\sqrt{3}$`,
`Total: $650`.

The line above spoils it if that line holds another value alone, a doubt, or words that change the
value's meaning.
"""

import re

from envs.math.finding.last_lines import sentences_of
from envs.math.finding.values import (
    CUT_OFF,
    ITEM,
    LABEL,
    NUMBER,
    is_expression,
    is_plain_label,
    is_value,
)
from envs.math.parsing.conversions import read_compound
from envs.math.parsing.leads import changes, denies
from envs.math.parsing.markup import EMPHASISED, without_markup
from envs.math.parsing.notation import numeral
from envs.math.parsing.plain_text import DRESS
from envs.math.parsing.provisional import DOUBT, PROVISIONAL, words_asked
from envs.math.parsing.quantities import read_quantity
from envs.math.parsing.sentences import without_exclamation
from envs.math.parsing.statements import read_statement
from envs.math.parsing.vocabulary import ALTERNATIVES, CHANGING, DATES, HEDGES, LINKS, WORDS, words

OPEN = re.compile(r"[-+*/(\[{]$(?<!\*\*)")
"""A line that continues in the next one."""
WORKED = re.compile(r"[-+*/=\u00d7\u00f7\u00b7]|\\(?:times|cdot)")
"""A computation, not a value: `6 * 7` above `= 42`."""
CHOICE = re.compile(r"\(?([A-J])\)?\.?")
TOTALS = words("total altogether overall left remaining")
OF_A_PART = words("for per each step if on running side hand steps") | {
    day.lower() for day in DATES
}
"""Words of a label that is not the total's: `Total on Monday`."""
TEXT = re.compile(r"[A-Za-z]+(?:[ -][A-Za-z]+)?")


def alone_on_line(line: str, *, question: str, whole: bool) -> str | None:
    """The value in `line`, without markup; None if the line has anything else."""
    bullet = ITEM.match(line)
    if CUT_OFF.search(line) or (bullet is not None and not names_a_total(line)):
        return None
    line = line if bullet is None else line[bullet.end() :]
    line = without_exclamation(line, line, bare=False)
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
    if (
        labelled is not None
        and is_value(labelled["value"], question=question)
        and (is_plain_label(labelled["label"], question=question) or names_a_total(line))
    ):
        return labelled["value"].strip()
    named = TEXT.fullmatch(re.sub(r"\\text ?\{([^{}]*)\}", r"\1", inside))
    dressed = whole or inside != line.rstrip(".")
    return (
        inside
        if named is not None and dressed and not CHANGING & set(named[0].lower().split())
        else None
    )


def names_a_total(line: str) -> bool:
    """Whether the label of `line` names a total: `- **Total: 54 pages**`."""
    labelled = LABEL.fullmatch(without_markup(_without_bullet(line).replace("**", " ")))
    said = words_asked(labelled["label"]) if labelled is not None else frozenset()
    said -= {"over"} if "left" in said else set()
    return bool(said & TOTALS) and not said & (CHANGING | PROVISIONAL | OF_A_PART)


def _without_bullet(line: str) -> str:
    bullet = ITEM.match(line)
    return line if bullet is None else line[bullet.end() :]


def spoils(before: list[str], last: str, alone: str, *, question: str) -> bool:
    """Whether the line before a value alone has another value or a doubt, or changes the value's
    meaning.
    """
    if not before or (names_a_total(last) and not names_a_total(before[-1])):
        return False
    line = before[-1]
    sentence = sentences_of(line)[-1].strip()
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
    return (
        others is not None
        or (is_expression(values[1]) and not WORKED.search(values[1]))
        or CHOICE.fullmatch(other) is not None
        or TEXT.fullmatch(other) is not None
    )


def _name_and_value(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    return (name.strip(), value.strip()) if sign and "=" not in value else ("", text)
