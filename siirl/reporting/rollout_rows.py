"""Checks rows of rollout files, which may have been edited or damaged."""

from collections.abc import Callable, Mapping
from typing import Any

from siirl.files.documents import is_count

LARGEST = 1e300  # bound of numbers, so that they can be printed and summed
Check = Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and not abs(value) > LARGEST


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(entry, Mapping)
        and isinstance(entry.get("role"), str)
        and isinstance(entry.get("content"), str)
        and _is_log_probs(entry.get("log_probs", []))
        and _is_versions(entry.get("policy_versions", []))
        for entry in value
    )


def _is_log_probs(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _is_versions(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_count, value))


def _is_maybe_number(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_seed(value: Any) -> bool:
    return value is None or type(value) is int


def _is_parts(value: Any) -> bool:
    return value is None or (
        isinstance(value, Mapping) and all(_is_maybe_number(part) for part in value.values())
    )


NEEDED: Mapping[str, tuple[Check, str]] = {
    "uid": (_is_text, "text"),
    "kind": (_is_text, "text"),
    "task": (_is_text, "text"),
    "step": (is_count, "a whole number of at least 0"),
    "success": (lambda value: value is None or type(value) is bool, "true, false or null"),
    "truncated": (lambda value: type(value) is bool, "true or false"),
    "reward": (_is_maybe_number, "a number or null"),
    "env_return": (_is_maybe_number, "a number or null"),
    "policy_version": (is_count, "a whole number of at least 0"),
}
OPTIONAL: Mapping[str, tuple[Check, str]] = {
    "prompt": (_is_messages, "a list of messages"),
    "turns": (_is_messages, "a list of messages"),
    "group": (is_count, "a whole number of at least 0"),
    "seed": (_is_seed, "a whole number or null"),
    "reward_parts": (_is_parts, "numbers by name"),
}


def fault_of_rollout(row: Mapping[str, Any]) -> str | None:
    """The problem of a row in a rollout file; None if a report can show it."""
    missing = sorted(NEEDED.keys() - row.keys())
    if missing:
        return f"has no {', '.join(missing)}"
    for name, (check, wanted) in {**NEEDED, **OPTIONAL}.items():
        if name in row and not check(row[name]):
            return f"has {name}={row[name]!r:.60}, which must be {wanted}"
    return None
