"""Text of a command's `--help`, from its module's docstring: summary, examples, then prose.

Examples carry the command's name as it was typed. Prose fits the terminal, at most 80 columns.
"""

import argparse
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from siirl import program
from siirl.files.paths import fault_of_path
from siirl.params.command_line import note_replaced
from siirl.params.command_words import LONGEST_NUMBER, Word
from siirl.terminal.terminal_lines import text_columns

EXAMPLE = "    "  # indent of the examples in a docstring
COLUMN = 22  # where the meaning of a word begins

Number = TypeVar("Number", int, float)


def described(text: str, module: str) -> str:
    """`text` with the command's name as typed, in lines that fit the terminal."""
    as_subcommand = f"siirl {module.rpartition('.')[2].replace('_', '-')}"
    typed = text.strip().replace(as_subcommand, program(module))
    return "\n\n".join(_part(part) for part in typed.split("\n\n"))


def argument_parser(text: str, module: str) -> argparse.ArgumentParser:
    """A parser for the flags of `module`, whose docstring is `text`."""
    parser = argparse.ArgumentParser(
        prog=program(module),
        description=described(text, module),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.register("action", None, _StoreAndNote)
    return parser


class _StoreAndNote(argparse.Action):
    """Stores a flag's value; the last one counts, and a note names each replaced value."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        earlier = getattr(namespace, self.dest)
        if option_string is not None and earlier not in (self.default, values):
            note_replaced(option_string, earlier, values)
        setattr(namespace, self.dest, values)


def path_flag(text: str) -> Path:
    """The value of a flag that names a file or folder; argparse reports the error."""
    fault = fault_of_path(text) if text else "is empty: name a file or folder."
    if fault is not None:
        raise argparse.ArgumentTypeError(fault)
    return Path(text)


def file_flag(text: str) -> Path:
    """The value of a flag that names a file to write; argparse reports the error."""
    file = path_flag(text)
    if file.is_dir():
        raise argparse.ArgumentTypeError(f"{file} is a folder: name a file in it")
    if not file.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"{file}: there is no folder {file.absolute().parent}; make it first"
        )
    return file


def _flag_of(kind: Callable[[str], Number], expected: str) -> Callable[[str], Number]:
    """The type of a flag whose value `kind` reads; argparse reports the error."""

    def read(text: str) -> Number:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text[:LONGEST_NUMBER]!r} must be {expected}"
            ) from None

    return read


integer = _flag_of(int, "a whole number, for example 3")
real = _flag_of(float, "a number, for example 0.5")  # NaN and infinity are numbers


def help_of_words(text: str, module: str, words: Mapping[str, Word]) -> str:
    """Help of a command that has its own words besides those of the configuration."""
    own = {f"{name}={word.shown or word.default}": word.help for name, word in words.items()}
    others = {
        "group=option": "as for siirl train; siirl train --help lists them",
        "key=value": "the same",
        "--help": "this text",
    }
    return "\n".join(
        [
            f"usage: {program(module)} [word=value ...] [group=option ...] [key=value ...]",
            "",
            described(text, module),
            "",
            "Words of this command",
            *(paragraph(name, meaning, indent=2, column=COLUMN) for name, meaning in own.items()),
            "",
            "Configuration and flags",
            *(
                paragraph(name, meaning, indent=2, column=COLUMN)
                for name, meaning in others.items()
            ),
        ]
    )


def paragraph(name: str, text: str, *, indent: int, column: int) -> str:
    """`name` in the left column and the wrapped text in the right; below if `name` is long."""
    head = " " * indent + name
    first = head.ljust(column) if len(head) < column else head + "\n" + " " * column
    body = textwrap.wrap(text, text_columns() - column) or [""]
    return (first + ("\n" + " " * column).join(body)).rstrip()


def _part(part: str) -> str:
    if part.startswith(EXAMPLE):
        return "\n".join(map(_example, part.split("\n")))
    return textwrap.fill(
        " ".join(part.split()), text_columns(), break_long_words=False, break_on_hyphens=False
    )


def _example(line: str) -> str:
    """The line, wrapped with shell continuations if it is too long."""
    columns = text_columns()
    if len(line) <= columns:
        return line
    lines = textwrap.wrap(
        line.strip(),
        columns - len(" \\"),
        initial_indent=EXAMPLE,
        subsequent_indent=EXAMPLE + ("# " if line.strip().startswith("#") else "  "),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return ("\n" if line.strip().startswith("#") else " \\\n").join(lines)
