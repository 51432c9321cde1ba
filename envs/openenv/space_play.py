"""Episodes of a siirl environment behind `siirl serve`, with its own spaces, infos and chunks.

The server sends its spec with the action schema. So the environment has the same spec here, and the
same seed, options and actions give the same episode bit for bit. Left out: frames for videos
(`spec.renders` is False), rows of prompt files, and the ground truth, which never leaves the
server.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium import spaces

from envs.arguments import checked_action, checked_tasks
from envs.base import EnvSpec, EpisodeFailed, Info, Observation, StepResult
from envs.names import listed, nearest
from envs.openenv.replies import Reply, read_reply
from envs.openenv.session import ServerRefused, Session, SessionFault
from envs.openenv.text_play import refuse_row
from envs.openenv.wire import from_json, to_json
from envs.text import shortened

# Fields of `siirl serve`
ACTIONS = "actions"
OBSERVATION = "observation"
INFO = "info"
SUCCESS = "success"
INVALID = "VALIDATION_ERROR"


class SpacePlay:
    """Plays one environment; the session is the caller's."""

    def __init__(self, spec: EnvSpec, *, url: str, tasks: Sequence[str] | None) -> None:
        """Use the server's spec, with some of its tasks.

        Raises:
            ValueError: A task that the server does not have.
        """
        for task in () if tasks is None else checked_tasks(tasks):
            if task not in spec.tasks:
                raise ValueError(
                    f"The server at {url} has no task {task!r}.{nearest(task, spec.tasks)} "
                    f"It has: {listed(task, spec.tasks)}."
                )
        self.spec = dataclasses.replace(
            spec, tasks=tuple(tasks or spec.tasks), check_row=refuse_row
        )
        self._url = url

    async def begin(
        self, session: Session, *, seed: int | None, options: Mapping[str, Any]
    ) -> tuple[Observation, Info]:
        """Reset the environment; the server checks the options."""
        sent = dict(options)
        if sent.pop("frames", None):
            raise ValueError("env=openenv has no frames for videos: do not request any.")
        data = {"task": self.spec.tasks[0], **sent}
        if seed is not None:
            data["seed"] = seed
        try:
            reply = self._read(await session.reset(data))
        except ServerRefused as refused:
            raise _as_here(refused) from refused
        return self._observation(reply), self._info(reply)

    async def play(self, session: Session, actions: Sequence[Any]) -> StepResult:
        """Apply a chunk of actions."""
        checked = [checked_action(action, space=self.spec.action_space) for action in actions]
        data = {ACTIONS: [to_json(action) for action in checked]}
        try:
            reply = self._read(await session.ask("step", data, answer="observation"))
        except ServerRefused as refused:
            raise _as_here(refused) from refused
        info = self._info(reply)
        truncated = bool(info.pop("truncated", False))
        terminated = bool(info.pop("terminated", False))
        if reply.reward is None or reply.done != (terminated or truncated):
            raise SessionFault(
                f"The server at {self._url} sent a step with reward {reply.reward} and done "
                f"{reply.done}: both sides need the same version of siirl"
            )
        return self._observation(reply), reply.reward, terminated, truncated, info

    def _read(self, data: Mapping[str, Any]) -> Reply:
        try:
            return read_reply(data)
        except ValueError as error:
            raise self._other(error) from error

    def _observation(self, reply: Reply) -> Observation:
        shown: Any = {name: value for name, value in reply.observation.items() if name != INFO}
        space = self.spec.observation_space
        if not isinstance(space, spaces.Dict):
            shown = shown.get(OBSERVATION)
        try:
            return from_json(shown, space, where="the observation")
        except ValueError as error:
            raise self._other(error) from error

    def _info(self, reply: Reply) -> Info:
        info = reply.observation.get(INFO)
        if not isinstance(info, dict):
            raise self._other(ValueError(f"info is {shortened(info)} instead of an object"))
        success = info.get(SUCCESS)
        if self.spec.reports_success and not isinstance(success, bool | None):
            raise self._other(ValueError(f"{SUCCESS} is {shortened(success)}, not true or false"))
        return dict(info)

    def _other(self, error: ValueError) -> SessionFault:
        return SessionFault(f"The server at {self._url} sent a wrong answer: {error}")


def _as_here(refused: ServerRefused) -> Exception:
    """The exception that the environment itself would raise."""
    text = str(refused).removesuffix(f" ({refused.code})")
    if refused.code == INVALID:
        return ValueError(text)
    return EpisodeFailed(text.removeprefix(f"{EpisodeFailed.__name__}: ").rstrip("."))
