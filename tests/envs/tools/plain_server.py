"""An MCP server without the `mcp` package, which starts in a tenth of its time: the handshake, a
tool that answers and one that dies.

    python plain_server.py [FOLDER]

With a folder it notes each of its starts there, and refuses to start while the folder holds a file
`broken`, with words on standard error.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TOOLS = {
    "greet": "Say hello.",
    "die": "End this server, and let none start again in its folder.",
    "flood": "Write 8 MB to standard error, and then say hello.",
    "chatter": "Write three lines that are no MCP to standard output, and then say hello.",
    "long": "Say 10 MiB.",
    "detach": "Start a process that leaves this session and its parent, and tell its number.",
    "stay": "As `detach`, and take no notice of signals and of the end of standard input from now on.",
}
CHATTER = b'loading\n{"progress": 1}\n\xff\xfe\n'
# Prints the pid of its grandchild, which lives in a separate session, and ends; -3 is DEVNULL.
DETACHED = (
    "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True, "
    "stdout=-3, stderr=-3).pid)"
)


def answer(method: str, tool: str, folder: Path | None) -> object:
    """The result of a request; None for one that this server does not know."""
    if method == "initialize":
        return {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "plain", "version": "1"},
        }
    if method == "tools/list":
        schema = {"type": "object", "properties": {}}
        return {
            "tools": [
                {"name": name, "description": told, "inputSchema": schema}
                for name, told in TOOLS.items()
            ]
        }
    if method != "tools/call":
        return None
    if tool == "die":
        assert folder is not None
        (folder / "broken").touch()
        os._exit(1)
    if tool == "flood":
        for _ in range(1000):
            sys.stderr.write("x" * 7999 + "\n")
        sys.stderr.write("the last line\n")
        sys.stderr.flush()
    if tool == "chatter":
        sys.stdout.buffer.write(CHATTER)
        sys.stdout.flush()
    if tool == "stay":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if tool in ("detach", "stay"):
        started = subprocess.run(
            [sys.executable, "-S", "-c", DETACHED],
            capture_output=True,
            text=True,
            start_new_session=True,
        )
        return {"content": [{"type": "text", "text": started.stdout.strip()}]}
    text = "x" * (10 << 20) if tool == "long" else "hello"
    return {"content": [{"type": "text", "text": text}]}


def main(folder: Path | None) -> None:
    """Answer requests until standard input ends."""
    if folder is not None:
        if (folder / "broken").exists():
            raise SystemExit(f"no server in {folder.name}: the disk is gone")
        (folder / f"start-{os.getpid()}").touch()
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        result = answer(request["method"], request.get("params", {}).get("name", ""), folder)
        outcome = (
            {"error": {"code": -32601, "message": "Method not found"}}
            if result is None
            else {"result": result}
        )
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **outcome}), flush=True)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        time.sleep(600)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
