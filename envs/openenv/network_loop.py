"""One event loop for the connections of this process, in a thread that always runs.

An environment server's own loop stops between requests. A connection there would answer no ping
while the policy computes, and uvicorn, which runs most OpenEnv servers, closes one that is silent
for 40 seconds.
"""

import asyncio
import functools
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


@functools.cache
def network_loop() -> asyncio.AbstractEventLoop:
    """The loop; starts its thread, which ends with the process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="openenv-network", daemon=True).start()
    return loop


async def over_network(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run `coroutine` there and wait for it; cancelling the caller cancels it."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, network_loop()))
