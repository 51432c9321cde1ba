"""Messages that fit the terminal: long lines are folded at its width with a hanging indent.

A file or pipe gets whole lines, so that `grep` finds a message. Words are never broken: paths and
keys stay copyable, and so does a command after `Type: `. Left out: a run's own lines
(siirl.reporting.console) and its plan (siirl.preflight.plan_text).
"""

import os
import re
import shutil
import sys
import textwrap
from typing import TextIO

from siirl.terminal.printable import printable

USUAL_COLUMNS = 80  # a terminal of unknown width reports 0
HANG = 2
_NUMBERED = re.compile(r"\s*(\d+\. )?")
_COMMAND = re.compile(r"(?<=Type: )\S.*?(?=[.,;]?(?:\s*$|\s+[A-Z(])|[,;] )")
_KEPT = "\x00"  # stands for a space inside a command; `printable` removes it from messages


def text_columns() -> int:
    """Columns of help and plan: those of the terminal, at most 80; 80 in a file."""
    return min(USUAL_COLUMNS, shutil.get_terminal_size().columns)


def say(text: str) -> None:
    """Print a message on stderr, with control characters of foreign text escaped."""
    print(fitted(printable(text), sys.stderr), file=sys.stderr)


def fitted(text: str, stream: TextIO, *, hang: int = HANG) -> str:
    """`text` for `stream`: folded at the width of a terminal, unchanged for a file.

    Args:
        text: Lines, with control characters escaped.
        stream: Where it will be printed.
        hang: Indent of a line's continuation, relative to the line.
    """
    if not stream.isatty():
        return text
    columns = os.get_terminal_size(stream.fileno()).columns or USUAL_COLUMNS
    return folded(text, columns=columns, hang=hang)


def folded(text: str, *, columns: int, hang: int = HANG) -> str:
    """`text` in lines of at most `columns`, except for longer words and commands."""
    return "\n".join(
        part for line in text.split("\n") for part in _fold(line, columns=columns, hang=hang)
    )


def _fold(line: str, *, columns: int, hang: int) -> list[str]:
    if len(line) <= columns:
        return [line]
    mark = _NUMBERED.match(line)
    start = mark.group() if mark is not None else ""
    parts = textwrap.wrap(
        _COMMAND.sub(lambda command: command.group().replace(" ", _KEPT), line[len(start) :]),
        columns,
        initial_indent=start,
        subsequent_indent=" " * (len(start) if start.strip() else len(start) + hang),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part.replace(_KEPT, " ") for part in parts]
