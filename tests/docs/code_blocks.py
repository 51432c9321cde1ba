"""Fenced code blocks of the documents, and the commands in them.

A block is run by a test of this folder unless an HTML comment before it says otherwise:
`<!-- not run: REASON -->`, or `<!-- run by: tests/FILE.py -->` for a block that another test runs.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(
    r"(?:<!-- (?P<mark>not run|run by): (?P<words>[^>]*?) -->\n\s*)?"
    r"^(?P<indent> *)```(?P<language>\w*)(?P<options>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
OUTPUT = ("", "text", "message")
"""Languages of blocks that show what a program prints."""


@dataclass(frozen=True)
class Block:
    """A code block of a document."""

    document: str
    line: int
    language: str
    code: str
    mark: str | None
    """`not run`, `run by`, or None."""
    words: str
    """Reason or test of the mark."""

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def commands(self) -> list[list[str]]:
        """Words of the commands, without comments; a backslash continues a line."""
        lines = self.code.replace("\\\n", " ").splitlines()
        return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def documents(repository: Path) -> list[Path]:
    """README, CONTRIBUTING and the pages of the site."""
    return [
        repository / "README.md",
        repository / "CONTRIBUTING.md",
        *sorted((repository / "docs").rglob("*.md")),
    ]


def blocks(repository: Path) -> Iterator[Block]:
    """All code blocks but those that include a file, which its own test runs."""
    for document in documents(repository):
        text = document.read_text()
        for match in BLOCK.finditer(text):
            if "--8<--" not in match["code"]:
                yield Block(
                    document=str(document.relative_to(repository)),
                    line=text.count("\n", 0, match.start("language")) + 1,
                    language=match["language"],
                    code=re.sub(f"^{match['indent']}", "", match["code"], flags=re.MULTILINE),
                    mark=match["mark"],
                    words=" ".join((match["words"] or "").split()),
                )
