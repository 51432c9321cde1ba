"""The exchange as a Ray actor, and a rank's connection to it.

Rows and stored weights travel through Ray's object store, from the process that made them to those
that read them, with one copy per machine in shared memory.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError

from siirl.dag_worker.separate.edge import Edge
from siirl.dag_worker.separate.exchange import Exchange
from siirl.dag_worker.separate.exchange_messages import LOST
from siirl.errors import RunFailed
from siirl.execution.scheduler.ray_errors import stated_cause

WAITING_CALLS = 1000  # a few per rank


def start_exchange(edges: Mapping[int, Edge]) -> Any:
    """Start the actor in the current Ray session and return its handle."""
    actor = ray.remote(Exchange).options(num_cpus=0, max_concurrency=WAITING_CALLS)
    return actor.remote(edges)


class ExchangeLine:
    """A rank's connection to the exchange.

    Args:
        handle: The exchange's actor.
    """

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the exchange, and wait for its result.

        Raises:
            RunFailed: The exchange died.
        """
        try:
            return ray.get(getattr(self.handle, method).remote(*arguments))
        except RayActorError as error:
            raise _died(error) from error

    async def acall(self, method: str, *arguments: Any) -> Any:
        """The same from a coroutine."""
        try:
            return await getattr(self.handle, method).remote(*arguments)
        except RayActorError as error:
            raise _died(error) from error

    def address(self) -> str:
        """Address of this process in the cluster."""
        found: str = ray.util.get_node_ip_address()
        return found

    def store(self, thing: Any) -> Any:
        """Keep a copy of `thing`, as long as this process lives, where the other group can fetch
        it; returns a reference.
        """
        return ray.put(thing)

    def fetch(self, references: Sequence[Any]) -> list[Any]:
        """The objects behind the references; `LOST` if the owner died."""
        return [self._fetch(reference) for reference in references]

    @staticmethod
    def _fetch(reference: Any) -> Any:
        try:
            return ray.get(reference)
        except ObjectLostError:
            return LOST


def _died(error: RayActorError) -> RunFailed:
    return RunFailed(
        "The process that passes rows and weights between the rollout and the training ranks died: "
        f"{stated_cause(error)}."
    )
