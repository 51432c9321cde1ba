"""Describes a reference `${...}` to another key that cannot be resolved.

Left out: OmegaConf, which resolves references (`siirl.params.parser`).
"""

import os
import re
from collections.abc import Mapping
from typing import Any

from siirl.errors import ConfigError
from siirl.params.build import as_text
from siirl.params.user_settings import value_at

_REFERENCE = re.compile(r"\$\{(\.*)([\w.\[\]-]+)\}")  # dots: relative to the key that refers
_UNKNOWN_KEY = re.compile(r"Interpolation key ('.*') not found")
_UNKNOWN_RESOLVER = "Unsupported interpolation type"
_RAISED = re.compile(r"^\w+ (raised )?while resolving interpolation: ")


def unresolved(place: str, fault: str, *, written: Any, sources: Mapping[str, str]) -> ConfigError:
    """The refusal of a key whose reference cannot be resolved.

    Args:
        place: The key at which it was noticed; it may refer to the key that is wrong.
        fault: OmegaConf's message.
        written: Nested values, with their references.
        sources: Origin of each key that the user sets.
    """
    missing = _UNKNOWN_KEY.search(fault)
    named = missing and _with_dots(missing[1].strip("'"))
    key = _wrong_key(place.partition("[")[0], written, missing=named)
    parts = key.split(".")
    above = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    source = next((sources[name] for name in above if name in sources), "configs/")
    reason = _UNKNOWN_KEY.sub(r"there is no key \1", _RAISED.sub("", fault.partition("\n")[0]))
    reason = reason.strip('".')
    remedy = "Write a value, or the whole name of a key, as in ${trainer.seed}"
    if reason.startswith("Environment variable"):
        remedy = "Set the variable, or write a value"
    elif reason.startswith(_UNKNOWN_RESOLVER) or (named or "") in os.environ:
        remedy = (
            "Write a value, the whole name of a key, as in ${trainer.seed}, or for an environment "
            "variable ${oc.env:NAME}, with ${oc.decode:${oc.env:NAME}} for one that is no text"
        )
    return ConfigError(
        f"{key}={as_text(value_at(written, key))} ({source}) cannot be resolved: {reason}. "
        f"{remedy}."
    )


def _wrong_key(key: str, written: Any, *, missing: str | None) -> str:
    """The key that refers to the key `missing`, or that at the end of a chain of references if
    there is none.
    """
    waiting, passed, end = [key], set(), key
    while waiting:
        place = waiting.pop(0)
        passed.add(place)
        found = _REFERENCE.findall(as_text(value_at(written, place)))
        references = [(dots, _with_dots(name)) for dots, name in found]
        named = [_whole_name(name, dots=dots, place=place) for dots, name in references]
        open_ones = [
            name for name in named if name not in passed and _is_open(value_at(written, name))
        ]
        if missing in (name for _, name in references) if missing else not open_ones:
            return place
        end = end if open_ones else place
        waiting += open_ones
    return end


def _whole_name(name: str, *, dots: str, place: str) -> str:
    """The whole name of a key to which `place` refers; each dot before the name is one group up."""
    groups = place.split(".")[: -len(dots)] if dots else []
    return ".".join([*groups, name])


def _with_dots(name: str) -> str:
    """The name of a key, of which parts may be in brackets."""
    return name.replace("[", ".").replace("]", "").lstrip(".")


def _is_open(value: Any) -> bool:
    """Whether it is no value yet; a whole group is not asked, and would be shown with its keys."""
    if isinstance(value, Mapping):
        return False
    return "${" in as_text(value) or value == "???"  # OmegaConf's mark of a missing value
