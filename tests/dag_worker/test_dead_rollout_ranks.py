"""Prompts of a rollout rank that died go to its replacement, and not to a call that the dead process
left behind.
"""

import asyncio

import pytest

from siirl.dag_worker.separate.edge import Edge
from siirl.dag_worker.separate.exchange import Exchange
from siirl.dag_worker.separate.exchange_messages import Weights, Work
from siirl.engine.rollout.ledger import RolloutLedger

ALL = {0: 4}


async def opened(*, streaming: bool) -> Exchange:
    ledger = RolloutLedger(batch=2, max_staleness=1, ranks=1, streaming=streaming)
    exchange = Exchange({0: Edge(ledger=ledger, node="get")})
    await exchange.publish(0, Weights(step=0, version=0, buckets=(), checksum=0))
    await exchange.open(0, 0, 0, None, [], [])
    await exchange.step_done(0)
    return exchange


async def all_prompts(exchange: Exchange, life: int) -> set[int]:
    """Numbers of the prompts that a process gets until there is no more work."""
    got: set[int] = set()
    while (work := await exchange.work(0, life, ALL, 0)) != Work():
        got |= {prompt.number for prompt in work.prompts[0]}
    return got


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("when", ["waits at its death", "arrives later"])
def test_a_call_of_a_dead_process_takes_no_prompt_from_its_replacement(
    streaming: bool, when: str
) -> None:
    async def scenario() -> None:
        exchange = await opened(streaming=streaming)
        life = await exchange.join(0)
        prompts = await all_prompts(exchange, life)
        if when == "waits at its death":
            left = asyncio.create_task(exchange.work(0, life, ALL, 0))
            await asyncio.sleep(0)
        await exchange.rank_died(0)
        if when == "arrives later":
            left = asyncio.create_task(exchange.work(0, life, ALL, 0))
        assert await left == Work()
        replacement = await exchange.join(0)
        assert await all_prompts(exchange, replacement) == prompts == {0, 1, 2, 3}

    asyncio.run(scenario())
