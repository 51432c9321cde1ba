"""The Hub is asked once, and each answer has a clear message: a local fake hub gives them all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMIT = "0123456789" * 4
ASK = '''
"""Asks a hub whose answers are known, in a process that may: the tests' own is offline."""
import json, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer



from siirl.errors import SiirlError
from siirl.models.hub import find_on_hub

ANSWERS = {  # status and header, as huggingface.co gives them
    "there": (200, "ok"),
    "none": (401, "RepoNotFound"),
    "gated": (403, "GatedRepo"),
    "adapters": (404, "EntryNotFound"),
    "down": (503, "ServiceUnavailable"),
    "kept-down": (503, "ServiceUnavailable"),
    "kept-gated": (403, "GatedRepo"),
    "kept-private": (401, "RepoNotFound"),
}
asked = []


class Hub(BaseHTTPRequestHandler):
    def do_HEAD(self):
        organisation, model, *rest = self.path.strip("/").split("/")
        asked.append(model)
        if model == "silent":
            time.sleep(60)
        status, code = ANSWERS[model]
        self.send_response(status)
        self.send_header("X-Error-Code" if status >= 400 else "ETag", code)
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


hub = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=hub.serve_forever, daemon=True).start()
closed = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
closed.server_close()


def outcome(name, server=hub):
    try:
        return find_on_hub(name, place="critic.path", endpoint=f"http://127.0.0.1:{server.server_port}")
    except SiirlError as error:
        return f"{type(error).__name__}: {error}"


found = {f"org/{name}": outcome(f"org/{name}") for name in (*ANSWERS, "silent")}
found |= {"unreachable": outcome("org/x", closed), "kept, unreachable": outcome("org/kept", closed)}
found["no id"] = outcome("a b/c")
print(json.dumps({"found": found, "asked": asked}))
sys.stdout.flush()
'''


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict:
    home = tmp_path_factory.mktemp("hub")
    for name in ("kept", "kept-down", "kept-gated", "kept-private"):
        kept = home / "hub" / f"models--org--{name}"
        (kept / "refs").mkdir(parents=True)
        (kept / "refs" / "main").write_text(COMMIT)
        (kept / "snapshots" / COMMIT).mkdir(parents=True)
        (kept / "snapshots" / COMMIT / "config.json").write_text("{}")
    online = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HF_", "TRANSFORMERS_"))
    }
    environment = online | {"HF_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "errors": done.stderr, "home": home}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/none", "there is no folder org/none here, and the Hub has no such public model"),
        (
            "org/gated",
            "its owners must grant access: request it at https://huggingface.co/org/gated",
        ),
        (
            "org/adapters",
            "critic.path=org/adapters is on the Hub, but is not a model: it has no config.json",
        ),
        (
            "org/down",
            "there is no folder org/down here, and the Hub answered with status 503. Give a folder",
        ),
        (
            "org/silent",
            "there is no folder org/silent here, and the Hub could not be reached (timed out). "
            "Give a folder",
        ),
        (
            "unreachable",
            "there is no folder org/x here, and the Hub could not be reached "
            "([Errno 111] Connection refused). Give a folder",
        ),
    ],
)
def test_a_model_that_cannot_be_downloaded_is_refused_with_the_reason(
    answers: dict, name: str, expected: str
) -> None:
    assert answers["found"][name].startswith("MissingAssetError: critic.path=org/")
    assert expected in answers["found"][name]


def test_a_name_that_no_model_can_have_is_refused(answers: dict) -> None:
    assert answers["found"]["no id"].startswith(
        "ConfigError: critic.path=a b/c: there is no folder a b/c here, and no model on the Hub"
    )


def test_a_model_of_the_hub_keeps_its_name(answers: dict) -> None:
    assert answers["found"]["org/there"] == "org/there"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("kept, unreachable", "org/kept: the Hub could not be reached"),
        ("org/kept-down", "org/kept-down: the Hub answered with status 503"),
        ("org/kept-gated", "org/kept-gated: its owners must grant access"),
        (
            "org/kept-private",
            "org/kept-private: the Hub has no such public model",
        ),
    ],
)
def test_without_the_hub_the_cached_copy_is_used_with_a_warning(
    answers: dict, name: str, reason: str
) -> None:
    folder = Path(answers["found"][name])
    assert reason in answers["errors"]
    assert folder.parts[-2:] == ("snapshots", COMMIT)
    assert folder.is_relative_to(answers["home"])
    assert f"so its copy in {folder} is used" in answers["errors"]


def test_every_question_is_asked_once(answers: dict) -> None:
    """huggingface_hub's own six tries, with waits of 1, 2, 4, 8 and 8 seconds, would fail this."""
    assert answers["asked"] == [
        "there",
        "none",
        "gated",
        "adapters",
        "down",
        "kept-down",
        "kept-gated",
        "kept-private",
        "silent",
    ]
    assert "Retrying" not in answers["errors"]
