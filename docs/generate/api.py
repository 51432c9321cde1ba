"""The page of the Python API: signatures and docstrings of what user code imports.

Left out: private names, and inherited members.
"""

import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType

from docs.generate.markdown import docstring, signature, summary, table

MODULES = {
    "envs.base": ("Environment", "EnvSpec", "FrameRequest", "Frames", "EpisodeFailed"),
    "envs.checker": ("check_env",),
    "envs.registry": ("register_env",),
    "envs.adapter": ("adapt",),
    "siirl.execution.dag": None,
    "siirl.algos": None,
    "siirl.models": None,
    "siirl.user_interface.own_loop": None,
    "siirl.reporting.metric_writers": ("register_writer",),
    "siirl.reporting.writer_contract": (
        *("MetricWriter", "RunWriter", "RunDescription", "Table", "Video"),
    ),
    "siirl.reporting.metrics": ("Metric", "Reduction", "Weighted", "register_metric"),
}
"""Module to the names that belong to the API; None: the module's `__all__`."""

INTRODUCTION = """\
# Python API

What code outside of this repository imports. Everything else may change between two versions.
"""


def page() -> str:
    """Markdown of the page."""
    return "\n".join([INTRODUCTION, *(_module(name) for name in MODULES)])


def _module(name: str) -> str:
    module = importlib.import_module(name)
    names = MODULES[name] or module.__all__
    members = [(member, getattr(module, member)) for member in names]
    constants = [
        (
            f"`{member}`",
            f"{type(value).__name__} of {len(value)}: " + ", ".join(f"`{key}`" for key in value),
        )
        for member, value in members
        if isinstance(value, dict)
    ]
    parts = [f"## {name}\n\n{summary(module)}\n", *_documented(module, members)]
    return "\n".join([*parts, table(("name", "entries"), constants) if constants else ""])


def _documented(module: ModuleType, members: list[tuple[str, object]]) -> Iterator[str]:
    for name, member in members:
        if inspect.isclass(member):
            yield f"### {name}\n\n{_call(name, member)}\n{docstring(member)}\n{_methods(member)}"
        elif callable(member):
            yield f"### {name}\n\n{signature(name, member)}\n{docstring(member)}"


def _call(name: str, member: type) -> str:
    """The constructor; an enum or a protocol has none of interest."""
    has_own = "__init__" in vars(member) and not getattr(member, "_is_protocol", False)
    return signature(name, member) if has_own else ""


def _methods(member: type) -> str:
    rows = [
        (f"`{name}{'()' if inspect.isfunction(method) else ''}`", summary(method))
        for name, method in vars(member).items()
        if not name.startswith("_")
        and (inspect.isfunction(method) or isinstance(method, property))
        and inspect.getdoc(method)
    ]
    return table(("method", ""), rows) if rows else ""
