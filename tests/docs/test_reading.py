"""The reading order names files and functions that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\d) \| `([^`]+)` \| (.+?) \|", re.MULTILINE)
ROWS = ROW.findall((ROOT / "docs" / "reading.md").read_text(encoding="utf-8"))


def defined(tree: ast.AST) -> set[str]:
    """Names of functions, and of methods with and without their class."""
    names = {node.name for node in ast.walk(tree) if isinstance(node, FUNCTION)}
    for owner in ast.walk(tree):
        if isinstance(owner, ast.ClassDef):
            names |= {
                f"{owner.name}.{node.name}" for node in owner.body if isinstance(node, FUNCTION)
            }
    return names


FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def test_eight_files_are_in_order():
    assert [number for number, _, _ in ROWS] == [str(number) for number in range(1, 9)]


@pytest.mark.parametrize(
    ("file", "look_at"), [row[1:] for row in ROWS], ids=[row[1] for row in ROWS]
)
def test_each_file_defines_what_a_reader_looks_for(file: str, look_at: str) -> None:
    names = defined(ast.parse((ROOT / file).read_text(encoding="utf-8")))
    assert set(re.findall(r"`([\w.]+)`", look_at)) - names == set()
