"""A server on this machine with the Hugging Face Hub's interface: repositories are folders.

It has the endpoints that huggingface_hub reads: repository info, the tree of a
revision, and files. A repository `owner/name` with one commit lies in `root/models/owner/name` or
`root/datasets/owner/name`.
"""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

INFO = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/revision/(.+))?")
TREE = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)/tree/([^/]+)")
FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
TAG = "v1"
"""Every repository has this tag."""


class LocalHub:
    """The server's repositories and what it was asked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[str] = []
        self.before_body: Callable[[str], None] = lambda path: None
        """Called with the path of a file before its content is sent."""
        self.url = ""

    def add(self, kind: str, repository: str, files: dict[str, bytes]) -> str:
        """Make or extend a repository and return its commit."""
        folder = self.root / kind / repository
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return self.commit(folder)

    def add_folder(self, kind: str, repository: str, source: Path) -> str:
        """Make a repository of the files in a folder."""
        files = [file for file in source.rglob("*") if file.is_file()]
        return self.add(
            kind, repository, {str(file.relative_to(source)): file.read_bytes() for file in files}
        )

    @staticmethod
    def commit(folder: Path) -> str:
        """A commit that changes with the contents."""
        digest = hashlib.sha1()
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                digest.update(str(file.relative_to(folder)).encode() + file.read_bytes())
        return digest.hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Answers from the repositories of `hub`."""

    hub: LocalHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        status, headers, body = self._found(path)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.hub.before_body(path)
            self.wfile.write(body)

    def _found(self, path: str) -> tuple[int, dict[str, str], bytes]:
        if tree := TREE.fullmatch(path):
            return self._tree(self.hub.root / tree[1] / tree[2], tree[3])
        if info := INFO.fullmatch(path):
            return self._info(self.hub.root / info[1] / info[2], info[2], info[3])
        if file := FILE.fullmatch(path):
            kind = "datasets" if file[1] else "models"
            return self._file(self.hub.root / kind / file[2], file[3], file[4])
        return 404, {}, b""

    def _refused(self, folder: Path, revision: str | None) -> str | None:
        if not folder.is_dir():
            return "RepoNotFound"
        known = (None, "main", TAG, self.hub.commit(folder))
        return None if revision in known else "RevisionNotFound"

    def _info(
        self, folder: Path, name: str, revision: str | None
    ) -> tuple[int, dict[str, str], bytes]:
        if code := self._refused(folder, revision):
            return 404, {"X-Error-Code": code}, b"{}"
        found = {"id": name, "sha": self.hub.commit(folder), "siblings": [], "private": False}
        return 200, {"Content-Type": "application/json"}, json.dumps(found).encode()

    def _tree(self, folder: Path, revision: str) -> tuple[int, dict[str, str], bytes]:
        if code := self._refused(folder, revision):
            return 404, {"X-Error-Code": code}, b"{}"
        entries = [
            {
                "type": "file",
                "path": str(file.relative_to(folder)),
                "size": file.stat().st_size,
                "oid": hashlib.sha1(file.read_bytes()).hexdigest(),
            }
            for file in sorted(folder.rglob("*"))
            if file.is_file()
        ]
        return 200, {"Content-Type": "application/json"}, json.dumps(entries).encode()

    def _file(self, folder: Path, revision: str, name: str) -> tuple[int, dict[str, str], bytes]:
        if code := self._refused(folder, revision):
            return 404, {"X-Error-Code": code}, b""
        file = folder / name
        if not file.is_file():
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        content = file.read_bytes()
        headers = {
            "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
            "X-Repo-Commit": self.hub.commit(folder),
            "Accept-Ranges": "bytes",
        }
        return 200, headers, content


@contextmanager
def local_hub(root: Path) -> Iterator[LocalHub]:
    """Serve `root` until the block ends."""
    hub = LocalHub(root)

    handler = type("HandlerOfHub", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
