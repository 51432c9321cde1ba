"""A supervisor: one place of the pool. It sends requests to the server that runs there, notices when
it fails, and starts the next one.

Requests of several environments of a server travel in one message where they come at the same time,
which is what a policy does that answers a batch of observations: a message costs two processes some
tenths of a millisecond. It never carries more than half of a server's environments, so that the
server has the other half to work on while the policy looks at the first.

What a failure means for the episodes that lived there is decided by `siirl.env_server.slot`.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from envs.base import EpisodeFailed
from siirl.env_server.server import Answers, Raised, Request
from siirl.env_server.transports import Transport
from siirl.errors import RefusedByEnvironment
from siirl.execution.scheduler.ray_words import in_a_line

logger = logging.getLogger(__name__)

FaultKind = Literal["died", "hung", "raised", "garbage", "start"]
CLOSE_DEADLINE_S = (
    5.0  # freeing OpenGL contexts takes milliseconds; a server that needs longer is killed
)


class ServerFault(Exception):
    """A server failed and will be replaced. `charged` says whether the episode that asked is a
    suspect or a bystander.
    """

    def __init__(self, kind: FaultKind, detail: str, *, charged: bool) -> None:
        super().__init__(f"{kind}: {detail}")
        self.charged = charged


class _Waiting(NamedTuple):
    request: Request
    answer: "asyncio.Future[Any]"


@dataclass(frozen=True, eq=False)
class _Call:
    waiting: list[_Waiting]
    reply: "asyncio.Future[Answers]"


class ServerSupervisor:
    """One server at a time. `generation` counts how often it was replaced: an episode lives on one
    generation only.
    """

    def __init__(
        self,
        *,
        name: str,
        make_transport: Callable[[], Transport],
        num_envs: int,
        deadline_s: float,
        start_deadline_s: float,
    ) -> None:
        self.name = name
        self.generation = 0
        self.num_lent = 0  # slots in use, counted by the pool
        self.last_fault = ""  # why a server was replaced here last
        self._busy_s = 0.0
        self._make_transport, self._deadline_s, self._start_deadline_s = (
            make_transport,
            deadline_s,
            start_deadline_s,
        )
        self._batch_size = (num_envs + 1) // 2
        self._transport: Transport | None = None
        self._opening_transport: Transport | None = None  # started, not ready yet
        self._starting = asyncio.Lock()
        self._outbox: list[_Waiting] = []
        self._calls: list[_Call] = []  # in flight, oldest first: the server works on the oldest
        self._deliveries: set[asyncio.Task[None]] = set()
        self._suspects: set[int] = set()
        self._closed = False

    async def start(self) -> int:
        """Start a server unless one runs; returns its generation.

        Raises:
            ValueError: The environment refuses its arguments.
            ServerFault: The server did not start.
        """
        async with self._starting:
            if self._transport is None:
                self._transport = await self._open(self._make_transport())
        return self.generation

    async def request(self, request: Request, *, generation: int) -> Any:
        """Have `request` carried out by the server of `generation`.

        Raises:
            ValueError: The environment refused the arguments.
            EpisodeFailed: The environment says that this episode cannot be scored.
            ServerFault: The server, or the environment in it, failed, or another generation runs by
                now.
        """
        self._refuse_if_closed()
        if self._transport is None or generation != self.generation:
            raise ServerFault("died", f"server {self.name} was replaced", charged=False)
        loop = asyncio.get_running_loop()
        waiting = _Waiting(request, loop.create_future())
        if not self._outbox:
            loop.call_soon(
                self._flush
            )  # after all coroutines that are ready now, so that their requests travel together
        self._outbox.append(waiting)
        return await waiting.answer

    def condemn(
        self, kind: FaultKind, detail: str, *, generation: int, culprits: set[int] | None = None
    ) -> None:
        """Kill the server of `generation`; every request that waits for it fails. A second word
        about the same server changes nothing.

        Without known `culprits`, every environment that waits for an answer of this server is
        charged. Until their episodes have ended the server gets one request at a time: so a
        bystander is charged once at most, and who fails again is known.
        """
        if self._transport is None or generation != self.generation:
            return
        logger.warning("Environment server %s is replaced: %s (%s).", self.name, kind, detail)
        self.last_fault = f"{kind}: server {self.name}: {detail}"
        if culprits is None:
            culprits = {waiting.request.env for call in self._calls for waiting in call.waiting}
            self._suspects |= culprits
        transport, self._transport = self._transport, None
        self.generation += 1
        transport.kill()
        lost = [waiting for call in self._calls for waiting in call.waiting] + self._outbox
        self._calls, self._outbox = [], []
        for waiting in lost:
            charged = waiting.request.env in culprits
            _settle(
                waiting.answer,
                error=ServerFault(kind, f"server {self.name}: {detail}", charged=charged),
            )

    def take_busy_s(self) -> float:
        """Seconds that servers here worked on requests since the last call."""
        busy_s, self._busy_s = self._busy_s, 0.0
        return busy_s

    def clear_suspicion(self, env: int) -> None:
        """A new episode begins in environment `env`: what its predecessor did is no longer held
        against it.
        """
        self._suspects.discard(env)

    async def close(self) -> None:
        """Close the environments and end the server; requests that wait fail with RuntimeError."""
        self._closed = True
        if self._opening_transport is not None:
            self._opening_transport.kill()  # whoever waits for it is told at once
        async with self._starting:
            transport, self._transport = self._transport, None
        for waiting in [waiting for call in self._calls for waiting in call.waiting] + self._outbox:
            _settle(
                waiting.answer,
                error=RuntimeError("The pool was closed while an episode was running."),
            )
        self._calls, self._outbox = [], []
        if transport is not None:
            closing = transport.shut()
            await asyncio.wait({closing}, timeout=CLOSE_DEADLINE_S)
            _forget(closing)
            transport.kill()
            await asyncio.sleep(
                0
            )  # an event loop closes connections in its next turn, and may have none after this
        for delivery in self._deliveries:
            delivery.cancel()
        await asyncio.gather(*self._deliveries, return_exceptions=True)

    async def _open(self, transport: Transport) -> Transport:
        opening, opened = transport.open(), False
        self._opening_transport = transport
        try:
            await asyncio.wait({opening}, timeout=self._start_deadline_s)
            self._refuse_if_closed()
            self._check_opened(opening)
            opened = True
        finally:
            self._opening_transport = None
            if not opened:
                _forget(opening)
                transport.kill()
        return transport

    def _check_opened(self, opening: "asyncio.Future[Raised | None]") -> None:
        if not opening.done():
            raise ServerFault(
                "start",
                f"server {self.name} was not ready after {self._start_deadline_s:g} s",
                charged=True,
            )
        error = opening.exception()
        if error is not None:
            raise ServerFault(
                "start", f"server {self.name}: {in_a_line(error)}", charged=True
            ) from error
        raised = opening.result()
        if raised is None:
            return
        if raised.kind == "mistake":
            raise _refusal(raised)
        raise ServerFault(
            "start",
            f"server {self.name}: the environment could not be made: {raised.summary}\n{raised.trace}",
            charged=True,
        )

    def _flush(self) -> None:
        transport = self._transport
        while self._outbox and transport is not None:
            if self._suspects and self._calls:
                return  # `_deliver` comes back here
            size = 1 if self._suspects else self._batch_size
            waiting, self._outbox = self._outbox[:size], self._outbox[size:]
            try:
                call = _Call(waiting, transport.send([entry.request for entry in waiting]))
            except (
                TypeError,
                ValueError,
                RuntimeError,
            ) as error:  # not picklable, or no connection: whoever asked would wait for ever
                for entry in waiting:
                    _settle(entry.answer, error=error)
                continue
            self._calls.append(call)
            in_line = sum(len(earlier.waiting) for earlier in self._calls)
            delivery = asyncio.get_running_loop().create_task(
                self._deliver(call, deadline_s=self._deadline_s * in_line)
            )
            self._deliveries.add(delivery)
            delivery.add_done_callback(self._deliveries.discard)

    async def _deliver(self, call: _Call, *, deadline_s: float) -> None:
        """Wait for the reply; `deadline_s` covers the requests before it, which the server works on
        first.
        """
        generation = self.generation
        await asyncio.wait({call.reply}, timeout=deadline_s)
        if (
            call not in self._calls
        ):  # the server was condemned meanwhile, and everyone has been told
            _forget(call.reply)
            return
        if not call.reply.done():
            _forget(call.reply)
            self.condemn("hung", f"no answer within {deadline_s:g} s", generation=generation)
            return
        error = call.reply.exception()
        if error is not None:
            self.condemn("died", str(error).partition("\n")[0].rstrip("."), generation=generation)
            return
        self._calls.remove(call)
        self._hand_out(call, call.reply.result(), generation)
        self._flush()

    def _hand_out(self, call: _Call, answers: Answers, generation: int) -> None:
        self._busy_s += answers.busy_s
        for (request, answer), value in zip(call.waiting, answers.values, strict=True):
            if not isinstance(value, Raised):
                _settle(answer, value=value)
            elif value.kind == "mistake":
                _settle(answer, error=_refusal(value))
            elif value.kind == "episode":
                _settle(answer, error=EpisodeFailed(value.summary))
            else:
                detail = f"{request.method} raised {value.summary}"
                _settle(
                    answer,
                    error=ServerFault(
                        "raised", f"server {self.name}: {detail}\n{value.trace}", charged=True
                    ),
                )
                self.condemn("raised", detail, generation=generation, culprits={request.env})

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RuntimeError("The pool is closed.")


def _refusal(raised: Raised) -> RefusedByEnvironment:
    error = RefusedByEnvironment(raised.summary)
    error.add_note(f"Raised by the environment, at its server:\n{raised.trace}")
    return error


def _settle(
    answer: "asyncio.Future[Any]", *, value: Any = None, error: Exception | None = None
) -> None:
    """Answer a request, unless whoever asked was cancelled."""
    if answer.done():
        return
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)


def _forget(future: "asyncio.Future[Any]") -> None:
    """Nobody waits for `future` any longer: take note of its exception, so that asyncio does not
    complain.
    """
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
