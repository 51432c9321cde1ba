"""Episodes of an OpenEnv environment as text: a turn of the model is one step, or one step per
call.

The reward of a turn is the sum over its steps; one that comes with reset belongs to no action and
is left out, with a warning. Null means no reward yet. An episode that ends with
null fails, because openenv-core also writes NaN as null. An episode that is cut before any reward
has the return 0: its reward might have come at its end. Such episodes are counted in the log.
`success` is the server's own field if the last observation has one, else a return of at least
`success_return`.
"""

import collections
import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

from envs.arguments import read_options
from envs.base import EnvSpec, EpisodeFailed, Info, StepResult
from envs.openenv.replies import Reply, read_reply
from envs.openenv.session import ServerRefused, Session, SessionFault
from envs.openenv.text_form import TextForm
from envs.text import (
    REWARD_PARTS,
    VERDICT,
    Message,
    ModelText,
    TextObservation,
    checked_text,
    message,
    observe,
    shortened,
    text_spec,
)
from envs.tools.calls import MalformedCall, ToolCall, ToolDescription, read_calls

logger = logging.getLogger(__name__)

MAX_ACTION_CHARACTERS = 1 << 20
INVALID_ACTION = "VALIDATION_ERROR"  # openenv-core: the action does not match the schema
ENDED = "ended by the environment"
OUT_OF_TURNS = "out of turns"
PLAYING = "goes on"
UNREWARDED = "no reward so far"

_cut_unrewarded: collections.Counter[str] = collections.Counter()
"""Episodes of this process that were cut before any reward, for each address."""


class TextPlay:
    """Plays one environment; the session is the caller's."""

    def __init__(
        self,
        form: TextForm,
        *,
        url: str,
        task: str,
        max_turns: int,
        success_return: float,
        replayable: bool,
    ) -> None:
        self._form = form
        self._url = url
        self._task = task
        self._success_return = success_return
        self._tools_known = False
        self.spec: EnvSpec = text_spec(
            name="openenv",
            tasks=(task,),
            max_turns=max_turns,
            max_action_characters=MAX_ACTION_CHARACTERS,
            replayable=replayable,
            check_row=refuse_row,
        )
        self._turns = 0
        self._steps = 0
        self._rewards = 0
        self._return = 0.0
        self._waits_for_reward = False

    async def begin(
        self, session: Session, *, seed: int | None, options: Mapping[str, Any]
    ) -> tuple[TextObservation, Info]:
        """Reset the environment.

        OpenEnv has no splits. `split` only chooses seeds, which differ between training and
        evaluation.
        """
        read_options(options, spec=self.spec, further=("split",))
        self._note_cut()  # the last episode, if it had no more tokens
        reply = self._read(await session.reset({} if seed is None else {"seed": seed}))
        await self._ask_for_tools(session)
        self._turns = 0
        self._steps = 0
        self._rewards = 0
        self._return = 0.0
        if reply.reward:
            _note_opening_reward(self._url)
        messages = self._form.prompt(reply.observation)
        if not messages:
            raise EpisodeFailed(
                f"The environment at {self._url} shows nothing at reset: write the task into "
                "env.kwargs.instructions"
            )
        if reply.done:
            raise EpisodeFailed(f"The environment at {self._url} ends its episode at reset")
        return observe(messages), {"task": self._task, "data_source": self._task}

    async def play(self, session: Session, actions: Sequence[Any]) -> StepResult:
        """Play one turn of the model, the first of `actions`."""
        text = checked_text(actions[0], space=cast(ModelText, self.spec.action_space))
        self._waits_for_reward = False
        self._turns += 1
        calls = read_calls(text) if self._form.tools else []
        if calls:
            answers, reward, done, success = await self._carry_out(session, calls)
        elif self._form.tools_only:
            answers = []
            reward = 0.0
            done = True
            success = None
            if self._steps > 0 and self._rewards == 0:
                raise EpisodeFailed(
                    f"The environment at {self._url} gave no reward in an episode of "
                    f"{self._steps} steps (null)"
                )
        else:
            answers, reward, done, success = await self._say(session, text)
        self._return += reward
        if success is None:
            success = done and self._return >= self._success_return
        truncated = not done and self._turns >= self.spec.max_episode_steps
        if done:
            verdict = ENDED
        elif truncated:
            verdict = OUT_OF_TURNS
        else:
            verdict = PLAYING
        if not done and self._steps > 0 and self._rewards == 0:
            verdict = f"{verdict}, {UNREWARDED}"
            self._waits_for_reward = True
        if truncated:
            self._note_cut()
        info: Info = {
            "task": self._task,
            "success": success,
            REWARD_PARTS: {"environment": reward},
            VERDICT: verdict,
            "executed": 1,
        }
        return observe([] if done or truncated else answers), reward, done, truncated, info

    def _note_cut(self) -> None:
        """Count an episode that was cut before any reward, and log 1, 10, 100, … of them."""
        if not self._waits_for_reward:
            return
        self._waits_for_reward = False
        _cut_unrewarded[self._url] += 1
        count = _cut_unrewarded[self._url]
        if count == 10 ** (len(str(count)) - 1):
            logger.warning(
                "The environment at %s gave no reward (null, which openenv-core writes for NaN "
                "too) in an episode that was cut; its return is 0, and there are %d such episodes "
                "so far in this process: raise env.max_episode_steps or "
                "data.max_response_length, or correct the server's rewards.",
                self._url,
                count,
            )

    async def _say(
        self, session: Session, text: str
    ) -> tuple[list[Message], float, bool, bool | None]:
        action = self._form.action(text)
        if isinstance(action, str):
            return [message("user", f"Error: {action}.")], 0.0, False, None
        try:
            reply = await self._step(session, action)
        except ServerRefused as refused:
            if refused.code != INVALID_ACTION or self._form.action_field is not None:
                raise
            return [message("user", f"Error: {refused}.")], 0.0, False, None
        shown = message("user", self._shown(reply))
        return [shown], reply.reward or 0.0, reply.done, self._success(reply)

    async def _carry_out(
        self, session: Session, calls: Sequence[ToolCall | MalformedCall]
    ) -> tuple[list[Message], float, bool, bool | None]:
        answers, total = list[Message](), 0.0
        for call in calls:
            if isinstance(call, MalformedCall):
                answers.append(message("tool", f"Error: this is not a tool call: {call.reason}."))
                continue
            reply = await self._step(session, self._form.call(call))
            answers.append(message("tool", self._shown(reply, tool=True)))
            total += reply.reward or 0.0
            if reply.done:
                return answers, total, True, self._success(reply)
        return answers, total, False, None

    async def _step(self, session: Session, action: Mapping[str, Any]) -> Reply:
        reply = self._read(await session.ask("step", action, answer="observation"))
        if reply.done and reply.reward is None:
            raise EpisodeFailed(
                f"The environment at {self._url} ended an episode without a reward (null, which "
                "openenv-core writes for NaN too)"
            )
        self._steps += 1
        self._rewards += reply.reward is not None
        return reply

    def _success(self, reply: Reply) -> bool | None:
        """The server's own verdict on an episode that ends; None if it has none."""
        found = reply.observation.get("success") if reply.done else None
        if found is None:
            return None
        if found not in (0, 1):  # env=gymnasium takes 0 and 1 as well
            raise EpisodeFailed(
                f"The environment at {self._url} ended an episode with success="
                f"{shortened(found)}, which must be true or false: correct the server, or let it "
                "send null, and env.kwargs.success_return decides"
            )
        return bool(found)

    def _shown(self, reply: Reply, *, tool: bool = False) -> str:
        form = dataclasses.replace(self._form, observation_field=None) if tool else self._form
        try:
            return form.shown(_tool_result(reply.observation) if tool else reply.observation)
        except ValueError as error:
            raise EpisodeFailed(f"The server at {self._url}: {error}") from error

    def _read(self, data: Mapping[str, Any]) -> Reply:
        try:
            return read_reply(data)
        except ValueError as error:
            raise SessionFault(
                f"The server at {self._url} does not follow OpenEnv's protocol: {error}"
            ) from error

    async def _ask_for_tools(self, session: Session) -> None:
        """Request MCP's tools/list once; a server without MCP answers with an error and has no
        tools.
        """
        if self._tools_known:
            return
        request = {"jsonrpc": "2.0", "method": "tools/list", "params": {}, "id": 1}
        try:
            answer = await session.ask("mcp", request, answer="mcp")
        except ServerRefused:  # a server older than this message
            answer = {}
        result = answer.get("result")
        listed = result.get("tools", []) if isinstance(result, dict) else []
        if not isinstance(listed, list):
            raise SessionFault(f"The server at {self._url} lists {shortened(listed)} as its tools")
        tools = [_tool(entry, url=self._url) for entry in listed]
        if self._form.tools_only and not tools:
            raise EpisodeFailed(
                f"The environment at {self._url} has neither tools nor an action field that takes "
                "text: let the server list its tools or that field, or name the field in "
                "env.kwargs.action_field"
            )
        self._form = dataclasses.replace(self._form, tools=tuple(tools))
        self._tools_known = True


@functools.cache  # one warning per process
def _note_opening_reward(url: str) -> None:
    logger.warning(
        "The environment at %s sends a reward with reset, where no action earned it, so it is not "
        "counted: let the server send it with a step.",
        url,
    )


def refuse_row(row: object) -> None:
    """Raises ValueError: the server asks the questions."""
    raise ValueError(
        "env=openenv takes its questions from the server and takes no rows of files: leave "
        "data.train_files and data.val_files out."
    )


def _tool_result(observation: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool's answer: the text parts of MCP's result, its error, or the observation."""
    error, result = observation.get("error"), observation.get("result")
    if isinstance(error, dict):
        return {"text": f"Error: {error.get('message', 'no reason given')}."}
    content = result.get("content") if isinstance(result, dict) else None
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = [str(part.get("text", f"[{part.get('type')}]")) for part in content]
        return {"text": "\n".join(texts)}
    if result is not None:
        return {"text": result} if isinstance(result, str) else {"result": result}
    return {name: value for name, value in observation.items() if name != "tool_name"}


def _tool(entry: Any, *, url: str) -> ToolDescription:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise SessionFault(f"The server at {url} lists {shortened(entry)} as a tool")
    schema = entry.get("inputSchema", entry.get("input_schema", {}))
    if not isinstance(schema, dict):
        raise SessionFault(f"The server at {url} lists a tool with the schema {shortened(schema)}")
    return ToolDescription(entry["name"], str(entry.get("description") or ""), schema)
