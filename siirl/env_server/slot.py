"""Slot: an episode's handle to one environment of the pool; it outlives its servers.

Every call is recorded. If the server fails, the slot waits for the next one, repeats the recorded
calls there, checks that the results agree, and then makes the failed call. The policy is not run
again. An episode that cannot be replayed fails, unless its reset failed: then it starts again.
"""

import asyncio
import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from envs import answer_checks
from envs.arguments import not_running
from envs.base import EnvSpec, EpisodeFailed, Frames, Info, Observation, StepResult, WrongForm
from envs.replay_samples import difference, sample
from siirl.env_server.server import Request
from siirl.env_server.server_supervisor import ServerFault, ServerSupervisor
from siirl.env_server.tally import Tally
from siirl.errors import SimulationFailed
from siirl.occupation import OCCUPATION

logger = logging.getLogger(__name__)

UNREPLAYABLE = "the environment's spec says replayable=False"


def how_to_say_unreplayable(name: str) -> str:
    """How a user declares that seed and actions do not determine the episodes of `name`."""
    if name == "gymnasium":
        return "gymnasium.register(..., nondeterministic=True)"
    return "replayable=False in its EnvSpec"


class Call(NamedTuple):
    """An answered call of an episode, for replay."""

    method: Literal["reset", "step_chunk"]
    arguments: tuple[Any, ...]
    outcome: Any
    """Sample of the result, for comparison."""


@dataclass
class EpisodeRecord:
    """One episode of one slot."""

    seed: int
    options: dict[str, Any]
    calls: list[Call] = field(default_factory=list)
    """Calls answered so far, `reset` first."""
    generation: int | None = None
    """Generation of the server that runs this episode; None before the first call."""
    faults: int = 0
    """Server failures charged to this episode."""
    last_fault: str = ""
    """The failure that made it start again or be replayed."""
    ended: bool = False

    @property
    def num_chunks(self) -> int:
        """Chunks of actions executed so far."""
        return max(0, len(self.calls) - 1)

    def add(
        self,
        method: Literal["reset", "step_chunk"],
        arguments: tuple[Any, ...],
        result: tuple[Any, ...],
    ) -> None:
        """Record an answered call, and whether it ended the episode."""
        self.calls.append(Call(method, arguments, sample(result[:-1])))
        if method == "step_chunk":
            _, _, terminated, truncated, _ = result
            self.ended = bool(terminated or truncated)


class Slot:
    """An environment lent by `EnvPool.slot`; runs one episode at a time."""

    def __init__(
        self,
        *,
        supervisor: ServerSupervisor,
        env: int,
        spec: EnvSpec,
        max_replays: int,
        tally: Tally,
    ) -> None:
        self.supervisor = supervisor
        self._env = env
        self._spec = spec
        self._max_replays = max_replays
        self._tally = tally
        self._episode: EpisodeRecord | None = None

    async def reset(
        self, *, seed: int, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode; see `Environment.reset`.

        The seed is required: without it an episode cannot be replayed.

        Raises:
            ValueError: The environment refuses an option.
            SimulationFailed: The servers of this episode failed too often.
        """
        self.end_episode()
        self._episode = EpisodeRecord(seed=seed, options=dict(options or {}))
        result: tuple[Observation, Info] = await self._carry_out(
            "reset", (self._episode.seed, self._episode.options)
        )
        return result

    async def step_chunk(self, actions: Sequence[Any] | NDArray[Any]) -> StepResult:
        """Apply up to K actions; see `Environment.step_chunk`.

        Frames stay at the server until `frames` fetches them.

        Raises:
            ValueError: The environment refuses an action; the episode is over.
            RuntimeError: Called before `reset` or after the end of the episode.
            SimulationFailed: The servers of this episode failed too often.
        """
        if self._episode is None or self._episode.ended:
            raise not_running()
        result: StepResult = await self._carry_out("step_chunk", (own_actions(actions),))
        self._tally.steps += int(result[-1]["executed"])
        return result

    async def resume(
        self, *, seed: int, options: Mapping[str, Any], actions: Sequence[Any]
    ) -> tuple[Observation, bool]:
        """Continue an episode that another slot began; its steps are not counted again.

        Args:
            seed: The seed with which the episode was reset.
            options: The options with which the episode was reset.
            actions: Actions executed so far.

        Returns:
            The observation after them, and whether the episode has ended.

        Raises:
            SimulationFailed: The servers of this episode failed too often.
        """
        observation, _ = await self.reset(seed=seed, options=options)
        episode = self._episode
        if not len(actions) or episode is None:
            return observation, False
        observation, *_ = await self._carry_out("step_chunk", (own_actions(actions),))
        return observation, episode.ended

    async def frames(self, stream: str) -> Frames:
        """Frames of `stream` in this episode so far; also after its end, until the next reset.

        Raises:
            ValueError: `reset` did not request the stream.
            RuntimeError: Called before `reset`.
            SimulationFailed: The servers of this episode failed too often.
        """
        if self._episode is None:
            raise RuntimeError("There is no episode to fetch frames of: call reset first.")
        result: Frames = await self._carry_out("frames", (stream,))
        return result

    def end_episode(self) -> None:
        """Forget the episode; `EnvPool.slot` calls this when the slot is returned.

        An episode with a `WrongForm` has been forgotten before.
        """
        self._forget_episode()
        self.supervisor.clear_suspicion(self._env)

    def _forget_episode(self) -> None:
        """Forget an episode that has ended without a `WrongForm`."""
        if self._episode is not None and self._episode.calls:
            self.supervisor.clear_wrong_form(self._env)
        self._episode = None

    async def _carry_out(self, method: Any, arguments: tuple[Any, ...]) -> Any:
        """Make a call of the running episode; after a server failure, on the next server."""
        episode = self._episode
        assert episode is not None
        while True:
            try:
                generation = await self._catch_up(episode)
                result = await self._ask(method, arguments, generation)
                break
            except ServerFault as fault:
                self._allow_another_try(episode, fault)
            except EpisodeFailed as failed:
                self._forget_episode()
                self._give_up(episode, str(failed).rstrip("."))
            except WrongForm as wrong:
                self._give_up(episode, str(wrong).rstrip("."))
            except (ValueError, asyncio.CancelledError):
                # part of such a chunk may have been executed: the episode's state is unknown
                if self._episode is episode:
                    self._forget_episode()
                raise
        OCCUPATION.record_progress()
        if method != "frames":
            episode.add(method, arguments, result)
        return result

    async def _catch_up(self, episode: EpisodeRecord) -> int:
        """Replay the episode if the server is new to it; returns the server's generation.

        An episode whose reset failed has nothing to replay, but counts as one simulated again.
        """
        if episode.generation not in (None, self.supervisor.generation):
            self._require_replayable(episode, self.supervisor.last_fault)
        generation = await self.supervisor.start()
        if episode.generation in (None, generation):
            episode.generation = generation
            return generation
        self._tally.replays += 1
        for number, call in enumerate(episode.calls):
            await self._repeat(episode, number, call, generation)
        episode.generation = generation
        return generation

    async def _repeat(
        self, episode: EpisodeRecord, number: int, call: Call, generation: int
    ) -> None:
        try:
            result = await self._ask(call.method, call.arguments, generation)
            differs = difference(call.outcome, sample(result[:-1]), where=call.method)
        except ValueError as error:
            differs = f"{call.method} raised {error}"
        if differs is not None:
            self._give_up(
                episode,
                f"its replay diverged: at call {number}, {differs}. Seed and actions do "
                f"not determine an episode of {self._spec.name!r}: make it deterministic, or say "
                f"that it is not: {how_to_say_unreplayable(self._spec.name)}. The failure "
                f"before it: {episode.last_fault or self.supervisor.last_fault}",
            )

    async def _ask(self, method: Any, arguments: tuple[Any, ...], generation: int) -> Any:
        try:
            result = await self.supervisor.request(
                Request(self._env, method, arguments), generation=generation
            )
            self._check(method, arguments, result, generation)
        except WrongForm as wrong:
            if self._spec.replayable:  # a new server would end the other episodes of this one
                self.supervisor.count_wrong_form(self._env, str(wrong), generation=generation)
            raise
        return result

    def _check(self, method: Any, arguments: tuple[Any, ...], result: Any, generation: int) -> None:
        fault = None
        if method == "reset":
            fault = answer_checks.fault_of_reset(result, spec=self._spec)
        elif method == "step_chunk":
            fault = answer_checks.fault_of_step(
                result, spec=self._spec, num_actions=len(arguments[0])
            )
        if isinstance(fault, answer_checks.NotFinite):
            detail = f"{method}: {fault}"
            self.supervisor.kill_server(
                "garbage", detail, generation=generation, culprits={self._env}
            )
            raise ServerFault("garbage", detail, server=self.supervisor.name, charged=True)
        if fault is not None:
            raise WrongForm(
                f"{method} of environment {self._spec.name!r}: {fault}. Test it alone with "
                "envs.checker.check_env"
            )

    def _allow_another_try(self, episode: EpisodeRecord, fault: ServerFault) -> None:
        episode.last_fault = str(fault)
        if fault.charged:
            episode.faults += 1
            if episode.faults > self._max_replays:
                times = "once" if episode.faults == 1 else f"{episode.faults} times"
                often = f"its server failed {times}, and env.max_replays is {self._max_replays}"
                self._give_up(episode, often, last=fault)
            if self._cannot_be_replayed(episode):
                self._give_up(episode, f"its server failed, and {UNREPLAYABLE}", last=fault)
        else:
            self._require_replayable(episode, str(fault))
        action = "is started again"
        if episode.calls:
            action = f"is replayed after {episode.num_chunks} chunks"
        cause = "another episode's failure"
        if fault.charged:
            cause = f"failure {episode.faults}, {self._max_replays} allowed"
        logger.warning("Episode with seed %d %s (%s).", episode.seed, action, cause)

    def _require_replayable(self, episode: EpisodeRecord, others_fault: str) -> None:
        """Give up an episode that cannot be replayed; `others_fault` is not its own."""
        if self._cannot_be_replayed(episode):
            self._give_up(
                episode,
                f"another episode of its server failed ({others_fault}), and {UNREPLAYABLE}",
            )

    def _cannot_be_replayed(self, episode: EpisodeRecord) -> bool:
        return bool(episode.calls) and not self._spec.replayable

    def _give_up(
        self, episode: EpisodeRecord, reason: str, *, last: ServerFault | None = None
    ) -> NoReturn:
        """Fail the episode for `reason`, and for its own `last` fault."""
        self._episode = None
        cause = _ended(reason if last is None else f"{reason}. Last: {last}")
        name = f"seed {episode.seed} and options {episode.options}"
        message = f"The episode with {name} could not be simulated: {cause}"
        self._tally.fail(cause, message)
        failed = SimulationFailed(message)
        culprit = _ended(reason if last is None else last.culprit_of(reason))
        failed.cause, failed.culprit, failed.episode = cause, culprit, name
        raise failed


def _ended(reason: str) -> str:
    """`reason` with a full stop, unless it ends with the lines of a traceback."""
    reason = reason.rstrip()
    return reason if "\n" in reason else f"{reason.rstrip('.')}."


def own_actions(actions: Any) -> Any:
    """A copy of a chunk as a list, so that changes by the caller do not affect the record."""
    return list(actions.copy()) if isinstance(actions, np.ndarray) else copy.deepcopy(list(actions))
