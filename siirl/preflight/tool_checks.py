"""Check of tools behind MCP servers: a job without its server would fail at every episode, and one
with two tools of a name at the first. Servers at addresses are asked for their tools. Programs are
looked up on this machine, and started and asked only where their tools stand beside others.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envs.tools.toolset import ToolsMissing, two_of_a_name
from siirl.errors import ConfigError
from siirl.params.env_args import EnvArguments

CONNECTED_WITHIN_S = 2.0
LISTED_WITHIN_S = 10.0  # a server that takes longer is left to the run, which waits longer


def tool_server_problems(env: EnvArguments, *, here: bool) -> Iterator[ConfigError]:
    """MCP servers of `env.kwargs.tools` at which nothing listens, or that list no tools: the path
    of the url is wrong, or the token, or it is another kind of server; two entries of one program;
    and two servers that list a tool of the same name, or one that lists a tool named like a Python
    function or program runner of the tools.

    Args:
        env: Settings of the environment.
        here: Whether this machine runs the environments, and so has the servers' programs.
    """
    if "tools" not in env.kwargs:
        return
    # imports an HTTP client
    from envs.tools.server_urls import listed_tools, mcp_servers, why_unreachable

    twice = [*_listed_twice(env)]
    yield from twice
    starts = here and env.name == "tools" and not twice and len(env.kwargs["tools"]) > 1
    absent = set()
    owners = _known_before_the_start(env)  # who offers each tool
    for server in mcp_servers(env.kwargs["tools"]):
        url = server.get("url")
        if url in absent or (url is None and not (starts and _found(server))):
            continue
        reason = None if url is None else why_unreachable(url, within_s=CONNECTED_WITHIN_S)
        if reason is not None:
            absent.add(url)
            yield ConfigError(
                f"env.kwargs.tools: no MCP server can be reached at {url} ({reason}): start it "
                "first, or correct the address."
            )
            continue
        try:
            names = listed_tools(server, within_s=LISTED_WITHIN_S)
        except ToolsMissing as missing:
            yield ConfigError(f"env.kwargs.tools: {missing}")
            continue
        owner = f"the MCP server {url or _words_of(server)!r}"
        shared = next((name for name in names if name in owners), None)
        if shared is not None:
            yield ConfigError(two_of_a_name(shared, owners[shared], owner))
        owners.update(dict.fromkeys(names, owner))


def missing_programs(env: EnvArguments) -> Iterator[ConfigError]:
    """MCP servers of `env.kwargs.tools` whose program this machine does not have."""
    if env.name != "tools":
        return
    tools = env.kwargs.get("tools", ())
    entries = [entry for entry in tools if isinstance(entry, Mapping)]
    for server in (entry["mcp"] for entry in entries if "mcp" in entry):
        command = server.get("command")
        if command is not None and not _found(server):
            yield ConfigError(
                f"env.kwargs.tools: there is no program {command!r} for an MCP server on this "
                "machine: install it, or write its whole path."
            )


def _found(server: Mapping[str, Any]) -> bool:
    """Whether this machine has the program of an MCP server."""
    command = server["command"]
    in_folder = Path(server.get("cwd") or "", command)  # where its process looks for it
    path = (os.environ | dict(server.get("env") or {})).get("PATH")
    return shutil.which(str(in_folder) if os.sep in command else command, path=path) is not None


def _words_of(server: Mapping[str, Any]) -> str:
    return " ".join([server["command"], *server.get("args", ())])


def _listed_twice(env: EnvArguments) -> Iterator[ConfigError]:
    """Two program runners, and two entries of one program: their tools have the same names."""
    from envs.tools.sandboxed import NAME, ProgramTool

    if env.name != "tools":
        return
    entries = [entry for entry in env.kwargs["tools"] if isinstance(entry, Mapping)]
    if len([entry for entry in entries if "program" in entry]) > 1:
        yield ConfigError(two_of_a_name(NAME, ProgramTool.origin, ProgramTool.origin))
    seen = []
    for server in (entry["mcp"] for entry in entries if "command" in entry.get("mcp", ())):
        process = [server.get(setting) for setting in ("command", "args", "env", "cwd")]
        if process in seen:
            owner = f"the MCP server {_words_of(server)!r}"
            yield ConfigError(two_of_a_name("", owner, owner))
        seen.append(process)


def _known_before_the_start(env: EnvArguments) -> dict[str, str]:
    """Names of the tools that need no server, and who offers each; the environment has accepted
    them. Entries in `tools` of a user's own environment may mean something else.
    """
    from envs.tools.sandboxed import NAME, ProgramTool
    from envs.tools.signatures import function_and_model

    if env.name != "tools":
        return {}
    entries = env.kwargs["tools"]
    owners = {
        function_and_model(entry)[0].__name__: f"the Python function {entry!r}"
        for entry in entries
        if isinstance(entry, str)
    }
    if any("program" in entry for entry in entries if not isinstance(entry, str)):
        owners[NAME] = ProgramTool.origin
    return owners
