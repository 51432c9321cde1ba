"""Declares on a node's function the batch columns that it reads and adds.

    @columns(requires=["responses", "response_mask"], provides=["token_level_rewards"])
    def compute_reward(*, batch, context): ...

`Pipeline.add_node(..., requires=, provides=)` declares them for a function without this decorator,
and adds columns to a declaration. Left out: dtypes and shapes, which
siirl.data_coordinator.protocol.batch_columns defines; a stage's type and role
(`siirl.execution.dag.stage`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

PROMPT_COLUMNS = ("index", "task_name", "task_id", "trial_id", "seed")
"""Columns of the prompts; they exist before any node has run."""
PROMPT_ROW = "prompt_row"
"""Column with the file row of a prompt; prompts from files have it too."""

_ATTRIBUTE = "__batch_columns__"
_PROVIDERS: dict[str, list[str]] = {}


@dataclass(frozen=True)
class Columns:
    """Columns that a function declares; None for a missing declaration."""

    requires: frozenset[str] | None = None
    """Columns that must be in the batch before it runs."""
    provides: frozenset[str] | None = None
    """Columns that are in the batch after it has run."""
    optional: frozenset[str] = frozenset()
    """Columns that it reads if the batch has them or the configuration needs them.
    """


def columns(
    *,
    requires: Iterable[str] = (),
    provides: Iterable[str] | None = (),
    optional: Iterable[str] = (),
) -> Callable[[Function], Function]:
    """Decorate a node's function with the columns that it reads and those that it adds.

    Args:
        requires: Columns that it always reads.
        provides: Columns that it adds; None: unknown until it has run.
        optional: Columns that it reads if the batch has them; a graph without them is accepted.
    """
    declared = Columns(
        requires=column_set(requires),
        provides=None if provides is None else column_set(provides),
        optional=column_set(optional),
    )

    def declare(function: Function) -> Function:
        setattr(function, _ATTRIBUTE, declared)
        _remember_provider(function, declared)
        return function

    return declare


def declared_columns(function: Callable[..., Any]) -> Columns:
    """The declaration of `function`; `Columns()` if it has none."""
    declared = getattr(function, _ATTRIBUTE, None)
    return declared if isinstance(declared, Columns) else Columns()


def providers_of(column: str) -> list[str]:
    """`module:name` of the decorated functions, among the modules imported so far, that provide
    `column`.
    """
    return sorted(_PROVIDERS.get(column, ()))


def column_set(names: Iterable[str]) -> frozenset[str]:
    """Column names as a set; refuses a single string, which Python would split into letters.

    Raises:
        TypeError: `names` is a string.
    """
    if isinstance(names, str):
        raise TypeError(f"Columns are a list of names: write [{names!r}] and not {names!r}.")
    return frozenset(names)


def _remember_provider(function: Callable[..., Any], declared: Columns) -> None:
    reference = f"{function.__module__}:{function.__qualname__}"
    if "<locals>" in reference:  # a graph cannot refer to it by name
        return
    for column in declared.provides or ():
        known = _PROVIDERS.setdefault(column, [])
        if reference not in known:
            known.append(reference)
