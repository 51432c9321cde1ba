"""Markdown of the generated pages: escaped text, tables, docstrings."""

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

SPECIAL = re.compile(r"(`[^`]*`)|([<>|*_\[\]])")


def escaped(text: str) -> str:
    """`text` with Markdown's special characters escaped, except inside backticks."""
    return SPECIAL.sub(lambda match: match[1] or f"&#{ord(match[2])};", " ".join(text.split()))


def code(text: str) -> str:
    """`text` in backticks, usable in a table's cell."""
    return f"<code>{escaped(text.replace('`', ''))}</code>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def signature(name: str, function: Callable[..., Any]) -> str:
    """The call as a code block, one argument per line if it is long."""
    parameters = inspect.signature(function)
    line = re.sub(r"(?<=[\[ ,(|])[a-z_]+(?:\.[A-Za-z_]+)*\.(?=[A-Z])", "", f"{name}{parameters}")
    if len(line) > 96:
        head, _, rest = line.partition("(")
        arguments, _, returned = rest.rpartition(")")
        line = f"{head}(\n    " + _split(arguments) + f",\n){returned}"
    return f"```python\n{line}\n```\n"


def _split(arguments: str) -> str:
    """Break after commas that are not inside brackets."""
    depth, parts = 0, [""]
    for character in arguments:
        depth += {"[": 1, "(": 1, "{": 1, "]": -1, ")": -1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return ",\n    ".join(part.strip() for part in parts)


def docstring(documented: object) -> str:
    """The docstring as Markdown: paragraphs escaped, sections and code blocks kept."""
    paragraphs = (inspect.getdoc(documented) or "").split("\n\n")
    return "\n\n".join(_paragraph(paragraph) for paragraph in paragraphs) + "\n"


def summary(documented: object) -> str:
    """The docstring's first paragraph, escaped, on one line."""
    return escaped((inspect.getdoc(documented) or "").split("\n\n")[0])


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    if all(line.startswith("    ") for line in lines):
        return f"```text\n{inspect.cleandoc(text)}\n```"
    if re.fullmatch(r"(Args|Returns|Raises|Yields):", lines[0]):
        entries = re.split(r"\n(?=    \S)", "\n".join(lines[1:]))
        return f"*{lines[0][:-1]}*\n\n" + "\n".join(f"- {_entry(entry)}" for entry in entries)
    return escaped(text)


def _entry(text: str) -> str:
    name, colon, meaning = text.strip().partition(": ")
    is_name = colon and re.fullmatch(r"[\w*, ]+", name)
    return f"`{name}`: {escaped(meaning)}" if is_name else escaped(text)
