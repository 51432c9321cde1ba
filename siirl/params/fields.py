"""How a configuration key is declared: a dataclass field whose metadata says what it does, why its default is what it is, and its bounds.

Both functions only write metadata, so a user's own dataclass with plain `field(default=..., metadata={"help": ...})` works as well.
Left out: converting and checking values (`siirl.params.build`).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any


def described(
    help: str,
    *,
    why: str = "",
    choices: Sequence[str] = (),
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    text_only: str = "",
    derived: bool = False,
) -> dict[str, Any]:
    """Metadata of a key.

    Args:
        help: What the key does, in one sentence.
        why: Reason or source of the default.
        choices: Names that are known; others are refused with the nearest.
        minimum: Smallest value.
        above: The value must be larger than this.
        maximum: Largest value.
        text_only: For a key that only text jobs read: why an embodied job has no use for it.
        derived: Set by the parser from other keys; an input for old names only, and not printed.
    """
    return {
        "help": help,
        "why": why,
        "choices": tuple(choices),
        "minimum": minimum,
        "above": above,
        "maximum": maximum,
        "text_only": text_only,
        "derived": derived,
    }


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A dataclass field with an immutable default; the other arguments are those of `described`."""
    return dataclasses.field(default=default, metadata=described(help, **metadata))
