"""Reads text and JSON files that may be damaged; errors name the file."""

import json
from pathlib import Path
from typing import Any

from envs.surrogates import ESCAPED, check_surrogates
from siirl.errors import CheckpointError


def read_text(file: Path, *, remedy: str) -> str:
    """The text of a file.

    Raises:
        CheckpointError: It cannot be read, is a folder, or holds bytes that are not UTF-8.
    """
    try:
        if file.is_fifo():
            raise OSError("a named pipe, which would block its reader")
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{file} is damaged. Expected: text. Found: {error}. {remedy}"
        ) from error


def read_json(file: Path, *, remedy: str) -> Any:
    """Content of a JSON file, of any JSON type.

    Raises:
        CheckpointError: Invalid UTF-8, invalid JSON, or JSON beyond Python's limits (nested too
            deeply, a number with too many digits), or a lone surrogate, which cannot be written.
    """
    text = read_text(file, remedy=remedy)
    try:
        found = json.loads(text)
        check_surrogates(text, found)
        return found
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file} is damaged. Expected: JSON. Found: {error}. {remedy}"
        ) from error


def read_object(file: Path, *, remedy: str) -> dict[str, Any]:
    """The JSON object that a file holds.

    Raises:
        CheckpointError: As `read_json`, or JSON of another type.
    """
    found = read_json(file, remedy=remedy)
    if not isinstance(found, dict):
        raise CheckpointError(
            f"{file} is damaged. Expected: a JSON object. Found: {type(found).__name__}. {remedy}"
        )
    return found


def check_texts(folder: Path, *, remedy: str) -> None:
    """Refuse a lone surrogate in the JSON files of a folder, because their content is written
    again.

    Raises:
        CheckpointError: As `read_json`, for a file that has one.
    """
    for file in sorted(folder.glob("*.json")):
        if ESCAPED.search(read_text(file, remedy=remedy)):
            read_json(file, remedy=remedy)


def is_count(value: Any, *, least: int = 0) -> bool:
    """Whether a JSON value is an integer of at least `least`; booleans are not."""
    return type(value) is int and value >= least


def is_name(value: Any) -> bool:
    """Whether a value is the name of an entry of a folder, without a path to elsewhere."""
    return (
        isinstance(value, str)
        and value.isprintable()
        and value not in ("", ".", "..")
        and "/" not in value
        and len(value.encode()) <= 255
    )
