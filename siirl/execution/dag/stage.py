"""A stage's type, role and columns, declared once, on its function.

    @stage(NodeType.COMPUTE, NodeRole.REWARD, requires=["responses"],
    provides=["token_level_rewards"]) def compute_reward(*, batch, context): ...

`Pipeline.add_node` takes from here what it is not given. A type or role given there takes the place
of the stage's, because it tells the scheduler how this graph uses the function; columns given there
are added (`siirl.execution.dag.columns`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from siirl.execution.dag.columns import Function, columns
from siirl.execution.dag.node import NodeRole, NodeType

_ATTRIBUTE = "__stage__"


@dataclass(frozen=True)
class Stage:
    """Options of the node of a stage."""

    node_type: NodeType = NodeType.COMPUTE
    node_role: NodeRole = NodeRole.DEFAULT
    only_forward_compute: bool = False
    """A forward pass of a model that is trained elsewhere in the graph."""


def stage(
    node_type: NodeType,
    node_role: NodeRole = NodeRole.DEFAULT,
    *,
    only_forward_compute: bool = False,
    requires: Iterable[str] = (),
    provides: Iterable[str] = (),
    optional: Iterable[str] = (),
) -> Callable[[Function], Function]:
    """Decorate a function with what its node is; see `Stage` and `columns` for the arguments."""
    declared = Stage(
        node_type=node_type, node_role=node_role, only_forward_compute=only_forward_compute
    )

    def declare(function: Function) -> Function:
        setattr(function, _ATTRIBUTE, declared)
        return columns(requires=requires, provides=provides, optional=optional)(function)

    return declare


def declared_stage(function: Callable[..., Any] | None) -> Stage:
    """The declaration of `function`; a COMPUTE node without role where it has none."""
    declared = getattr(function, _ATTRIBUTE, None)
    return declared if isinstance(declared, Stage) else Stage()
