"""Re-exports `NodeOutput` under its documented import path."""

from siirl.execution.dag.node_output import NodeOutput

__all__ = ["NodeOutput"]
