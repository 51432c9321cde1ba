"""A hub on this machine that serves one folder as LIBERO's repository of assets: the requests of
`huggingface_hub` for a snapshot.
"""

import hashlib
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

from envs.libero.assets import HUB_REPOSITORY

COMMIT = "0" * 40
API, FILES = f"/api/datasets/{HUB_REPOSITORY}", f"/datasets/{HUB_REPOSITORY}/resolve/{COMMIT}/"


class Handler(BaseHTTPRequestHandler):
    """Sends the files of `folder`."""

    folder: Path
    breaks_at: str
    sent: list[str]
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self._file(body=False)

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        if path == f"{API}/revision/main":
            self._json(
                {
                    "id": HUB_REPOSITORY,
                    "sha": COMMIT,
                    "siblings": [{"rfilename": name} for name in _names(self.folder)],
                }
            )
        elif path == f"{API}/tree/{COMMIT}":
            self._json([_entry(self.folder, name) for name in _names(self.folder)])
        else:
            self._file(body=True)

    def _json(self, content):
        body = json.dumps(content).encode()
        self._head(200, len(body))
        self.end_headers()
        self.wfile.write(body)

    def _file(self, *, body):
        path = unquote(urlsplit(self.path).path)
        file = self.folder / path.removeprefix(FILES)
        if not path.startswith(FILES) or not file.is_file():
            self._head(404, 0)
            self.end_headers()
            return
        content, broken = file.read_bytes(), path.removeprefix(FILES) == self.breaks_at
        self._head(200, len(content))
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.sent.append(path.removeprefix(FILES))
            self.wfile.write(content[: len(content) // 2] if broken else content)
            self.close_connection = broken

    def _head(self, status, length):
        self.send_response(status)
        self.send_header("Content-Length", str(length))

    def log_message(self, *arguments):
        """Log nothing."""


@contextmanager
def local_hub(folder: Path, *, breaks_at: str = ""):
    """Serve `folder`; yields the address, and the files that were sent so far. Of the file
    `breaks_at` only half is ever sent.
    """
    sent: list[str] = []

    attributes = {"folder": folder, "breaks_at": breaks_at, "sent": sent}
    handler = type("HandlerOfFolder", (Handler,), attributes)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", sent
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _entry(folder, name):
    content = (folder / name).read_bytes()
    return {
        "type": "file",
        "path": name,
        "size": len(content),
        "oid": hashlib.sha1(content).hexdigest(),
    }
