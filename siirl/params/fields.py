"""Declares configuration keys: dataclass fields with help, reason of the default, and bounds.

Both functions only write metadata, so a user's dataclass with plain `field(default=...,
metadata={"help": ...})` works too. Left out: converting and checking values (`siirl.params.build`).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any


def described(
    help: str,
    *,
    why: str = "",
    choices: Sequence[str] = (),
    refused: Mapping[str, str] = MappingProxyType({}),
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    unique: bool = False,
    filled: bool = False,
    text_only: str = "",
    derived: bool = False,
    plug_in: bool = False,
    path: bool = False,
) -> dict[str, Any]:
    """Metadata of a key.

    Args:
        help: Effect of the key, in one sentence.
        why: Reason or source of the default.
        choices: Known names; other names are refused, and the message suggests the nearest.
        refused: Documented names that this version does not support, with their replacements. They
            are not choices.
        minimum: Smallest value.
        above: The value must be larger than this.
        maximum: Largest value. Bounds of a list are those of its elements.
        unique: The elements of the list must differ.
        filled: The list must not be empty.
        text_only: For a key that only text jobs read: the reason why robot jobs do not read it.
        plug_in: Whether a value may also be `module:name`, or a name that a user's module registers
            (siirl.params.plug_ins says when each is looked up); `choices` are the shipped names.
        path: Whether the value is the path of a file or folder, which a file system must be able to
            hold.
        derived: Set by the parser from other keys. Only old names assign it; it is not printed.
    """
    return {
        "help": help,
        "why": why,
        "choices": tuple(choices),
        "refused": refused,
        "minimum": minimum,
        "above": above,
        "maximum": maximum,
        "unique": unique,
        "filled": filled,
        "text_only": text_only,
        "derived": derived,
        "plug_in": plug_in,
        "path": path,
    }


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A dataclass field with an immutable default; the other arguments are those of `described`."""
    return dataclasses.field(default=default, metadata=described(help, **metadata))
