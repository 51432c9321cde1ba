"""Text from an inference server over real HTTP: log-probs, ends of a continuation, interruption."""

import asyncio

import pytest
from inference_servers import Playground
from server_episodes import LONG, REQUESTS, ask, gap
from tiny_language_models import END, request, tokenizer

from siirl.engine.rollout.generation import GenerationResponse
from siirl.engine.rollout.server.server_engine import ServerEngine
from siirl.errors import ConfigError


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
    with pytest.raises(ConfigError, match="limit is 128"):
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
