"""Messages that the documents quote are in the source, word by word."""

import ast
import functools
from pathlib import Path

import pytest

from tests.docs.code_blocks import blocks

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("siirl", "envs", "vjepa")
HOLE = "…"
"""Stands for a value, in a quote and in the template of a message."""


def template(node: ast.expr) -> str | None:
    """Text of a string or f-string with `…` for each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) or HOLE for part in node.values)
    return None


@functools.cache
def templates() -> list[str]:
    """Those of all packages: parsed when a test asks, as every process collects every test."""
    return [
        text.strip()
        for package in PACKAGES
        for file in (REPOSITORY / package).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.expr) and (text := template(node)) is not None
    ]


QUOTES = [block for block in blocks(REPOSITORY) if block.language == "message"]


@pytest.mark.parametrize("quote", QUOTES, ids=str)
def test_a_quoted_message_is_in_the_source(quote) -> None:
    """Parts between two holes stand in one message, in this order."""
    parts = [part.strip(" .") for part in quote.code.strip().split(HOLE)]
    for text in templates():
        place = 0
        for part in parts:
            place = text.find(part, place)
            if place < 0:
                break
            place += len(part)
        else:
            return
    pytest.fail(f"{quote}: no message in the source says {quote.code!r}")
