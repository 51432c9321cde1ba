"""Describes a reference `${...}` to another key that cannot be resolved.

Left out: OmegaConf, which resolves references (`siirl.params.parser`).
"""

import re
from collections.abc import Mapping
from typing import Any

from siirl.errors import ConfigError
from siirl.params.build import as_text
from siirl.params.user_settings import value_at

_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_UNKNOWN_KEY = re.compile(r"Interpolation key ('.*') not found")
_RAISED = re.compile(r"^\w+ (raised )?while resolving interpolation: ")


def unresolved(place: str, fault: str, *, written: Any, sources: Mapping[str, str]) -> ConfigError:
    """The refusal of a key whose reference cannot be resolved.

    Args:
        place: The key at which it was noticed; it may refer to the key that is wrong.
        fault: OmegaConf's message.
        written: Nested values, with their references.
        sources: Origin of each key that the user sets.
    """
    key = _wrong_key(place.partition("[")[0], written)
    parts = key.split(".")
    above = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    source = next((sources[name] for name in above if name in sources), "configs/")
    reason = _UNKNOWN_KEY.sub(r"there is no key \1", _RAISED.sub("", fault.partition("\n")[0]))
    reason = reason.strip('".')
    return ConfigError(
        f"{key}={as_text(value_at(written, key))} ({source}) cannot be resolved: "
        f"{reason}. Write a value, or the whole name of a key, as in "
        "${trainer.seed}."
    )


def _wrong_key(key: str, written: Any) -> str:
    """The last key of a chain of references."""
    passed: set[str] = set()
    while key not in passed:
        passed.add(key)
        reference = _REFERENCE.search(as_text(value_at(written, key)))
        if reference is not None and _is_open(as_text(value_at(written, reference[1]))):
            key = reference[1]
    return key


def _is_open(value: str) -> bool:
    return "${" in value or value == "???"  # OmegaConf's mark of a missing value
