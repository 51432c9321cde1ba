"""Prints warnings as lines `Warning: …`: those of checks, of logging, and each of Python's once,
without path and source line.

Processes that the command starts later inherit PYTHONWARNINGS and do not repeat Python's. Loggers
that a program has given handlers keep them.
"""

import logging
import os
import re
import warnings
from typing import TextIO

from siirl.terminal.terminal_lines import say

LEAST_CHARACTERS = 12  # a prefix of this length identifies a warning
_said: set[str] = set()


def warn(text: str) -> None:
    """Print a warning on stderr."""
    say(f"Warning: {text}")


def show() -> None:
    """Print warnings of this process this way from now on."""
    warnings.showwarning = _say
    logging.lastResort = _Lines(logging.WARNING)


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            say(f"{record.levelname.capitalize()}: {self.format(record)}")
        except Exception:  # noqa: BLE001 - a call that logs must not fail
            self.handleError(record)


def _say(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    text = " ".join(str(message).split())
    if text in _said:
        return
    _said.add(text)
    warn(text)
    start = re.split("[:,]", text)[0]  # these signs separate the fields of PYTHONWARNINGS
    if len(start) >= LEAST_CHARACTERS:
        given = os.environ.get("PYTHONWARNINGS")
        os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (given, f"ignore:{start}")))
