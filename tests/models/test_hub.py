"""The Hub is asked once, and each answer has a clear message: a local fake hub gives them all."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tiny_models import tiny_causal_lm

from tests.local_hub import local_hub

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


LOAD = """
import sys
from siirl.models.language_model import load_language_model

load_language_model("assets/tiny_lm")  # imports what a model needs
print("ready", flush=True)
for line in sys.stdin:
    try:
        print(load_language_model("me/model", weights=False).planned is not None, flush=True)
    except Exception as error:
        print(repr(error), flush=True)
"""


class Rank:
    """A process that may ask the Hub at `url`; the tests' own is offline."""

    def __init__(self, url: str, home: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOAD],
            env={**kept, "HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def load(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("load\n")
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def rank(url: str, home: Path) -> Iterator[Rank]:
    started = Rank(url, home)
    with started.process:
        try:
            assert started.line() == "ready"
            yield started
        finally:
            started.process.kill()


def test_ranks_wait_for_one_download_and_complete_an_interrupted_one(tmp_path: Path) -> None:
    """Both then plan the same files; before, one of them found a part of the model."""
    tiny_causal_lm("tied").save_pretrained(tmp_path / "model", max_shard_size="4KB")
    *_, last = sorted((tmp_path / "model").glob("model-*.safetensors"))
    asked, may_go = threading.Event(), threading.Event()

    def hold(path: str) -> None:
        if path.endswith(last.name):
            asked.set()
            assert may_go.wait(60)

    with local_hub(tmp_path / "hub") as hub, ExitStack() as ranks:
        hub.add_folder("models", "me/model", tmp_path / "model")
        hub.before_body = hold
        home = tmp_path / "home"
        first, second = (ranks.enter_context(rank(hub.url, home)) for _ in range(2))
        first.load()
        assert asked.wait(60)
        second.load()
        time.sleep(1)  # the second finds all files but one, or waits
        may_go.set()
        assert [first.line(), second.line()] == ["True", "True"]
        asked_for = f"GET /me/model/resolve/{hub.commit(hub.root / 'models/me/model')}/{last.name}"
        assert hub.asked.count(asked_for) == 1

        [snapshot] = (home / "hub" / "models--me--model" / "snapshots").iterdir()
        (snapshot / last.name).resolve().unlink()
        (snapshot / last.name).unlink()
        first.load()
        assert first.line() == "True"
