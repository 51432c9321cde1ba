"""Reads an OpenEnv server's description of its environment once: the action schema, the
environment's name, and the spec if the server is `siirl serve`.

The environment's constructor reads it, so that a job without its server is refused before any
process starts. Redirects are not followed, because they would send the token elsewhere.
"""

import functools
import http.client
import json
import threading
import urllib.error
import urllib.request
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from envs.base import EnvSpec, ServerAway
from envs.mistakes import one_line
from envs.names import LONGEST
from envs.openenv.session import REFUSED_STATUS
from envs.openenv.wire import SPEC, spec_from_json
from envs.server_address import authorization, is_loopback
from envs.text import shortened

MAX_BYTES = 8 << 20
NOT_FOUND = 404
NOT_READY = 500  # and above: a proxy whose server restarts
OF_PROXY = (502, 503, 504)
SCHEMA, METADATA = "/schema", "/metadata"
UNNAMED = "openenv"


@dataclass(frozen=True)
class Description:
    """A server's environment."""

    action_schema: dict[str, Any] | None
    """JSON schema of an action; None if the server publishes none."""
    observation_fields: tuple[str, ...]
    """Fields of an observation; empty if the server publishes no schema, or one that permits
    others."""
    spec: EnvSpec | None
    """The spec of a siirl environment; None for others."""
    name: str = UNNAMED
    """The environment's name, which does not change with the address; `UNNAMED` if the server
    reports none of at most `envs.names.LONGEST` printable characters."""


@functools.lru_cache
def describe(url: str, *, token: str | None, deadline_s: float) -> Description:
    """Read the description from the server at `url`, once per process.

    Raises:
        ServerAway: No server within `deadline_s`, a refused token, or an answer that violates
            OpenEnv's protocol. Only the absence of a server may pass.
    """
    fetch = functools.partial(_fetch, url, token=token, deadline_s=deadline_s)
    document = fetch(SCHEMA)
    if document is None:
        return Description(
            action_schema=None, observation_fields=(), spec=None, name=_name_in(fetch(METADATA))
        )
    try:
        schemas = json.loads(document)
        action = schemas["action"]
        properties = action.get("properties", {})
        if not isinstance(properties, dict):
            raise TypeError(f"properties are {shortened(properties)}")
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ServerAway(
            f"{url} is not an OpenEnv server: {url}{SCHEMA} has no schema of actions "
            f"({shortened(document[:80])})."
        ) from error
    fields = _fields_in(schemas.get("observation"))
    if SPEC not in action:
        return Description(
            action_schema=action,
            observation_fields=fields,
            spec=None,
            name=_name_in(fetch(METADATA)),
        )
    try:
        return Description(
            action_schema=action, observation_fields=fields, spec=spec_from_json(action[SPEC])
        )
    except ValueError as error:
        raise ServerAway(
            f"The server at {url} runs another version of siirl: {error}. Use the same version on "
            "both sides."
        ) from error


def _fields_in(observation: Any) -> tuple[str, ...]:
    """The properties of a schema that permits no others, as openenv-core's do."""
    match observation:
        case {"properties": dict(properties), "additionalProperties": False}:
            return tuple(properties)
    return ()


def _name_in(metadata: bytes | None) -> str:
    try:
        name = json.loads(metadata or b"")["name"].strip()
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return UNNAMED
    return name if 0 < len(name) <= LONGEST and name.isprintable() else UNNAMED


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _fetch(url: str, route: str, *, token: str | None, deadline_s: float) -> bytes | None:
    """The document at `route`, or None.

    The request has a thread of its own, because the deadline of `urllib` is for one read: a server
    that sends a byte now and then would hold the command forever.
    """
    request: Future[bytes | None] = Future()
    thread = threading.Thread(
        target=_answer,
        args=(request, url, route, token, deadline_s),
        name="openenv-description",
        daemon=True,
    )
    thread.start()
    try:
        return request.result(timeout=deadline_s)
    except TimeoutError as error:
        raise ServerAway(
            f"The server at env.url={url} did not send {route} within {deadline_s:g} s "
            "(env.kwargs.connect_deadline_s): correct the address, or allow more.",
            patience_s=deadline_s,
        ) from error


def _answer(
    request: "Future[bytes | None]", url: str, route: str, token: str | None, deadline_s: float
) -> None:
    try:
        request.set_result(_request(url, route, token=token, deadline_s=deadline_s))
    except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
        request.set_exception(error)


def _request(url: str, route: str, *, token: str | None, deadline_s: float) -> bytes | None:
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if is_loopback(url):
        handlers.append(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url + route, headers=authorization(token))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=deadline_s) as response:
            document: bytes = response.read(MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()  # otherwise its connection stays open as long as the exception is kept
        if error.code == NOT_FOUND or (route == METADATA and error.code not in OF_PROXY):
            return None  # a name is optional
        if error.code in REFUSED_STATUS:
            raise ServerAway(
                f"The server at {url} refuses the token (status {error.code}): set "
                "env.kwargs.token_file to a file with the right one."
            ) from error
        raise ServerAway(
            f"{url} is not an OpenEnv server: {url}{route} answers with status {error.code}.",
            patience_s=deadline_s if error.code >= NOT_READY else 0.0,
        ) from error
    except (OSError, http.client.HTTPException) as error:
        if route != SCHEMA:  # which this server has answered
            raise ServerAway(
                f"The server at env.url={url} does not answer {url}{route} ({one_line(error)}): "
                "let it send its name there, or status 404.",
                patience_s=deadline_s,
            ) from error
        raise ServerAway(
            f"No OpenEnv server can be reached at env.url={url} ({one_line(error)}): start it "
            "first, or correct the address.",
            patience_s=deadline_s,
        ) from error
    if len(document) > MAX_BYTES:
        raise ServerAway(f"{url}{route} has more than {MAX_BYTES >> 20} MiB.")
    return document
