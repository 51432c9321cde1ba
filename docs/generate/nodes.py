"""The page of node functions and shipped pipelines, from their signatures and declarations."""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from docs.generate.markdown import docstring, signature, table
from siirl.dag_worker import stages
from siirl.execution.dag.builtin_pipelines import PIPELINES
from siirl.execution.dag.columns import declared_columns
from siirl.execution.dag.function_names import OFFERED
from siirl.execution.dag.stage import declared_stage
from siirl.user_interface.filter_interface import dapo, embodied

INTRODUCTION = """\
# Nodes and pipelines

A node's function is called with keyword arguments for its parameters, among {offered}, with a
shallow copy of the batch. It returns a batch or `NodeOutput(batch, metrics)`. `@columns` (or
`@stage`) declares the batch columns that it reads and adds; a graph in which a required column
is missing is refused before anything starts.
[Your own pipeline](../tutorials/pipeline.md) shows both.

"""


def page() -> str:
    """Markdown of the page."""
    offered = ", ".join(f"`{name}`" for name in OFFERED)
    parts = [INTRODUCTION.format(offered=offered), "## Stages\n"]
    parts += [_function(function) for module in (stages, dapo, embodied) for function in of(module)]
    parts += ["## Pipelines\n", *(_pipeline(name) for name in PIPELINES)]
    return "\n".join(parts)


def of(module: ModuleType) -> list[Callable[..., Any]]:
    """Functions that a module defines and that declare columns, in its order."""
    return [
        function
        for function in vars(module).values()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and declared_columns(function).requires is not None
    ]


def _function(function: Callable[..., Any]) -> str:
    kind, columns = declared_stage(function), declared_columns(function)
    role = "" if kind.node_role.value == "DEFAULT" else f", role `{kind.node_role.value}`"
    forward = ", forward pass only" if kind.only_forward_compute else ""
    rows = [
        (name, ", ".join(f"`{column}`" for column in sorted(names or ())) or "none")
        for name, names in (
            ("requires", columns.requires),
            ("reads if present", columns.optional),
            ("provides", columns.provides),
        )
    ]
    return "\n".join(
        [
            f"### {function.__name__}\n",
            f"`{function.__module__}:{function.__name__}`, type `{kind.node_type.value}`"
            f"{role}{forward}\n",
            signature(function.__name__, function),
            docstring(function),
            table(("", "columns"), rows),
        ]
    )


def _pipeline(name: str) -> str:
    graph = PIPELINES[name]()
    rows = [
        (
            f"`{node_id}`",
            f"`{node.executable_ref}`",
            ", ".join(f"`{id}`" for id in node.dependencies),
        )
        for node_id, node in ((id, graph.get_node(id)) for id in graph.get_topological_sort())
    ]
    return f"### pipeline={name}\n\n{graph.description}.\n\n" + table(
        ("node", "function", "after"), rows
    )
