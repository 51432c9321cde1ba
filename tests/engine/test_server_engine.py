"""Text from an inference server over real HTTP: log-probs as training scores them, new weights
and their check, and servers that vanish, hang, lose their weights, or answer nonsense.
"""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from inference_servers import Playground, engine_of, serving
from knocking import knocked_at, ports
from starlette.responses import HTMLResponse, JSONResponse, Response
from tiny_language_models import END, language_model, request, scored, tokenizer
from tiny_policies import Trained, train

from siirl.engine.rollout.generation import GenerationRequest, GenerationResponse
from siirl.engine.rollout.server.completions import COMPLETIONS
from siirl.engine.rollout.server.server_engine import ServerEngine
from siirl.engine.rollout.server.weight_group import GroupRoute
from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.weight_sync import WeightSync
from siirl.errors import ConfigError, InvariantError, RunFailed, SimulationFailed

TEMPERATURE = 1.3
REQUESTS = [
    request(str(i), prompt, tokens=8)
    for i, prompt in enumerate(("1+2=", "what is 3 times 4?", "x"))
]


def model(seed: int = 0):
    return language_model("Qwen3", heads=2, head_dim=32, tie_word_embeddings=True, seed=seed)


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[Playground, str]]:
    playground = Playground(model(seed=1), tokenizer())
    with serving(playground.faults) as url:
        yield playground, url


@pytest.fixture
def playground(place: tuple[Playground, str]) -> Iterator[Playground]:
    yield place[0]
    place[0].faults.instead = {}


@pytest.fixture
def url(place: tuple[Playground, str]) -> str:
    return place[1]


@pytest.fixture
def engine(playground: Playground, url: str) -> Iterator[ServerEngine]:
    made = engine_of(url, model=model(), tokenizer=tokenizer())
    yield made
    made.close()


def ask(engine: ServerEngine, *requests: GenerationRequest) -> list[GenerationResponse]:
    async def everybody() -> list[GenerationResponse]:
        return await asyncio.gather(*(engine.agenerate(request) for request in requests))

    return asyncio.run(everybody())


def gap(engine: ServerEngine, *requests: GenerationRequest) -> float:
    """Largest difference between the server's log-probs and those of the trained module."""
    return max(
        float(
            np.abs(
                answer.log_probs
                - scored(
                    engine.model, asked.input_ids, answer.tokens, temperature=TEMPERATURE
                ).numpy()
            ).max()
        )
        for asked, answer in zip(requests, ask(engine, *requests), strict=True)
    )


def failure(engine: ServerEngine) -> str:
    """The sentence with which an episode fails."""
    with pytest.raises(SimulationFailed) as failed:
        ask(engine, REQUESTS[0])
    return str(failed.value)


def sync(engine: ServerEngine) -> None:
    WeightSync(
        trained=Trained(engine.model),  # type: ignore[arg-type]
        acting=engine,
        engine=engine,
        ranks=OneProcess(),
    ).sync()


# Generation


def test_log_probs_are_those_of_training_under_the_temperature(engine: ServerEngine) -> None:
    assert gap(engine, *REQUESTS) < 1e-5
    assert gap(engine, request("a", "1+2=", tokens=8, greedy=True)) < 1e-5


def test_a_seed_determines_an_answer(engine: ServerEngine) -> None:
    first, second, again = ask(
        engine, *(request("a", "x", tokens=20, seed=seed) for seed in ((1,), (2,), (1,)))
    )
    assert first.tokens.tolist() == again.tokens.tolist() != second.tokens.tolist()


def test_a_limit_a_stop_token_and_a_stop_string_end_a_continuation(engine: ServerEngine) -> None:
    asked = [request(str(i), "1+2=", tokens=12, seed=(i,)) for i in range(20)]
    for answer in ask(engine, *asked):
        stopped = answer.tokens[-1] == END
        assert answer.finish_reason == ("stop" if stopped else "length")
        assert stopped or len(answer.tokens) == 12
    free = next(answer for answer in ask(engine, *asked) if answer.finish_reason == "length")
    string = tokenizer().decode([next(t for t in free.tokens.tolist() if 32 < t < 127)])
    stops = [request(str(i), "1+2=", tokens=12, seed=(i,), stop=(string,)) for i in range(20)]
    for answer in ask(engine, *stops):
        text = tokenizer().decode(answer.tokens.tolist())
        assert string not in text[:-1]


def test_a_request_longer_than_the_server_takes_is_refused(engine: ServerEngine) -> None:
    with pytest.raises(ConfigError, match="ends at 128"):
        ask(engine, request("a", "x" * 100, tokens=29))


def test_an_interruption_returns_the_tokens_so_far(
    engine: ServerEngine, playground: Playground
) -> None:
    async def scenario() -> GenerationResponse:
        running = asyncio.create_task(engine.agenerate(LONG))
        while playground.server.engine.counts.tokens < before + 3:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(engine.interrupt)
        return await running

    before = playground.server.engine.counts.tokens
    partial = asyncio.run(scenario())
    assert partial.finish_reason == "abort"
    assert 3 <= len(partial.tokens) == len(partial.log_probs) < LONG.max_new_tokens


def test_a_cancelled_episode_frees_its_place_at_the_server(
    engine: ServerEngine, playground: Playground
) -> None:
    async def scenario() -> None:
        running = asyncio.create_task(engine.agenerate(LONG))
        while not playground.server.engine.rows.count:
            await asyncio.sleep(0.001)
        running.cancel()
        while playground.server.engine.rows.count:
            await asyncio.sleep(0.001)

    asyncio.run(scenario())
    assert not engine.running


def test_statistics_count_requests_and_tokens(engine: ServerEngine) -> None:
    engine.take_stats()
    answers = ask(engine, *REQUESTS)
    stats = engine.take_stats()
    assert stats["calls"] == 3
    assert stats["tokens"] == sum(len(answer.tokens) for answer in answers)
    assert stats["busy_s"] > 0


# Weights


def test_new_weights_act_and_their_log_probs_are_verified(engine: ServerEngine) -> None:
    train(engine.model, seed=1)
    assert gap(engine, *REQUESTS) > 0.01
    sync(engine)
    assert gap(engine, *REQUESTS) < 1e-5
    assert set(ask(engine, REQUESTS[0])[0].versions.tolist()) == {Trained.steps}


def test_buckets_smaller_than_the_weights_transfer_all_of_them(
    playground: Playground, url: str
) -> None:
    engine = engine_of(url, model=model(), tokenizer=tokenizer(), bucket_bytes=1000)
    try:
        train(engine.model, seed=2)
        sync(engine)
        assert gap(engine, *REQUESTS) < 1e-5
        assert not list(engine.route.folder.iterdir())
    finally:
        engine.close()


def test_weights_go_by_a_collective(playground: Playground, url: str) -> None:
    route = GroupRoute(timeout_s=600.0)
    engine = engine_of(url, model=model(), tokenizer=tokenizer(), route=route, bucket_bytes=1000)
    try:
        assert gap(engine, *REQUESTS) < 1e-5
        train(engine.model, seed=4)
        sync(engine)
        assert gap(engine, *REQUESTS) < 1e-5
    finally:
        engine.close()


@pytest.mark.slow  # an attempt at a deaf port times out: three seconds
def test_ports_of_the_collective_are_on_one_address_and_accept_no_one_else(
    engine: ServerEngine,
) -> None:
    before = ports(psutil.Process())
    with GroupRoute(timeout_s=600.0).open(engine.link):
        assert knocked_at(ports(psutil.Process()) - before) == {("127.0.0.1", False)}


def test_a_server_that_does_not_join_the_collective_is_reported(
    engine: ServerEngine, playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(host: str, port: str, ranks: str) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(playground.server.worker, "siirl_join_group", refused)
    monkeypatch.setattr("siirl.engine.rollout.server.weight_group.JOIN_WITHIN_S", 0.3)
    engine.route = GroupRoute(timeout_s=0.3)
    sync(engine)
    sentence = failure(engine)
    assert "no route to host" in sentence
    assert "or set weights=folder" in sentence


def test_a_worker_that_fails_ends_the_collective_at_once(
    engine: ServerEngine, playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(size: str, packed: str) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(playground.server.worker, "siirl_take_broadcast", full)
    engine.route = GroupRoute(timeout_s=1000.0)
    sync(engine)
    assert "out of memory" in failure(engine)


def test_a_server_that_did_not_take_weights_acts_again_after_the_next_sync(
    engine: ServerEngine, playground: Playground
) -> None:
    seen = []

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in engine.model.state_dict().items():
            seen.append(name)
            yield name, weight

    broken = JSONResponse({"error": {"message": "out of memory"}}, status_code=500)
    playground.faults.instead = {"/pause": broken}
    assert engine.take_weights(weights()) is None
    assert seen == list(engine.model.state_dict())  # the other ranks gather them
    assert "out of memory" in failure(engine)
    engine.rest()
    assert "out of memory" in failure(engine)  # also in the next rollout
    playground.faults.instead = {}
    sync(engine)
    assert gap(engine, *REQUESTS) < 1e-5


class OtherRankRefused(OneProcess):
    """Two ranks, the second of which has a server that did not take weights."""

    def gather_objects(self, value: Any) -> list[Any]:
        return [value, value if isinstance(value, bool) else None]


def test_a_rank_whose_server_did_not_take_weights_does_not_stop_the_others(
    engine: ServerEngine,
) -> None:
    train(engine.model, seed=6)
    weights = WeightSync(
        trained=Trained(engine.model),  # type: ignore[arg-type]
        acting=engine,
        engine=engine,
        ranks=OtherRankRefused(),
    )
    weights.sync()
    assert weights.version == Trained.steps
    assert gap(engine, *REQUESTS) < 1e-5


def test_a_sync_waits_for_a_server_that_is_being_restarted() -> None:
    playground = Playground(model(), tokenizer())
    with serving(playground.faults) as url:
        engine = engine_of(url, model=model(), tokenizer=tokenizer(), restart_s=60.0)
    with ThreadPoolExecutor() as pool:
        syncing = pool.submit(sync, engine)
        with serving(playground.faults, port=int(url.rpartition(":")[2])):
            syncing.result()
            assert gap(engine, *REQUESTS) < 1e-5
            engine.close()


def test_weights_that_arrive_without_effect_are_reported(
    engine: ServerEngine, playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = playground.server.worker
    other = model(seed=9)
    monkeypatch.setattr(worker, "model", other)  # takes the weights; the engine has another
    monkeypatch.setattr(playground.server, "_scored", _scores_of_another_model)
    train(engine.model, seed=3)
    with pytest.raises(InvariantError, match="acting weights are not the trained ones"):
        sync(engine)


def _scores_of_another_model(ids: list[int]) -> dict[str, Any]:
    log_probs = [None, *[-3.0] * (len(ids) - 1)]
    return {"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": log_probs}}]}


def test_a_bit_that_changes_on_the_way_is_noticed(
    engine: ServerEngine, playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = playground.server.worker
    monkeypatch.setattr(worker, "siirl_finish_weights", lambda: worker.digest.value ^ 1)
    with pytest.raises(InvariantError, match="acting weights are not the trained ones"):
        sync(engine)


def test_a_server_that_cannot_read_the_folder_is_reported(
    engine: ServerEngine, playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(file: str, packed: str) -> None:
        raise FileNotFoundError(f"No such file: {file}")

    monkeypatch.setattr(playground.server.worker, "siirl_take_file", elsewhere)
    sync(engine)
    sentence = failure(engine)
    assert "No such file" in sentence
    assert "must mount the folder at the same path" in sentence


def test_a_full_disk_is_reported_with_the_remedies(playground: Playground, url: str) -> None:
    engine = engine_of(url, model=model(), tokenizer=tokenizer())
    try:
        engine.route.folder = engine.route.folder / "missing"
        sync(engine)
        assert "update_weights_bucket_megabytes" in failure(engine)
    finally:
        engine.close()


def test_a_restarted_server_fails_its_episodes_and_trains_nothing(
    engine: ServerEngine, playground: Playground
) -> None:
    sync(engine)
    ask(engine, REQUESTS[0])
    playground.server.worker.label = ""  # what a new process has
    playground.server.worker.siirl_set_temperature("1.0")
    playground.server.engine = playground.server._engine()
    with pytest.raises(InvariantError, match="Nothing was trained on this rollout"):
        engine.rest()
    engine = engine_again(engine)
    assert "it was restarted, or another run uses it" in failure(engine)
    assert "it was restarted" in failure(engine)
    engine.rest()
    sync(engine)
    assert gap(engine, *REQUESTS) < 1e-5


def engine_again(engine: ServerEngine) -> ServerEngine:
    """The engine at the beginning of its next rollout."""
    engine._verification = None
    return engine


def test_a_second_run_at_the_same_server_is_noticed(engine: ServerEngine, url: str) -> None:
    ask(engine, REQUESTS[0])
    other = engine_of(url, model=model(seed=5), tokenizer=tokenizer())
    other.close()
    with pytest.raises(InvariantError, match="another run uses it"):
        engine.rest()


# Answers that cannot be used

LONG = request("long", "x", tokens=120, seed=(3,))


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
    "fewer log-probs": (answer([49, 50], [-1.0]), "it has 2 tokens and 1 log-probs"),
    "no log-probs": (answer([49], None), r"it lacks `logprobs\.token_logprobs`"),
    "another model": (answer([4900], [-1.0]), "token 0 is 4900, .* has another model"),
    "an older vLLM": (answer(None, [-1.0]), "it lacks `token_ids`"),
    "no tokens": (answer([], []), "it has no token"),
    "too many tokens": (answer([49] * 9, [-1.0] * 9, "length"), "it has 9 tokens, and at most 8"),
    "a shorter limit": (answer([49], [-1.0], "length"), "cut after 1 of 8 tokens"),
    "another reason": (answer([49], [-1.0], "error"), "finish_reason='error' is not one of"),
    "another form": (JSONResponse({"text": "4"}), "it lacks `choices`"),
    "a list": (JSONResponse([]), "it lacks `choices`"),
    "a web page": (HTMLResponse("<html>"), "it is not JSON"),
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


# Servers that are refused at the start


def started(url: str, **options: Any) -> None:
    engine_of(url, model=model(), tokenizer=tokenizer(), **options).close()


@pytest.mark.parametrize(
    ("path", "instead", "expected"),
    [
        ("/v1/models", Response(status_code=404), "VLLM_SERVER_DEV_MODE=1"),
        ("/v1/models", Response(status_code=401), r"HTTP 401: name the file .*token_file"),
        ("/v1/models", HTMLResponse("<html>"), "invalid JSON"),
        ("/v1/models", JSONResponse({"data": []}), "lists no model"),
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
            r"has siirl 9\.0 \(protocol 7\), and this run has protocol 2: install the same",
        ),
        (
            "/collective_rpc",
            JSONResponse({"results": [{"protocol": 2, "dtype": "bfloat16"}]}),
            "computes in bfloat16, and the run in float32: start it with --dtype float32",
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


def test_a_server_for_shorter_texts_is_refused(url: str) -> None:
    with pytest.raises(RunFailed, match=r"ends at 128 tokens.*--max-model-len 300"):
        started(url, longest_text=300)


def test_the_key_of_a_server_is_sent(playground: Playground, url: str) -> None:
    seen = []

    async def look(scope: Any, receive: Any, send: Any) -> None:
        seen.append(dict(scope["headers"]))
        await playground.faults.application(scope, receive, send)

    playground.faults.instead = {"/v1/models": look}
    started(url, token="my-key")
    assert seen[0][b"authorization"] == b"Bearer my-key"
