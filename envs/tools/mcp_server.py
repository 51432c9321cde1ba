"""Tools of an MCP server (https://modelcontextprotocol.io): a process that is started here
(standard streams), or a server at an address (streamable HTTP).

With `fresh` (the default) every episode that calls a tool has its own server process, or its own
session at an address. So episodes share no state. If a server dies or hangs during a call, the
model gets an error, and the next call restarts it (or reconnects to the address). An unreachable
server fails its episode (`ToolsMissing`); the message has the end of its standard error. A
process's children end with it (`supervisor`), and its output outside MCP is dropped
(`mcp_transports`). The client refuses requests to the user (sampling, elicitation).
"""

import asyncio
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any

import httpx2
from mcp import Client, MCPError
from mcp_types import CONNECTION_CLOSED, CallToolResult, TextContent
from pydantic import ValidationError

from envs.deadlines import checked_deadline
from envs.mistakes import one_line
from envs.server_address import checked_url, read_token
from envs.tools.calls import ToolDescription
from envs.tools.mcp_transports import Address, McpTransport, Process
from envs.tools.toolset import ToolError, Toolset, ToolsMissing, ToolStopped

MAX_PAGES = 100  # of a server's list of tools
# The library ends a process within 7 s; it waits without limit for the answer to a session's end.
FAREWELL_S = 15.0


class MCPTools(Toolset):
    """All tools of one server."""

    def __init__(
        self,
        *,
        command: str | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        url: str | None = None,
        token_file: str | None = None,
        deadline_s: float = 10.0,
        start_deadline_s: float = 40.0,
        fresh: bool = True,
        replayable: bool = False,
    ) -> None:
        """Store the settings; starts no process.

        Args:
            command: The server's program; it gets `env`, PATH, HOME and a few other variables.
            args: The program's arguments.
            env: Further environment variables.
            cwd: The program's working folder.
            url: Address of a running server, instead of `command`: `http://HOST:PORT/mcp`.
            token_file: File with the bearer token for it.
            deadline_s: Deadline of a call in seconds.
            start_deadline_s: Deadline in seconds for listing the server's tools. Its sum with
                `deadline_s` must be below env.deadline_s (60), after which the whole env server is
                replaced.
            fresh: Whether each episode has its own process; False saves starts of stateless
                servers.
            replayable: Whether the same calls get the same answers, so that interrupted episodes
                can be repeated.

        Raises:
            ValueError: Neither a program nor an address, both, a setting of another type, or an
                unreadable token file.
        """
        for name, value, kind, meaning in (
            ("env", env, Mapping | None, "a mapping of names to texts"),
            ("cwd", cwd, str | None, "a folder"),
            ("url", url, str | None, "an address"),
            ("token_file", token_file, str | None, "a file"),
            ("fresh", fresh, bool, "true or false"),
            ("replayable", replayable, bool, "true or false"),
        ):
            _require_type(name, value, kind, meaning)
        for name, value in (env or {}).items():
            _require_type(f"{name} in env", value, str, "text; write it in quotes")
        self._server = _server(
            command=command, args=args, env=env, cwd=cwd, url=url, token_file=token_file
        )
        checked_deadline(f"deadline_s of {str(self._server)!r}", deadline_s)
        checked_deadline(f"start_deadline_s of {str(self._server)!r}", start_deadline_s)
        self.origin = f"the MCP server {str(self._server)!r}"
        self.replayable = replayable
        self.deadline_s = deadline_s
        self.start_deadline_s = start_deadline_s
        self._fresh = fresh
        self._connection: _Connection | None = None
        self._used = False
        self._descriptions: list[ToolDescription] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def descriptions(self) -> Sequence[ToolDescription]:
        """See `Toolset.descriptions`; asks the server once."""
        if self._descriptions is None:
            deadline = asyncio.get_running_loop().time() + self.start_deadline_s
            connection = await self._connected()
            try:
                async with asyncio.timeout_at(deadline):
                    self._descriptions = await connection.list_tools()
            except (MCPError, TimeoutError, ValidationError) as error:
                self._drop()
                raise ToolsMissing(
                    self._complaint("did not list its tools", error, connection)
                ) from error
        return self._descriptions

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """See `Toolset.call`; returns the result's text, and the types of other content."""
        connection = await self._connected()
        self._used = True
        try:
            result = await asyncio.wait_for(
                connection.client.call_tool(name, dict(arguments)), self.deadline_s
            )
        except TimeoutError as error:
            self._drop()
            raise ToolStopped(
                f"no answer within {self.deadline_s:g} s; {self._server.stopped}, "
                f"and {self._server.again}"
            ) from error
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                raise ToolError(str(error)) from error
            self._drop()
            raise ToolStopped(self._server.end(one_line(error))) from error
        except (ValidationError, RuntimeError) as error:  # the answer is not MCP
            self._drop()
            raise ToolError(
                f"its server's answer is not an MCP result ({type(error).__name__}); "
                f"{self._server.again}"
            ) from error
        text = _text(result)
        if result.is_error:
            raise ToolError(text or "it failed without a message")
        return text

    async def start_episode(self) -> None:
        """End the previous episode's server if it was called and `fresh` is set."""
        if self._fresh and self._used:
            self._drop()

    async def close(self) -> None:
        """End the server."""
        self._drop()
        await asyncio.gather(*self._ending)

    async def _connected(self) -> "_Connection":
        if self._connection is not None and not self._connection.is_open():
            self._drop()
        if self._connection is None:
            try:
                connection = _Connection(self._server.transport())
            except OSError as error:  # no descriptor left
                raise ToolsMissing(
                    f"The MCP server {str(self._server)!r} {self._server.absent}: "
                    f"{_first_cause(error)}."
                ) from error
            try:
                await connection.open(deadline_s=self.start_deadline_s)
                self._connection = connection
            except (
                OSError,
                MCPError,
                TimeoutError,
                ValidationError,
                RuntimeError,
                ExceptionGroup,
                httpx2.HTTPError,
            ) as error:
                raise ToolsMissing(
                    self._complaint(self._server.absent, error, connection)
                ) from error
            finally:
                if self._connection is None:  # even if the caller was cancelled
                    self._end(connection)
        return self._connection

    def _complaint(self, what: str, error: BaseException, connection: "_Connection") -> str:
        return (
            f"The MCP server {str(self._server)!r} {what}: {_first_cause(error)}."
            f"{connection.transport.said()}"
        )

    def _drop(self) -> None:
        """Drop the connection and end its server in the background, after a few seconds' grace."""
        connection = self._connection
        self._connection = None
        self._used = False
        if connection is not None:
            self._end(connection)

    def _end(self, connection: "_Connection") -> None:
        ending = asyncio.get_running_loop().create_task(connection.close())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


class _Connection:
    """A server and its client, in one task: the client's contexts must exit in the same task."""

    def __init__(self, transport: McpTransport) -> None:
        self.transport = transport
        self._closing = asyncio.Event()
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self.client: Client

    def is_open(self) -> bool:
        """Whether the client considers itself connected."""
        return self._task is not None and not self._task.done()

    async def open(self, *, deadline_s: float) -> None:
        """Start the server and perform the handshake."""
        self._task = asyncio.get_running_loop().create_task(self._live())
        news: set[asyncio.Future[Any]] = {self._task, self._ready}
        await asyncio.wait(news, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        if self._ready.done():
            self.client = self._ready.result()
        elif self._task.done():
            self._task.result()
            raise RuntimeError("it ended at once")
        else:
            raise TimeoutError(f"it did not answer within {deadline_s:g} s")

    async def list_tools(self) -> list[ToolDescription]:
        """All tools of the server."""
        tools, cursor = [], None
        for _ in range(MAX_PAGES):
            page = await self.client.list_tools(cursor=cursor)
            tools += [
                ToolDescription(tool.name, tool.description or "", tool.input_schema)
                for tool in page.tools
            ]
            cursor = page.next_cursor
            if cursor is None:
                break
        return tools

    async def close(self) -> None:
        """End the server; waits until it is gone."""
        self._closing.set()
        try:
            if self._task is None:
                return
            if self._ready.done():
                await asyncio.wait({self._task}, timeout=FAREWELL_S)
            # not reached the wait for `_closing`, or the server does not answer the farewell
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        finally:
            self.transport.close()

    async def _live(self) -> None:
        async with Client(self.transport.streams()) as client:
            self._ready.set_result(client)
            await self._closing.wait()


def _require_type(name: str, value: object, kind: type | UnionType, meaning: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{name} of an MCP server must be {meaning}, got {value!r}.")


def _server(
    *,
    command: str | None,
    args: Sequence[str],
    env: Mapping[str, str] | None,
    cwd: str | None,
    url: str | None,
    token_file: str | None,
) -> Process | Address:
    """The server that the arguments of `MCPTools` describe."""
    if (command is None) == (url is None):
        raise ValueError(
            "an MCP server has either command (a program that is started) or url (an address): "
            f"got command={command!r} and url={url!r}."
        )
    if command is not None:
        if token_file is not None:
            raise ValueError(
                f"token_file={token_file!r} is only for a server with url: leave it out."
            )
        words = [command, *args] if isinstance(args, list | tuple) else [None]
        if not all(isinstance(word, str) for word in words):
            raise ValueError(
                f"command={command!r} must be a program and args={args!r} a list of words: "
                "command: python, args: [server.py]."
            )
        return Process(command, tuple(args), dict(env or {}), cwd)
    if args or env or cwd is not None:
        raise ValueError(f"args, env and cwd are for a program, but {url} is already running.")
    address = checked_url(url, key="url", token_key="token_file", server="an MCP server")
    return Address(address, None if token_file is None else read_token(token_file))


def _text(result: CallToolResult) -> str:
    return "\n".join(
        part.text if isinstance(part, TextContent) else f"[{part.type}]" for part in result.content
    )


def _first_cause(error: BaseException) -> str:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    name, said = type(error).__name__, one_line(error)
    return name if said == name else f"{name}: {said}"
