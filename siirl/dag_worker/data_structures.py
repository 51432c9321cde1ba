"""Re-exports `NodeOutput` under the architecture guide's path (section 11.2)."""

from siirl.execution.dag.node_output import NodeOutput

__all__ = ["NodeOutput"]
