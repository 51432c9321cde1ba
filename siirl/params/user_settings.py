"""Keys and groups that the user of a run sets, and each key's value from the groups alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from siirl.params.aliases import Assignment


class GivenKey(NamedTuple):
    """Source of a key, and its value without the user's setting."""

    source: str
    """`command line`, or the file of --config."""
    default: Any


@dataclass(frozen=True)
class UserSettings:
    """Settings of a run's user."""

    groups: Mapping[str, str | None] = field(default_factory=dict)
    """Option by chosen group."""
    keys: Mapping[str, GivenKey] = field(default_factory=dict)


def given_by(
    chosen: Iterable[Assignment], keys: Iterable[Assignment], *, defaults: Any
) -> UserSettings:
    """The last choice of each group and the last source of each key.

    Args:
        chosen: Choices of groups.
        keys: Values of keys.
        defaults: Nested values from the groups alone.
    """
    return UserSettings(
        {choice.key: choice.value for choice in chosen},
        {leaf.key: GivenKey(leaf.source, value_at(defaults, leaf.key)) for leaf in keys},
    )


def value_at(tree: Any, place: str) -> Any:
    """The value at a dotted key of nested mappings, or None."""
    for name in place.split("."):
        known = (
            {str(key): value for key, value in tree.items()} if isinstance(tree, Mapping) else {}
        )
        tree = known.get(name)  # agents have numbers
    return tree
