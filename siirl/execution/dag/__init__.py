"""Declares an algorithm as a graph of nodes. The graph is checked when it is built, before any
process starts. Imports neither torch nor Ray.

Re-exports everything that a pipeline file needs. Left out: `builtin_pipelines`, because it imports
the pipeline files, and these import this package.
"""

from siirl.execution.dag.columns import Columns, columns
from siirl.execution.dag.job_graph import order_for_kl_in_reward
from siirl.execution.dag.node import Node, NodeRole, NodeStatus, NodeType
from siirl.execution.dag.node_output import NodeOutput
from siirl.execution.dag.pipeline import Pipeline
from siirl.execution.dag.stage import Stage, stage
from siirl.execution.dag.task_graph import TaskGraph
from siirl.execution.dag.task_loader import discover_and_split_parallel_paths
from siirl.execution.dag.workflow_file import load_workflow_file

__all__ = [
    "Columns",
    "Node",
    "NodeOutput",
    "NodeRole",
    "NodeStatus",
    "NodeType",
    "Pipeline",
    "Stage",
    "TaskGraph",
    "columns",
    "discover_and_split_parallel_paths",
    "load_workflow_file",
    "order_for_kl_in_reward",
    "stage",
]
