"""The batch columns that a node's function reads and adds, written on the function itself.

    @columns(requires=["responses", "response_mask"], provides=["token_level_rewards"])
    def compute_reward(*, batch, context): ...

A node may say it instead (`Pipeline.add_node(..., requires=, provides=)`), and then the node's word counts. Left out: dtypes and
shapes, which siirl.data_coordinator.protocol.batch_columns tells.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_ATTRIBUTE = "__batch_columns__"


@dataclass(frozen=True)
class Columns:
    """What a function says of itself; None where it says nothing."""

    requires: frozenset[str] | None = None
    """Columns that must be in the batch before it runs."""
    provides: frozenset[str] | None = None
    """Columns that are in the batch after it has run."""


def columns(*, requires: Iterable[str] = (), provides: Iterable[str] = ()) -> Callable[[Function], Function]:
    """Decorate a node's function with the columns that it reads and those that it adds."""
    declared = Columns(requires=column_set(requires), provides=column_set(provides))

    def declare(function: Function) -> Function:
        setattr(function, _ATTRIBUTE, declared)
        return function

    return declare


def declared_columns(function: Callable[..., Any]) -> Columns:
    """What `function` was decorated with, or `Columns()` where it was not."""
    declared = getattr(function, _ATTRIBUTE, None)
    return declared if isinstance(declared, Columns) else Columns()


def column_set(names: Iterable[str]) -> frozenset[str]:
    """Column names as a set; a lone string, which Python would take apart letter by letter, is refused.

    Raises:
        TypeError: `names` is a string.
    """
    if isinstance(names, str):
        raise TypeError(f"Columns are a list of names: write [{names!r}] and not {names!r}.")
    return frozenset(names)
