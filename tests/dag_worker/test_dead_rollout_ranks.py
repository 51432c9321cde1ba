"""Calls that a dead process of a rollout rank left behind do not affect its replacement."""

import asyncio
from collections.abc import Iterable

import pytest

from siirl.dag_worker.separate.edge import PROMPT, Edge
from siirl.dag_worker.separate.exchange import Exchange
from siirl.dag_worker.separate.exchange_messages import (
    EvaluationRequest,
    Report,
    RolloutProcess,
    Weights,
    Work,
)
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.engine.rollout.ledger import Prompt, RolloutLedger

ALL = {0: 4}


async def opened(*, streaming: bool, ranks: int = 1) -> Exchange:
    ledger = RolloutLedger(batch=2, max_staleness=1, ranks=ranks, streaming=streaming)
    exchange = Exchange({0: Edge(ledger=ledger, node="get")})
    await exchange.publish(0, Weights(step=0, version=0, buckets=(), checksum=0))
    await exchange.open(0, 0, 0, None, [], [])
    await exchange.step_done(0)
    return exchange


async def all_prompts(exchange: Exchange, process: RolloutProcess) -> dict[int, Prompt]:
    """The prompts that a process gets until there is no more work, by number."""
    got: dict[int, Prompt] = {}
    while (work := await exchange.work(process, ALL, 0)) != Work():
        got |= {prompt.number: prompt for prompt in work.prompts[0]}
    return got


def rows_of(prompts: Iterable[Prompt], ref: str) -> list[tuple[Prompt, SampleInfo, str, int]]:
    """Entries of `Exchange.put`: rows that are at `ref`."""
    return [
        (prompt, SampleInfo(sum_tokens=1, dict_info={PROMPT: prompt.number}), ref, 0)
        for prompt in prompts
    ]


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("when", ["waits at its death", "arrives later"])
def test_a_call_of_a_dead_process_takes_no_prompt_from_its_replacement(
    streaming: bool, when: str
) -> None:
    async def scenario() -> None:
        exchange = await opened(streaming=streaming)
        process = await exchange.join(0)
        prompts = await all_prompts(exchange, process)
        if when == "waits at its death":
            left = asyncio.create_task(exchange.work(process, ALL, 0))
            await asyncio.sleep(0)
        await exchange.rank_died(0)
        if when == "arrives later":
            left = asyncio.create_task(exchange.work(process, ALL, 0))
        assert await left == Work()
        replacement = await exchange.join(0)
        assert await all_prompts(exchange, replacement) == prompts
        assert prompts.keys() == {0, 1, 2, 3}

    asyncio.run(scenario())


def test_a_rank_that_dies_is_ready_again_when_its_replacement_has_started() -> None:
    async def scenario() -> None:
        exchange = await opened(streaming=True)
        process = await exchange.join(0)
        assert not await exchange.all_ready()
        await exchange.ready(process)
        assert await exchange.all_ready()
        await exchange.rank_died(0)
        await exchange.ready(process)  # a late call of the dead process
        assert not await exchange.all_ready()
        await exchange.ready(await exchange.join(0))
        assert await exchange.all_ready()

    asyncio.run(scenario())


@pytest.mark.parametrize("streaming", [True, False])
def test_rows_that_a_dead_process_hands_over_late_are_ignored_with_their_report(
    streaming: bool,
) -> None:
    async def scenario() -> None:
        exchange = await opened(streaming=streaming)
        process = await exchange.join(0)
        prompts = await all_prompts(exchange, process)
        await exchange.rank_died(0)
        replacement = await exchange.join(0)
        await all_prompts(exchange, replacement)
        first = [prompts[0], prompts[1]]
        await exchange.put(0, process, rows_of(first, "lost"), Report({}, episodes=1))
        await exchange.put(0, replacement, rows_of(first, "there"), Report({}, episodes=2))
        taken = await exchange.take(0, 1, 2)
        assert taken is not None
        assert taken.reports == ((0, Report({}, episodes=2)),)
        assert await exchange.references(0, [0, 1]) == ["there", "there"]

    asyncio.run(scenario())


def test_a_result_that_a_dead_process_sends_late_does_not_answer_an_evaluation() -> None:
    async def scenario() -> None:
        exchange = await opened(streaming=True)
        process = await exchange.join(0)
        await exchange.evaluate(0, 0, True, False)
        await exchange.rank_died(0)
        await exchange.result(process, 1, "of the dead process")
        replacement = await exchange.join(0)
        asked = await exchange.work(replacement, ALL, 0)
        assert asked.evaluation == EvaluationRequest(0, 1, 0, True, False)
        await exchange.result(replacement, 1, "of its replacement")
        assert await exchange.results() == ["of its replacement"]

    asyncio.run(scenario())


@pytest.mark.parametrize("when", ["before its death", "late"])
def test_the_ranks_of_an_evaluation_get_nothing_of_a_dead_process(when: str) -> None:
    async def scenario() -> None:
        exchange = await opened(streaming=True, ranks=2)
        other, process = await exchange.join(0), await exchange.join(1)
        await exchange.evaluate(0, 0, True, False)
        if when == "before its death":
            assert await exchange.gather(process, 1, 1, "dead") is None
        await exchange.rank_died(1)
        if when == "late":
            assert await exchange.gather(process, 1, 1, "dead") is None
        waits = asyncio.create_task(exchange.gather(other, 1, 1, "other"))
        replacement = await exchange.join(1)
        assert await exchange.gather(replacement, 1, 1, "new") == ["other", "new"]
        assert await waits == ["other", "new"]

    asyncio.run(scenario())
