"""`NodeOutput`, at the place from which the architecture guide imports it (section 11.2)."""

from siirl.execution.dag.node_output import NodeOutput

__all__ = ["NodeOutput"]
