"""Inference servers that answer nonsense, hang, vanish, or cannot serve the run."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from inference_servers import Playground, engine_of, serving
from server_episodes import LONG, REQUESTS, ask, failure, gap, model, sync
from starlette.responses import HTMLResponse, JSONResponse, Response
from tiny_language_models import END, request, tokenizer

from siirl.engine.rollout.generation import GenerationResponse
from siirl.engine.rollout.server.completions import COMPLETIONS
from siirl.engine.rollout.server.handshake import PROTOCOL, shake_hands
from siirl.engine.rollout.server.server_engine import ServerEngine
from siirl.engine.rollout.server.server_link import ServerLink
from siirl.engine.rollout.server.weight_folder import FolderRoute
from siirl.engine.rollout.text_workflow import TextWorkflow
from siirl.engine.rollout.workflow import EpisodeRequest
from siirl.env_server.pool import EnvPool
from siirl.errors import RunFailed, SimulationFailed


def answer(tokens: Any, log_probs: Any, reason: str = "stop", **more: Any) -> Response:
    choice = {
        "token_ids": tokens,
        "logprobs": {"token_logprobs": log_probs},
        "finish_reason": reason,
        **more,
    }
    return Response(json.dumps({"choices": [choice]}), media_type="application/json")


BAD = {
    "NaN": (answer([49, 50], [-1.0, float("nan")]), "the log-prob of token 1 is nan"),
    "null": (answer([49], [None]), "the log-prob of token 0 is None"),
    "vLLM's floor": (answer([49], [-9999.0]), "the log-prob of token 0 is -9999.0"),
    "above 0": (answer([49], [0.5]), "the log-prob of token 0 is 0.5"),
    "text": (answer([49], ["-1"]), "the log-prob of token 0 is '-1'"),
    "fewer log-probs": (answer([49, 50], [-1.0]), "it has 2 tokens but 1 log-probs"),
    "no log-probs": (answer([49], None), r"it lacks `logprobs\.token_logprobs`"),
    "another model": (answer([4900], [-1.0]), "token 0 is 4900, .* has another model"),
    "an older vLLM": (answer(None, [-1.0]), "it lacks `token_ids`"),
    "no tokens": (answer([], []), "it has no token"),
    "too many tokens": (answer([49] * 9, [-1.0] * 9, "length"), "it has 9 tokens, but at most 8"),
    "a shorter limit": (answer([49], [-1.0], "length"), "cut after 1 of 8 tokens"),
    "one token early": (answer([49] * 7, [-1.0] * 7, "length"), "cut after 7 of 8 tokens"),
    "another reason": (answer([49], [-1.0], "error"), "finish_reason='error' is not one of"),
    "an end without a reason": (
        answer([49, 50], [-1.0] * 2),
        "finish_reason='stop', but ends with neither an end token nor a stop string",
    ),
    "tokens behind the end": (
        answer([49, END, 50, END], [-1.0] * 4),
        f"2 tokens follow its end token {END}: the server does not apply `stop_token_ids`",
    ),
    "tokens behind the end, up to the limit": (
        answer([END] + [49] * 7, [-1.0] * 8, "length"),
        "7 tokens follow its end token",
    ),
    "aborted at once": (answer([], [], "abort"), "it was aborted, but not by this run"),
    "aborted later": (answer([49], [-1.0], "abort"), "it was aborted, but not by this run"),
    "another form": (JSONResponse({"text": "4"}), "it lacks `choices`"),
    "a list": (JSONResponse([]), "it lacks `choices`"),
    "a web page": (HTMLResponse("<html>"), "it is not JSON"),
    "a deep one": (Response(b"[" * 60_000), "it is not JSON"),
    "a deep error": (Response(b"[" * 60_000, status_code=500), "HTTP 500"),
    "an error": (
        JSONResponse({"error": {"message": "out of memory"}}, status_code=500),
        r"HTTP 500 \(out of memory\): see its log",
    ),
    "a redirect": (Response(status_code=307, headers={"location": "http://x"}), "HTTP 307"),
    "a huge one": (Response(b" " * (1 << 20)), "more than .* KiB, more than any answer"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_unusable_answer_fails_its_episode_only(
    engine: ServerEngine, playground: Playground, name: str
) -> None:
    bad, expected = BAD[name]
    playground.faults.instead = {COMPLETIONS: bad}
    with pytest.raises(SimulationFailed, match=expected) as failed:
        ask(engine, REQUESTS[0])
    assert engine.link.url in str(failed.value)
    assert "\n" not in str(failed.value)
    playground.faults.instead = {}
    assert gap(engine, *REQUESTS) < 1e-5  # the server is not given up


def test_an_end_token_at_the_limit_is_an_end(engine: ServerEngine, playground: Playground) -> None:
    ended = answer([49] * 7 + [END], [-1.0] * 8, "length")
    playground.faults.instead = {COMPLETIONS: ended}
    assert ask(engine, REQUESTS[0])[0].finish_reason == "stop"


TAG = "</answer>"


@pytest.mark.parametrize(
    ("text", "reason", "refusal"),
    [
        (f"7{TAG}", "stop", None),
        (f"7{TAG}.", "stop", None),  # in a tokenizer with longer tokens, the last one's end
        (f"7{TAG[:-1]}", "stop", "ends with neither an end token nor a stop string"),
        (f"{TAG} and so on and on", "length", f"its text goes on after '{TAG}'"),
        (f"{TAG} and so on and on", "stop", f"its text goes on after '{TAG}'"),
    ],
)
def test_a_stop_string_must_be_where_the_text_ends(
    engine: ServerEngine, playground: Playground, text: str, reason: str, refusal: str | None
) -> None:
    tokens = list(text.encode())
    asked = request("a", "x", tokens=len(tokens), stop=(TAG,))
    playground.faults.instead = {COMPLETIONS: answer(tokens, [-1.0] * len(tokens), reason)}
    if refusal is None:
        assert ask(engine, asked)[0].tokens.tolist() == tokens
        return
    with pytest.raises(SimulationFailed, match=refusal):
        ask(engine, asked)


def test_an_abort_after_the_runs_own_interruption_is_refused(
    engine: ServerEngine, playground: Playground
) -> None:
    """An interruption excuses the requests that run meanwhile, and no later ones."""

    async def interrupted() -> GenerationResponse:
        running = asyncio.create_task(engine.agenerate(LONG))
        while not playground.server.engine.rows.count:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(engine.interrupt)
        return await running

    assert asyncio.run(interrupted()).finish_reason == "abort"
    playground.faults.instead = {COMPLETIONS: answer([], [], "abort")}
    assert "it was aborted, but not by this run" in failure(engine)


def test_a_server_that_aborts_every_request_ends_the_episode_instead_of_being_asked_forever(
    engine: ServerEngine, playground: Playground
) -> None:
    asked = []

    async def abort(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        await answer([], [], "abort")(scope, receive, send)

    playground.faults.instead = {COMPLETIONS: abort}

    async def episode() -> None:
        async with EnvPool("math", {"tasks": ["sums-1"]}, 1, 1, cluster="local") as pool:
            workflow = TextWorkflow(
                pool=pool, tokenizer=tokenizer(), max_prompt_length=60, max_response_length=20
            )
            data = EpisodeRequest(
                uid="u", group_id=0, task="sums-1", task_id=0, trial_id=0, seed=0, policy_seed=(1,)
            )
            async with asyncio.timeout(30.0):
                await workflow.arun_episode(engine, data)

    with pytest.raises(SimulationFailed, match="aborted, but not by this run"):
        asyncio.run(episode())
    assert len(asked) == 1


async def never(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await receive()  # until the client has gone


def test_a_hung_server_is_skipped_until_the_next_rollout(playground: Playground, url: str) -> None:
    engine = engine_of(url, model=model(), tokenizer=tokenizer())
    try:
        engine.link.deadline_s = 0.2
        playground.faults.instead = {COMPLETIONS: never}
        assert "did not answer /v1/completions within 0.2 s: raise" in failure(engine)
        engine.link.deadline_s = 1e9
        assert "within 0.2 s" in failure(engine)  # at once
        playground.faults.instead = {}
        engine.rest()
        engine.link.deadline_s = 600.0
        assert gap(engine, *REQUESTS) < 1e-5
    finally:
        engine.close()


def test_a_server_that_disappears_fails_the_episodes_of_the_rollout() -> None:
    playground = Playground(model(), tokenizer())
    with serving(playground.faults) as url:
        engine = engine_of(url, model=model(), tokenizer=tokenizer())
        ask(engine, REQUESTS[0])
    try:
        assert f"No inference server answers at {url}" in failure(engine)
        engine.link.reconnect_s = 1e9
        assert "No inference server answers" in failure(engine)  # at once
        engine.rest()
        engine.link.reconnect_s = 0.2
        with serving(playground.faults, port=int(url.rpartition(":")[2])):
            assert gap(engine, *REQUESTS) < 1e-5  # the same process, with its weights
        sync(engine)
        engine.rest()
        assert "No inference server answers" in failure(engine)  # until it takes weights
    finally:
        engine.close()


def test_a_broken_connection_is_retried() -> None:
    playground = Playground(model(), tokenizer())
    with serving(playground.faults) as url:
        engine = engine_of(url, model=model(), tokenizer=tokenizer(), reconnect_s=60.0)
        before = ask(engine, *REQUESTS)
    port = int(url.rpartition(":")[2])

    async def scenario() -> list[GenerationResponse]:
        asked = asyncio.gather(*(engine.agenerate(request) for request in REQUESTS))
        await asyncio.sleep(0.1)
        with serving(playground.faults, port=port):  # the same workers, with their weights
            return await asked

    try:
        after = asyncio.run(scenario())
        assert [a.tokens.tolist() for a in after] == [b.tokens.tolist() for b in before]
    finally:
        engine.close()


class Busy:
    """Refuses the first `count` requests, and then lets `application` answer."""

    def __init__(self, application: Any, *, status: int, count: float, **headers: str) -> None:
        self.application, self.left = application, count
        self.refusal = JSONResponse(
            {"error": {"message": "try later"}}, status_code=status, headers=headers
        )
        self.asked_at: list[float] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked_at.append(time.monotonic())
        self.left -= 1
        await (self.refusal if self.left >= 0 else self.application)(scope, receive, send)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again(
    engine: ServerEngine, playground: Playground, status: int
) -> None:
    before = ask(engine, *REQUESTS)
    engine.link.reconnect_s = 60.0
    busy = Busy(playground.faults.application, status=status, count=4)
    playground.faults.instead = {COMPLETIONS: busy}
    after = ask(engine, *REQUESTS)
    assert [a.tokens.tolist() for a in after] == [b.tokens.tolist() for b in before]
    assert len(busy.asked_at) == 4 + len(REQUESTS)


def test_a_busy_server_is_asked_when_it_says(engine: ServerEngine, playground: Playground) -> None:
    engine.link.reconnect_s = 60.0
    busy = Busy(playground.faults.application, status=503, count=1, **{"Retry-After": "1"})
    playground.faults.instead = {COMPLETIONS: busy}
    ask(engine, REQUESTS[0])
    first, second = busy.asked_at
    assert second - first >= 1.0


@pytest.mark.parametrize("wait", ["3600", "9" * 5000, "-1", "Wed, 21 Oct 2026 07:28:00 GMT", ""])
def test_a_server_that_stays_busy_fails_the_episodes_of_the_rollout(
    engine: ServerEngine, playground: Playground, wait: str
) -> None:
    busy = Busy(None, status=503, count=float("inf"), **{"Retry-After": wait})
    playground.faults.instead = {COMPLETIONS: busy}
    expected = "HTTP 503 (try later): it stays busy; lower env.envs_per_server"
    assert expected in failure(engine)
    asked = len(busy.asked_at)
    assert expected in failure(engine)
    assert len(busy.asked_at) == asked  # at once


# Servers that are refused at the start


def started(url: str, **options: Any) -> None:
    engine_of(url, model=model(), tokenizer=tokenizer(), **options).close()


@pytest.mark.parametrize(
    ("path", "instead", "expected"),
    [
        ("/v1/models", Response(status_code=404), "VLLM_SERVER_DEV_MODE=1"),
        ("/v1/models", Response(status_code=401), r"HTTP 401: name the file .*token_file"),
        ("/v1/models", HTMLResponse("<html>"), "invalid JSON"),
        ("/v1/models", Response(b"[" * 60_000), "invalid JSON"),
        ("/v1/models", JSONResponse({"data": []}), "lists no model"),
        (
            "/v1/models",
            Response(b'{"data": [{"id": "gpt", "max_model_len": Infinity}]}'),
            "lists no model",
        ),
        ("/v1/models", JSONResponse({"data": [{"id": "gpt"}]}), "lists no model"),
        ("/collective_rpc", Response(status_code=404), "VLLM_SERVER_DEV_MODE=1 and siirl's"),
        (
            "/collective_rpc",
            JSONResponse({"error": {"message": "no attribute"}}, status_code=500),
            "HTTP 500 no attribute.*worker-extension-cls",
        ),
        ("/collective_rpc", JSONResponse({}), "without results"),
        ("/collective_rpc", JSONResponse({"results": ["1"]}), "runs another version of siirl"),
        (
            "/collective_rpc",
            JSONResponse({"results": [{"protocol": 7, "siirl": "9.0"}]}),
            r"has siirl 9\.0 \(protocol 7\), but this run has protocol 2: install the same",
        ),
        (
            "/collective_rpc",
            JSONResponse({"results": [{"protocol": 2, "dtype": "bfloat16"}]}),
            "computes in bfloat16, but the run computes in float32: start it with --dtype float32",
        ),
    ],
)
def test_a_server_that_cannot_serve_the_run_is_refused_with_the_remedy(
    playground: Playground, url: str, path: str, instead: Response, expected: str
) -> None:
    playground.faults.instead = {path: instead}
    with pytest.raises(RunFailed, match=expected) as refused:
        started(url)
    assert "\n" not in str(refused.value)


def test_the_protocol_of_the_workers_decides_and_not_the_version_of_siirl(
    playground: Playground, url: str
) -> None:
    described = {"protocol": PROTOCOL, "siirl": "0.0.1", "dtype": "float32", "label": ""}
    playground.faults.instead = {"/collective_rpc": JSONResponse({"results": [described]})}
    link = ServerLink(url, token=None, deadline_s=20.0, reconnect_s=0.0)
    try:
        served = link.wait(shake_hands(link, dtype="float32", longest_text=None))
    finally:
        link.close()
    assert served.longest == 128


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the policy
def test_a_connection_that_closes_at_once_is_tried_again_where_uvloop_is_installed(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop comes with vLLM (make vllm)")
    connect = anyio.connect_tcp
    closed: list[Any] = []

    async def connect_once_in_vain(*arguments: Any, **options: Any) -> Any:
        stream = await connect(*arguments, **options)
        if not closed:
            closed.append(stream)
            stream._transport.abort()
            await asyncio.sleep(0.05)
        return stream

    monkeypatch.setattr(anyio, "connect_tcp", connect_once_in_vain)
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # as Ray's workers do
    try:
        link = ServerLink(url, token=None, deadline_s=20.0)
        try:
            assert link.wait(link.get("/v1/models"))["data"]
        finally:
            link.close()
    finally:
        asyncio.set_event_loop_policy(None)
    assert closed


def test_the_page_names_the_protocol_that_is_compared() -> None:
    page = Path(__file__).parents[3] / "docs" / "inference_server.md"
    assert f"in a version whose workers have protocol {PROTOCOL}," in page.read_text()


def test_a_server_for_shorter_texts_is_refused(url: str) -> None:
    with pytest.raises(RunFailed, match=r"is limited to 128 tokens.*--max-model-len 300"):
        started(url, longest_text=300)


def test_a_refused_server_leaves_no_folder_of_weights(url: str) -> None:
    route = FolderRoute(None)
    with pytest.raises(RunFailed):
        started(url, longest_text=300, route=route)
    assert not route.folder.exists()


def test_the_key_of_a_server_is_sent(playground: Playground, url: str) -> None:
    seen = []

    async def look(scope: Any, receive: Any, send: Any) -> None:
        seen.append(dict(scope["headers"]))
        await playground.faults.application(scope, receive, send)

    playground.faults.instead = {"/v1/models": look}
    started(url, token="my-key")
    assert seen[0][b"authorization"] == b"Bearer my-key"
