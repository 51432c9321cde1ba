"""Makes the tools that a configuration names.

tools:
  - my_module:my_function                                      # a Python function
  - {mcp: {command: my-server, args: [--quiet], fresh: false}} # the tools of an MCP server; see
  `envs.tools.mcp_server`
  - {mcp: {url: http://127.0.0.1:8000/mcp}}                    # a running server
  - {program: envs.tools.sandboxed:sandboxed, processes: 8}    # a tool that runs Python: a factory
    of a `ProgramRunner`, and its arguments
"""

import inspect
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

from envs.text import shortened
from envs.tools.functions import FunctionTools
from envs.tools.sandboxed import ProgramTool
from envs.tools.toolset import Toolset

KINDS = "module:function, {mcp: {command: …}}, {mcp: {url: …}}, {program: module:factory, …}"


def make_toolsets(tools: Sequence[str | Mapping[str, Any]], *, deadline_s: float) -> list[Toolset]:
    """Make the toolsets of `tools`; starts no process.

    Raises:
        ValueError: An entry of an unknown form, a function that cannot be imported, or arguments
            that its factory refuses.
    """
    if isinstance(tools, (str, Mapping)):
        raise ValueError(f"tools must be a list of {KINDS}, got {shortened(tools)}.")
    functions = [entry for entry in tools if isinstance(entry, str)]
    toolsets: list[Toolset] = [FunctionTools(functions, deadline_s=deadline_s)] if functions else []
    return toolsets + [
        _make(entry, deadline_s=deadline_s) for entry in tools if not isinstance(entry, str)
    ]


def _make(entry: Any, *, deadline_s: float) -> Toolset:
    if not isinstance(entry, Mapping) or not all(isinstance(key, str) for key in entry):
        raise ValueError(f"A tool is one of {KINDS}; got {shortened(entry)}.")
    arguments: dict[str, Any] = dict(entry)
    if set(entry) == {"mcp"} and isinstance(entry["mcp"], Mapping):
        from envs.tools.mcp_server import MCPTools  # takes a second to import, and is rarely needed

        server: Toolset = _called(MCPTools, {"deadline_s": deadline_s, **entry["mcp"]}, entry)
        return server
    reference = arguments.pop("program", None)
    if not isinstance(reference, str):
        raise ValueError(f"A tool is one of {KINDS}; got {shortened(entry)}.")
    try:
        factory = pkgutil.resolve_name(reference)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"Tool {reference!r} cannot be imported: {type(error).__name__}: {error}."
        ) from error
    runner = _called(factory, arguments, entry)
    lacking = [name for name in ("run_program", "close") if not hasattr(runner, name)]
    if lacking:
        raise ValueError(
            f"Tool {shortened(entry)}: {reference} made an object of {type(runner).__name__}, "
            f"which has no {' and no '.join(lacking)}; a factory makes a "
            "ProgramRunner (envs.tools.sandboxed)."
        )
    return ProgramTool(runner)


def _called(factory: Any, arguments: Mapping[str, Any], entry: Any) -> Any:
    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        raise ValueError(
            f"Tool {shortened(entry)}: {error}. Its arguments: "
            f"{', '.join(inspect.signature(factory).parameters)}."
        ) from error
    return factory(**arguments)
