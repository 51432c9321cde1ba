"""Check of tools behind MCP servers: a job without its server would fail at every episode, and one
with two tools of a name at the first. Servers at addresses are asked for their tools; of those that
a run starts, only the program is looked up, and whether it is listed twice.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from envs.tools.toolset import ToolsMissing, two_of_a_name
from siirl.errors import ConfigError
from siirl.params.env_args import EnvArguments

CONNECTED_WITHIN_S = 2.0
LISTED_WITHIN_S = 10.0  # a server that takes longer is left to the run, which waits longer


def tool_server_problems(env: EnvArguments) -> Iterator[ConfigError]:
    """MCP servers of `env.kwargs.tools` at which nothing listens, or that list no tools: the path
    of the url is wrong, or the token, or it is another kind of server; two entries of one program;
    and two servers that list a tool of the same name, or one that lists a tool named like a Python
    function or program runner of the tools.
    """
    if "tools" not in env.kwargs:
        return
    # imports an HTTP client
    from envs.tools.server_urls import listed_tools, servers_at_addresses, why_unreachable

    yield from _listed_twice(env)
    absent = set()
    owners = _known_before_the_start(env)  # who offers each tool
    for server in servers_at_addresses(env.kwargs["tools"]):
        url = server["url"]
        if url in absent:
            continue
        reason = why_unreachable(url, within_s=CONNECTED_WITHIN_S)
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
        owner = f"the MCP server {url!r}"
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
        if command is None:
            continue
        in_folder = Path(server.get("cwd") or "", command)  # where its process looks for it
        path = (os.environ | dict(server.get("env") or {})).get("PATH")
        if shutil.which(str(in_folder) if os.sep in command else command, path=path) is None:
            yield ConfigError(
                f"env.kwargs.tools: there is no program {command!r} for an MCP server on this "
                "machine: install it, or write its whole path."
            )


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
            owner = f"the MCP server {' '.join([server['command'], *server.get('args', ())])!r}"
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
