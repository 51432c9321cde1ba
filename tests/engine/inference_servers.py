"""Real HTTP servers with the routes of an inference server, and answers that cannot be used."""

import contextlib
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import uvicorn
from inference_server import InferenceServer

from siirl.engine.rollout.server.server_engine import ServerEngine
from siirl.engine.rollout.server.server_link import ServerLink
from siirl.engine.rollout.server.weight_folder import FolderRoute
from siirl.models.chat import ChatTokenizer
from siirl.models.language_model import LanguageModel

Application = Callable[..., Awaitable[None]]


class Faults:
    """An application, some of whose paths other applications answer."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.instead: dict[str, Application] = {}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        application = self.instead.get(scope.get("path", ""), self.application)
        await application(scope, receive, send)


@contextlib.contextmanager
def serving(application: Application, *, port: int = 0) -> Iterator[str]:
    """The address of a server in a thread; connections end with it."""
    listener = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(
        uvicorn.Config(application, log_level="critical", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


class Playground:
    """A server whose model differs from the trained one, and faults of it."""

    def __init__(self, model: LanguageModel, tokenizer: ChatTokenizer) -> None:
        self.server = InferenceServer(model, tokenizer)
        self.faults = Faults(self.server.app())


def engine_of(
    url: str, *, model: LanguageModel, tokenizer: ChatTokenizer, **options: Any
) -> ServerEngine:
    """An engine that soon gives up a server that has gone."""
    deadlines = {"token": None, "deadline_s": 600.0, "reconnect_s": 0.2}
    link = ServerLink(url, **{name: options.pop(name, value) for name, value in deadlines.items()})
    return ServerEngine(
        **{
            "model": model,
            "tokenizer": tokenizer,
            "link": link,
            "temperature": 1.3,
            "route": FolderRoute(None),
            "restart_s": 0.2,
            **options,
        }
    )
