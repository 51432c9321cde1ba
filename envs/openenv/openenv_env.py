"""An environment behind any OpenEnv server.

    env = OpenEnvEnv(url="http://127.0.0.1:8000")
    observation, info = await env.reset(seed=7)
    observation, reward, terminated, truncated, info = await env.step("hello")

An environment of `siirl serve` has its own spec, observations and actions (`space_play`). All
others are text (`text_play`, `text_form`).

Each environment has one session, which it keeps over episodes. A fault of the server is a lost
connection, or an answer that is late, too long or outside the protocol. The running episode is then
reported as failed, never scored, and the next reset connects again. With `replayable=True` such an
episode is simulated again from its seed instead, unless the server stays away for
`connect_deadline_s`. Left out: frames for videos, and rows of prompt files.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from numpy.typing import NDArray

from envs.arguments import check_counts, checked_seed, not_running
from envs.base import (
    LARGEST_REWARD,
    Environment,
    EnvSpec,
    EpisodeFailed,
    Info,
    Observation,
    StepResult,
    is_reward,
)
from envs.deadlines import checked_deadline
from envs.openenv.description import Description, describe
from envs.openenv.session import CLOSE_S, NoSession, ServerRefused, Session, SessionFault
from envs.openenv.space_play import SpacePlay
from envs.openenv.text_form import TextForm
from envs.openenv.text_play import TextPlay
from envs.server_address import checked_url, read_token
from envs.text import shortened

MAX_TURNS = 16
MAX_MESSAGE_MIB = 64  # below openenv-core's own 100; an image of 4096x4096 has 64
MAX_OBSERVATION_CHARACTERS = 16_384
DEADLINE_S, CONNECT_DEADLINE_S = 30.0, 20.0  # together below env.deadline_s, 60

NOT_FOR_SIIRL = {
    "action_field": "whose actions have a fixed form",
    "observation_field": "whose observation the model reads as a whole",
    "instructions": "whose observations contain the task",
    "max_episode_steps": "which reports its own value",
    "replayable": "which reports its own value",
}
"""Arguments that `siirl serve` makes unnecessary, and why."""


class _Play(Protocol):
    spec: EnvSpec

    async def begin(
        self, session: Session, *, seed: int | None, options: Mapping[str, Any]
    ) -> tuple[Observation, Info]: ...

    async def play(self, session: Session, actions: Sequence[Any]) -> StepResult: ...


class OpenEnvEnv(Environment):
    """One session with a server."""

    def __init__(
        self,
        *,
        url: str,
        token_file: str | None = None,
        tasks: Sequence[str] | None = None,
        instructions: str = "",
        action_field: str | None = None,
        observation_field: str | None = None,
        max_episode_steps: int | None = None,
        success_return: float = 1.0,
        replayable: bool | None = None,
        deadline_s: float = DEADLINE_S,
        connect_deadline_s: float = CONNECT_DEADLINE_S,
        max_message_mib: int = MAX_MESSAGE_MIB,
        max_observation_characters: int = MAX_OBSERVATION_CHARACTERS,
    ) -> None:
        """Ask the server for its schema; the session begins at the first reset.

        Args:
            url: Address of the server: `http://HOST:PORT`, or `https://…`.
            token_file: File with the token that the server requires.
            tasks: Tasks of a siirl server; others have one.
            instructions: Text before the first observation: the task, if the server does not send
                it.
            action_field: Field of the action that takes the model's text; by default chosen from
                the schema (`envs.openenv.text_form`).
            observation_field: Field of the observation that the model reads; by default all.
            max_episode_steps: Turns of the model after which an episode is truncated, 16 by
                default; a siirl environment has its own limit.
            success_return: Return from which an episode counts as a success, unless the server
                reports success.
            replayable: Whether seed and actions determine an episode. The default is the siirl
                server's value, or False for other servers, which may ignore the seed.
            deadline_s: Seconds for one answer; with connect_deadline_s and a second for the
                farewell at most env.deadline_s.
            connect_deadline_s: Seconds of attempts to get a session at reset.
            max_message_mib: Largest answer in MiB.
            max_observation_characters: Characters of an observation that the model reads.

        Raises:
            ValueError: An invalid argument, no server at `url`, or one with another protocol.
        """
        check_counts(
            max_episode_steps=max_episode_steps,
            max_message_mib=max_message_mib,
            max_observation_characters=max_observation_characters,
        )
        checked_deadline("deadline_s", deadline_s)
        checked_deadline("connect_deadline_s", connect_deadline_s)
        url = checked_url(
            url, key="env.url", token_key="env.kwargs.token_file", server="an OpenEnv server"
        )
        token = None if token_file is None else read_token(token_file)
        self._play = _make_play(
            describe(url, token=token, deadline_s=connect_deadline_s),
            url=url,
            tasks=tasks,
            text=_TextArguments(
                instructions=instructions,
                action_field=action_field,
                observation_field=observation_field,
                max_episode_steps=max_episode_steps,
                success_return=_checked_return(success_return),
                replayable=replayable,
                max_observation_characters=max_observation_characters,
            ),
        )
        self.spec = dataclasses.replace(
            self._play.spec, slowest_step_s=deadline_s + connect_deadline_s + CLOSE_S
        )
        self._session = Session(
            url,
            token=token,
            deadline_s=deadline_s,
            connect_deadline_s=connect_deadline_s,
            max_message_bytes=max_message_mib << 20,
        )
        self._is_open = False

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """See `Environment.reset`; options are those of the served environment, and `split`.

        Raises:
            EpisodeFailed: The server has no session, or cannot start an episode.
            SessionFault: The server failed in that way, and the episode can be replayed.
        """
        options = dict(options or {})
        if options.pop("row", None) is not None:
            assert self.spec.check_row is not None
            self.spec.check_row(None)
        self._is_open = False
        try:
            opening = await self._play.begin(
                self._session, seed=checked_seed(seed), options=options
            )
        except (SessionFault, ServerRefused) as error:
            self._fail(error)
        self._is_open = True
        return opening

    async def step(self, action: Any) -> StepResult:
        """See `Environment.step`."""
        return await self.step_chunk([action])

    async def step_chunk(self, actions: Sequence[Any]) -> StepResult:
        """See `Environment.step_chunk`; a siirl environment receives the chunk in one message.

        Raises:
            ValueError: An action outside the space.
            RuntimeError: No episode runs.
            EpisodeFailed: The server aborted the episode.
            SessionFault: The server aborted the episode, which can be replayed.
        """
        if len(actions) == 0:
            raise ValueError("step_chunk needs at least one action.")
        if not self._is_open:
            raise not_running()
        if isinstance(self._play, TextPlay) and len(actions) > 1:
            return await super().step_chunk(actions)  # a text is a step
        try:
            result = await self._play.play(self._session, actions)
        except EpisodeFailed:
            self._is_open = False
            raise
        except (SessionFault, ServerRefused) as error:
            self._is_open = False
            self._fail(error)
        self._is_open = not (result[2] or result[3])
        return result

    def render(self) -> NDArray[Any]:
        """Raises RuntimeError: OpenEnv sends no frames besides observations."""
        raise RuntimeError(f"Environment {self.spec.name!r} cannot be rendered over OpenEnv.")

    async def close(self) -> None:
        """Close the session."""
        self._is_open = False
        await self._session.close()

    def _fail(self, error: SessionFault | ServerRefused) -> NoReturn:
        may_pass = isinstance(error, SessionFault) and not isinstance(error, NoSession)
        if self.spec.replayable and may_pass:
            raise error
        raise EpisodeFailed(str(error).rstrip(".")) from error


def _checked_return(value: Any) -> float:
    if not is_reward(value):
        raise ValueError(
            f"env.kwargs.success_return={shortened(value)} must be a finite number, the return "
            f"from which an episode is a success (at most {LARGEST_REWARD:g} in size)."
        )
    return float(value)


@dataclass(frozen=True, kw_only=True)
class _TextArguments:
    """Arguments that only text environments read."""

    instructions: str
    action_field: str | None
    observation_field: str | None
    max_episode_steps: int | None
    success_return: float
    replayable: bool | None
    max_observation_characters: int

    def refuse(self) -> None:
        """Raise ValueError if an argument is given that a siirl server does not need."""
        for name, reason in NOT_FOR_SIIRL.items():
            value = getattr(self, name)
            if value not in (None, ""):
                raise ValueError(
                    f"{name}={value!r} is for other OpenEnv servers; this one is `siirl serve`, "
                    f"{reason}: leave it out."
                )


def _make_play(
    server: Description, *, url: str, tasks: Sequence[str] | None, text: _TextArguments
) -> _Play:
    if server.spec is not None:
        text.refuse()
        return SpacePlay(server.spec, url=url, tasks=tasks)
    if tasks is not None:
        raise ValueError(f"The environment at {url} has no named tasks: leave tasks out.")
    form = TextForm.of(
        server.action_schema,
        observation_fields=server.observation_fields,
        url=url,
        action_field=text.action_field,
        observation_field=text.observation_field,
        instructions=text.instructions,
        max_observation_characters=text.max_observation_characters,
    )
    return TextPlay(
        form,
        url=url,
        task=server.name,
        max_turns=text.max_episode_steps or MAX_TURNS,
        success_return=text.success_return,
        replayable=bool(text.replayable),
    )
