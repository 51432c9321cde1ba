"""Supervisor of one server: sends requests to it, detects its failure, and starts the next one.

Simultaneous requests of several environments are sent in one message, because a message costs the
two processes some tenths of a millisecond. Such requests arise when a policy answers a batch of
observations. Answers arrive one by one or together, as they become ready. A message has at most
half of a server's environments, so that the server works on the other half while the policy
computes for the first.

`siirl.env_server.slot` decides how a failure affects the episodes of the server.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from envs.base import EpisodeFailed, WrongForm
from siirl.env_server.server import Answers, RaisedError, Request
from siirl.env_server.transports import Transport
from siirl.errors import RefusedByEnvironment
from siirl.execution.scheduler.ray_errors import stated_cause
from siirl.occupation import OCCUPATION

logger = logging.getLogger(__name__)

FaultKind = Literal["died", "hung", "raised", "garbage", "start"]
# freeing OpenGL contexts takes milliseconds; a server that takes longer is killed
CLOSE_DEADLINE_S = 5.0


class ServerFault(Exception):
    """A server failed and will be replaced; `charged`: the requesting episode may be the cause."""

    def __init__(self, kind: FaultKind, detail: str, *, server: str, charged: bool) -> None:
        super().__init__(f"{kind}: server {server}: {detail}")
        self.charged = charged
        self._culprit = detail if kind in ("raised", "garbage") else str(self)

    def culprit_of(self, end: str) -> str:
        """The fault and why it ended an episode, with a traceback below both; without the server if
        code of the environment is the cause.
        """
        sentence, newline, trace = self._culprit.partition("\n")
        return f"{sentence.rstrip('.')}; {end}{newline}{trace}"


class _WaitingRequest(NamedTuple):
    request: Request
    answer: "asyncio.Future[Any]"


@dataclass(frozen=True, eq=False)
class _Call:
    waiting: dict[int, _WaitingRequest]
    """Requests without an answer, by position in the message."""


class ServerSupervisor:
    """Runs one server at a time; `generation` counts its replacements."""

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
        self.last_fault = ""  # reason of the last replacement
        self._busy_s = 0.0
        self._make_transport = make_transport
        self._deadline_s = deadline_s
        self._start_deadline_s = start_deadline_s
        self._batch_size = (num_envs + 1) // 2
        self._transport: Transport | None = None
        self._opening_transport: Transport | None = None  # not ready yet
        self._starting = asyncio.Lock()
        self._outbox: list[_WaitingRequest] = []
        self._calls: list[_Call] = []  # in flight, oldest first: the server works on the oldest
        self._suspects: set[int] = set()
        self._misshapen: set[int] = set()  # environments whose latest episode had a `WrongForm`
        self._away: EpisodeFailed | None = None  # latest start whose environment's server was away
        self._ending: set[asyncio.Future[Any]] = set()  # killed servers
        self._closed = False

    async def start(self) -> int:
        """Start a server unless one runs; returns its generation.

        Raises:
            ValueError: The environment refuses its arguments.
            EpisodeFailed: A server behind the environment is away. All episodes that waited for
                this start fail, so that they do not wait for the same server one by one.
            ServerFault: The server did not start.
            RuntimeError: The pool is closed.
        """
        self._refuse_if_closed()
        if self._transport is None:
            known = self._away
            async with self._starting:
                self._refuse_if_closed()
                if self._transport is None:
                    if self._away is not None and self._away is not known:
                        raise EpisodeFailed(str(self._away))
                    try:
                        self._transport = await self._open(self._make_transport())
                    except EpisodeFailed as away:
                        self._away = away
                        raise
        return self.generation

    async def request(self, request: Request, *, generation: int) -> Any:
        """Send `request` to the server of `generation`; returns its result.

        Raises:
            ValueError: The environment refused the arguments.
            EpisodeFailed: The environment cannot score this episode.
            WrongForm: The environment's result has another form.
            ServerFault: The server or its environment failed, or a later generation runs.
        """
        self._refuse_if_closed()
        if self._transport is None or generation != self.generation:
            raise ServerFault("died", "it was replaced", server=self.name, charged=False)
        loop = asyncio.get_running_loop()
        waiting = _WaitingRequest(request, loop.create_future())
        if not self._outbox:
            # runs after all coroutines that are ready now, so that their requests share a message
            loop.call_soon(self._flush)
        self._outbox.append(waiting)
        return await waiting.answer

    def kill_server(
        self, kind: FaultKind, detail: str, *, generation: int, culprits: set[int] | None = None
    ) -> None:
        """Kill the server of `generation`; all its waiting requests fail.

        A repeated call for the same generation has no effect. Without known `culprits`, every
        environment that waits for an answer of this server is charged. Until their episodes have
        ended, the next server gets one request at a time. An innocent episode is therefore charged
        at most once, and a repeated failure identifies its cause.
        """
        if self._transport is None or generation != self.generation:
            return
        logger.warning("Environment server %s is replaced: %s (%s).", self.name, kind, detail)
        self.last_fault = f"{kind}: server {self.name}: {detail}"
        if culprits is None:
            culprits = {waiting.request.env for waiting in self._unanswered()}
            self._suspects |= culprits
        transport, self._transport = self._transport, None
        self.generation += 1
        self._misshapen.clear()
        self._kill(transport)
        for waiting in self._drop_requests():
            charged = waiting.request.env in culprits
            _settle(
                waiting.answer,
                error=ServerFault(kind, detail, server=self.name, charged=charged),
            )

    def take_busy_s(self) -> float:
        """Seconds that servers worked on requests since the last call."""
        busy_s, self._busy_s = self._busy_s, 0.0
        return busy_s

    def clear_suspicion(self, env: int) -> None:
        """Stop suspecting environment `env`: a new episode begins there."""
        self._suspects.discard(env)

    def count_wrong_form(self, env: int, detail: str, *, generation: int) -> None:
        """An episode of environment `env` has failed by a `WrongForm`; if the one before it there
        has, too, the server of `generation` is replaced.

        A mistake in the environment's code would come back on another server, but a simulator that
        is broken by an earlier failure would fail every further episode.
        """
        if generation != self.generation:
            return
        if env in self._misshapen:
            self.kill_server("garbage", detail, generation=generation, culprits={env})
        else:
            self._misshapen.add(env)

    def clear_wrong_form(self, env: int) -> None:
        """An episode of environment `env` has ended, and its results had the right form."""
        self._misshapen.discard(env)

    async def close(self) -> None:
        """Close the environments and end the server; waiting requests raise RuntimeError."""
        self._closed = True
        if self._opening_transport is not None:
            self._kill(self._opening_transport)  # its waiters fail at once
        async with self._starting:
            transport, self._transport = self._transport, None
        for waiting in self._drop_requests():
            _settle(
                waiting.answer,
                error=RuntimeError("The pool was closed while an episode was running."),
            )
        if transport is not None:
            closing = transport.shut()
            try:
                await asyncio.wait({closing}, timeout=CLOSE_DEADLINE_S)
            finally:  # even if the caller is cancelled
                _forget(closing)
                self._kill(transport)
            # an event loop closes connections in its next iteration, possibly its last
            await asyncio.sleep(0)
        if self._ending:
            await asyncio.wait(self._ending, timeout=CLOSE_DEADLINE_S)

    async def _open(self, transport: Transport) -> Transport:
        opening = transport.open()
        opened = False
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
                self._kill(transport)
        return transport

    def _kill(self, transport: Transport) -> None:
        ending = transport.kill()
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def _check_opened(self, opening: "asyncio.Future[RaisedError | None]") -> None:
        if not opening.done():
            raise ServerFault(
                "start",
                f"it was not ready after {self._start_deadline_s:g} s",
                server=self.name,
                charged=True,
            )
        error = opening.exception()
        if error is not None:
            raise ServerFault(
                "start", stated_cause(error), server=self.name, charged=True
            ) from error
        raised = opening.result()
        if raised is None:
            return
        if raised.kind == "mistake":
            raise _refusal(raised)
        if raised.kind == "away":
            raise EpisodeFailed(raised.summary)
        raise ServerFault(
            "start",
            f"the environment could not be made: {raised.summary}{raised.trace}",
            server=self.name,
            charged=True,
        )

    def _flush(self) -> None:
        transport = self._transport
        while self._outbox and transport is not None:
            if self._suspects and self._calls:
                return  # `_on_end` calls this again
            size = 1 if self._suspects else self._batch_size
            waiting, self._outbox = self._outbox[:size], self._outbox[size:]
            call = _Call(dict(enumerate(waiting)))
            answered = functools.partial(self._on_answers, call, self.generation)
            try:
                sent = transport.send([entry.request for entry in waiting], answered)
            except (TypeError, ValueError, RuntimeError) as error:
                # not picklable, or no connection: the requests must fail instead of waiting forever
                for entry in waiting:
                    _settle(entry.answer, error=error)
                continue
            self._calls.append(call)
            OCCUPATION.asked[call] = (
                f"{waiting[0].request.method} of environment server {self.name}"
            )
            self._watch(call, sent)

    def _drop_requests(self) -> list[_WaitingRequest]:
        dropped = [*self._unanswered(), *self._outbox]
        for call in self._calls:
            del OCCUPATION.asked[call]
        self._calls, self._outbox = [], []
        return dropped

    def _unanswered(self) -> list[_WaitingRequest]:
        return [waiting for call in self._calls for waiting in call.waiting.values()]

    def _watch(self, call: _Call, sent: "asyncio.Future[None]") -> None:
        """Handle the end of a call; after the deadline, treat the server as hung.

        For each message, callbacks cost a third of what a task costs.
        """
        generation = self.generation
        # the server begins the earlier requests first
        deadline_s = self._deadline_s * len(self._unanswered())
        late = asyncio.get_running_loop().call_later(
            deadline_s, self._on_late, sent, deadline_s, generation
        )
        sent.add_done_callback(lambda _: self._on_end(call, sent, late, generation))

    def _on_late(self, sent: "asyncio.Future[None]", deadline_s: float, generation: int) -> None:
        if not sent.done():
            self.kill_server("hung", f"no answer within {deadline_s:g} s", generation=generation)

    def _on_end(
        self,
        call: _Call,
        sent: "asyncio.Future[None]",
        late: asyncio.TimerHandle,
        generation: int,
    ) -> None:
        late.cancel()
        if sent.cancelled():
            return
        error = sent.exception()
        if call not in self._calls:  # `kill_server` or `close` has already failed these requests
            return
        if error is not None:
            self.kill_server(
                "died", str(error).partition("\n")[0].rstrip("."), generation=generation
            )
            return
        self._calls.remove(call)
        del OCCUPATION.asked[call]
        self._flush()

    def _on_answers(
        self, call: _Call, generation: int, positions: Sequence[int], answers: Answers
    ) -> None:
        if call not in self._calls:
            return
        self._busy_s += answers.busy_s
        answered = [call.waiting.pop(position) for position in positions]
        for (request, answer), value in zip(answered, answers.values, strict=True):
            if not isinstance(value, RaisedError):
                _settle(answer, value=value)
            elif value.kind == "mistake":
                _settle(answer, error=_refusal(value))
            elif value.kind == "episode":
                _settle(answer, error=EpisodeFailed(value.summary))
            elif value.kind == "form":
                _settle(answer, error=WrongForm(value.summary))
            else:
                verb = " raised" if value.trace else ":"
                detail = f"{request.method}{verb} {value.summary}"
                _settle(
                    answer,
                    error=ServerFault(
                        "raised", f"{detail}{value.trace}", server=self.name, charged=True
                    ),
                )
                self.kill_server("raised", detail, generation=generation, culprits={request.env})

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RuntimeError("The pool is closed.")


def _refusal(raised: RaisedError) -> RefusedByEnvironment:
    error = RefusedByEnvironment(raised.summary)
    error.add_note(f"Raised by the environment, at its server:{raised.trace}")
    return error


def _settle(
    answer: "asyncio.Future[Any]", *, value: Any = None, error: Exception | None = None
) -> None:
    """Answer a request, unless its caller was cancelled."""
    if answer.done():
        return
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)


def _forget(future: "asyncio.Future[Any]") -> None:
    """Retrieve the exception of an abandoned `future`, so that asyncio does not complain."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
