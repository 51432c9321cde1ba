"""Checks that the nodes which get the prompts require only columns that the prompts have."""

from collections.abc import Iterator

from siirl.data_coordinator.prompts import PROMPT_LOADER_COLUMNS
from siirl.data_coordinator.task_stream import LOADER_COLUMNS
from siirl.errors import ConfigError, SiirlError
from siirl.execution.dag import TaskGraph
from siirl.execution.dag.columns import PROMPT_ROW
from siirl.params.agents import config_of_group
from siirl.params.training_args import SiiRLArguments


def prompt_column_problems(config: SiiRLArguments, graph: TaskGraph) -> Iterator[SiirlError]:
    """An error for each node that requires other columns of its agent group's prompts."""
    for node_id, group in graph.drawing_nodes().items():
        files = config_of_group(config, group).data.train_files
        known = PROMPT_LOADER_COLUMNS if files else LOADER_COLUMNS
        missing = sorted(graph.nodes[node_id].required_columns - known)
        if missing:
            rows = "" if files else f" ({PROMPT_ROW} too, if data.train_files is set)"
            yield ConfigError(
                f"Node {node_id!r} of graph {graph.graph_id!r} gets the prompts and requires "
                f"{', '.join(map(repr, missing))}, but they have only {', '.join(sorted(known))}"
                f"{rows}: let it depend on a node that provides it, or do not require it."
            )
