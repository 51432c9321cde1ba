"""Declares a stage's type, role and columns on its function.

    @stage(NodeType.COMPUTE, NodeRole.REWARD, requires=["uid"], provides=["token_level_rewards"])
    def compute_reward(*, batch, context): ...

`Pipeline.add_node` uses these as defaults. A type or role given there replaces the stage's, because
it tells the scheduler how this graph uses the function; columns given there are added
(`siirl.execution.dag.columns`).
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from siirl.execution.dag.columns import Function, columns
from siirl.execution.dag.node import NodeRole, NodeType

_ATTRIBUTE = "__stage__"
_START = "__start__"

Start = Callable[..., "Future[Any] | None"]
"""Starts a node's work outside the rank's thread; called like the node's function, at the same
point on every rank. None: no work to start.
"""


@dataclass(frozen=True)
class Stage:
    """Options of the node of a stage."""

    node_type: NodeType = NodeType.COMPUTE
    node_role: NodeRole = NodeRole.DEFAULT
    only_forward_compute: bool = False
    """A forward pass, which changes no weights."""
    moves_rows: bool = False
    """Whether rows may move to other ranks; they then cannot be joined with rows that stayed."""


def stage(
    node_type: NodeType,
    node_role: NodeRole = NodeRole.DEFAULT,
    *,
    only_forward_compute: bool = False,
    moves_rows: bool = False,
    requires: Iterable[str] = (),
    provides: Iterable[str] | None = (),
    optional: Iterable[str] = (),
    start: Start | None = None,
) -> Callable[[Function], Function]:
    """Declare a function's stage; see `Stage` and `columns` for the arguments.

    `start` begins work for which the rank only waits, so that independent nodes run meanwhile. The
    function gets the future's result as `started`, or None if no work was started.
    """
    declared = Stage(
        node_type=node_type,
        node_role=node_role,
        only_forward_compute=only_forward_compute,
        moves_rows=moves_rows,
    )

    def declare(function: Function) -> Function:
        setattr(function, _ATTRIBUTE, declared)
        setattr(function, _START, start)
        return columns(requires=requires, provides=provides, optional=optional)(function)

    return declare


def declared_stage(function: Callable[..., Any] | None) -> Stage:
    """The stage that `function` declares; by default a COMPUTE node without role."""
    declared = getattr(function, _ATTRIBUTE, None)
    return declared if isinstance(declared, Stage) else Stage()


def declared_start(function: Callable[..., Any] | None) -> Start | None:
    """Function that starts the work of `function` early; None if it cannot start early."""
    start: Start | None = getattr(function, _START, None)
    return start
