"""Python's warnings as lines `Warning: …` of a command, each once, without path and source line.

Processes that the command starts later inherit PYTHONWARNINGS and do not repeat them.
"""

import os
import re
import warnings
from typing import TextIO

from siirl.params.terminal_lines import say

LEAST = 12  # characters that identify a warning by its beginning
_said: set[str] = set()


def show() -> None:
    """Print the warnings of this process as lines from now on."""
    warnings.showwarning = _say


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
    say(f"Warning: {text}")
    start = re.split("[:,]", text)[0]  # which separate the fields of PYTHONWARNINGS
    if len(start) >= LEAST:
        given = os.environ.get("PYTHONWARNINGS")
        os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (given, f"ignore:{start}")))
