"""An MCP server over streamable HTTP without the `mcp` package, in a thread: answers are JSON, or
an event stream.
"""

import json
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

TOOLS = ("greet", "long", "wait", "fail", "nonsense")
SCHEMA = {"type": "object", "properties": {}}
LONG = 10 << 20  # characters


class PlainHttpServer:
    """Listens on a free port; `sessions` counts handshakes, `tokens` has what clients sent."""

    def __init__(
        self,
        *,
        streams: bool = False,
        token: str | None = None,
        long: int = LONG,
        tools: Sequence[str] = TOOLS,
    ) -> None:
        self.streams, self.token, self.long, self.tools = streams, token, long, tools
        self.sessions = 0
        self.may_leave = threading.Event()
        """Until it is set, the end of a session gets no answer."""
        self.may_leave.set()
        self.farewells = 0
        self.tokens: set[str | None] = set()

    def __enter__(self) -> "PlainHttpServer":
        self.start(port=0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, *, port: int) -> None:
        """Listen."""
        owner = self

        class Handler(_Handler):
            server_state = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server_state: PlainHttpServer
    protocol_version = "HTTP/1.0"  # a closed port is closed for its clients too

    def log_message(self, *_: Any) -> None:
        return

    def do_GET(self) -> None:
        self._respond(405)

    def do_DELETE(self) -> None:
        self.server_state.farewells += 1
        self.server_state.may_leave.wait()
        self._respond(200)

    def do_POST(self) -> None:
        state = self.server_state
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        state.tokens.add(self.headers["Authorization"])
        if self.path != "/mcp":
            self._respond(404)
        elif state.token is not None and self.headers["Authorization"] != f"Bearer {state.token}":
            self._respond(401)
        elif "id" not in request:
            self._respond(202)
        else:
            self._answer(request)

    def _answer(self, request: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        result = self._result(request["method"], request.get("params") or {})
        if result is None:
            answer["error"] = {"code": -32601, "message": "no such method"}
        else:
            answer["result"] = result
        text = json.dumps(answer)
        if self.server_state.streams:
            self._respond(200, f"event: message\ndata: {text}\n\n", "text/event-stream")
        else:
            self._respond(200, text, "application/json")

    def _result(self, method: str, params: dict[str, Any]) -> Any:
        if method == "initialize":
            self.server_state.sessions += 1
            return {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "plain", "version": "1"},
            }
        if method == "tools/list":
            return {
                "tools": [{"name": name, "inputSchema": SCHEMA} for name in self.server_state.tools]
            }
        if method != "tools/call":
            return None
        match params["name"]:
            case "long":
                return _text("x" * self.server_state.long)
            case "wait":
                time.sleep(5)
            case "fail":
                return {**_text("it cannot"), "isError": True}
            case "nonsense":
                return {"content": 5}
        return _text("hello")

    def _respond(self, status: int, body: str = "", kind: str = "text/plain") -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Mcp-Session-Id", "1")
        self.end_headers()
        self.wfile.write(data)


def _text(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}
