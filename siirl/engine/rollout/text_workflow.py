"""A text episode in tokens: the prompt, a turn of the model, the environment's reply, and so on.

A single-turn environment ends the episode after the first turn. Generated tokens go back into the
model unchanged; only the environment's messages are tokenized, once. Their tokens are part of the
response, with 0 in `response_mask`, so that the loss ignores them. `max_response_length` counts all
tokens after the prompt, over all turns.

An episode that has used up its tokens is truncated: the environment still grades the last text, and
the reward counts. If the engine is interrupted, for example by a weight update, the turn continues
after its tokens so far, and each token keeps the version of the weights that generated it. An
environment with several agents yields a trajectory for each agent that generated. Agents with an
observation generate concurrently while the others wait; each agent has one dialogue over all its
turns.
"""

# P prompt token, T response token

import asyncio
import functools
import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gymnasium import spaces

from envs.base import acting_agents
from envs.question_pictures import PictureSource
from envs.text import GRADED, GROUND_TRUTH, MESSAGES, VERDICT, Message, Role, message
from siirl.engine.rollout.dialogue import Dialogue, prompt_too_long
from siirl.engine.rollout.generation import EngineWithTokenizer, GenerationRequest, TextEngine
from siirl.engine.rollout.stop_strings import split_stop
from siirl.engine.rollout.workflow import EpisodeRequest, RolloutWorkflow, Trajectory
from siirl.env_server.pool import EnvPool
from siirl.errors import ConfigError, SimulationFailed, UnknownNameError
from siirl.models.chat import ChatTokenizer
from siirl.params.references import check_call, load_reference

TEXT_COLUMNS = ("response_text", "ground_truth", "data_source", "extra_info", "prompt_messages")
"""String columns for rewards; `ground_truth`, `extra_info`, `prompt_messages` are JSON."""
ROW = "row"  # option of reset: a whole row with the prompt columns
# Encoded prompts in the cache: the rollouts of a group share a prompt and run close together.
_PROMPTS_KEPT = 1024
IMAGES = "images"  # of such a row
_WORKFLOW_KEY = "actor_rollout_ref.rollout.workflow"


class TextWorkflow(RolloutWorkflow):
    """Episodes of language models, of one turn or several.

    Args:
        pool: Environments; an episode holds one slot of it.
        tokenizer: Converts between the environment's messages and the model's tokens.
        max_prompt_length: Tokens of the longest prompt; an episode with a longer one fails.
        max_response_length: Tokens after the prompt, including those of tools, over all turns.
        cut_prompts: Keep the last tokens of a prompt that is too long (`data.overlong_prompts=cut`)
            instead of failing.
        stop: Strings that end a turn, in addition to the tokenizer's stop tokens.
        text_columns: String columns to add to the row, of `TEXT_COLUMNS`.
        played_by: Agent group that plays each of the environment's agents, if these have roles.

    Raises:
        ConfigError: A length below 1, or an unknown column.
    """

    def __init__(
        self,
        *,
        pool: EnvPool,
        tokenizer: ChatTokenizer,
        max_prompt_length: int,
        max_response_length: int,
        stop: Sequence[str] = (),
        text_columns: Collection[str] = (),
        cut_prompts: bool = False,
        played_by: Sequence[int] = (),
    ) -> None:
        for name, length in (
            ("max_prompt_length", max_prompt_length),
            ("max_response_length", max_response_length),
        ):
            if length < 1:
                raise ConfigError(f"data.{name}={length} must be at least 1.")
        for name in text_columns:
            if name not in TEXT_COLUMNS:
                raise UnknownNameError.of(kind="text column", name=name, known=TEXT_COLUMNS)
        self.pool = pool
        self.tokenizer = tokenizer
        self.tokenizers: Mapping[int, ChatTokenizer] = {}
        """Tokenizers of agents that other groups play; other agents use `tokenizer`."""
        self.played_by = tuple(played_by)
        self.stop = tuple(stop)
        self.text_columns = tuple(text_columns)
        self.max_prompt_length = max_prompt_length
        self.max_response_length = max_response_length
        self.cut_prompts = cut_prompts
        self.marks_versions = False
        """Whether rows get the column `policy_versions`, because new weights may arrive within an
        episode."""
        self._encode_prompt = functools.lru_cache(maxsize=_PROMPTS_KEPT)(self._encode_chat)

    async def arun_episode(self, engine: TextEngine, data: EpisodeRequest) -> list[Trajectory]:
        """Run one episode; returns a trajectory for each agent.

        Raises:
            SimulationFailed: The pool could not simulate it, even by replay; its answer cannot be
                graded; or its prompt is too long.
            ConfigError: The environment refuses the prompt.
        """
        async with self.pool.slot() as slot:
            try:
                observation, opening = await slot.reset(
                    seed=data.seed, options=_reset_options(data)
                )
            except ValueError as error:
                raise ConfigError(
                    f"env.name={self.pool.spec.name} refuses a prompt of {data.task!r}: {error}"
                ) from error
            agents, dialogues = self.pool.spec.num_agents, dict[int, Dialogue]()
            self._listen(dialogues, observation, data)
            truncated = terminated = False
            while not (terminated or truncated):
                acting = acting_agents(observation, spec=self.pool.spec)
                texts = await self._speak_all(engine, {i: dialogues[i] for i in acting}, data)
                if any(len(text) > self._most_characters() for text in texts.values()):
                    self._leave_unscored(dialogues, graded=opening.get(GRADED, True))
                    truncated = True
                    break
                action = [texts.get(i) for i in range(agents)] if agents > 1 else texts[0]
                observation, rewards, terminated, truncated, info = await slot.step_chunk([action])
                self._note(dialogues, rewards, info)
                if not (terminated or truncated):
                    truncated = not self._listen(dialogues, observation, data)
            truncated |= any(dialogue.finish_reason == "length" for dialogue in dialogues.values())
        return [
            self._trajectory(dialogue, data, opening, i, truncated=truncated)
            for i, dialogue in sorted(dialogues.items())
            if dialogue.texts
        ]

    def engine_with_tokenizer(self, engine: TextEngine) -> EngineWithTokenizer:
        """See `RolloutWorkflow.engine_with_tokenizer`."""
        return EngineWithTokenizer(engine, self.tokenizer)

    def _tokenizer_of(self, agent: int) -> ChatTokenizer:
        return self.tokenizers.get(agent, self.tokenizer)

    def _most_characters(self) -> float:
        space = self.pool.spec.action_space
        return space.max_length if isinstance(space, spaces.Text) else float("inf")

    def _open(self, agent: int, messages: list[Message], data: EpisodeRequest) -> Dialogue:
        chat = tuple((entry["role"], entry["content"]) for entry in messages)
        sources = tuple(
            PictureSource.of(entry) for entry in data.options.get(ROW, {}).get(IMAGES, ())
        )
        try:
            prompt = self._encode_prompt(agent, chat, sources)
            pictures = self._tokenizer_of(agent).pictures_of(sources)
        except ValueError as error:
            raise SimulationFailed(
                f"The pictures of {data.task!r}, row {data.trial_id}: {error}."
            ) from error
        if self.cut_prompts and not sources:  # a part of a picture would be unusable
            prompt = prompt[-self.max_prompt_length :]
        if len(prompt) > self.max_prompt_length:
            raise prompt_too_long(
                data,
                tokens=len(prompt),
                longest=self.max_prompt_length,
                of_file=ROW in data.options,
            )
        return Dialogue(prompt=prompt, messages=messages, pictures=pictures)

    def _encode_chat(
        self,
        agent: int,
        chat: tuple[tuple[Role, str], ...],
        sources: tuple[PictureSource, ...],
    ) -> tuple[int, ...]:
        messages = [message(role, content) for role, content in chat]
        return self._tokenizer_of(agent).encode_prompt(messages, sources)

    async def _speak_all(
        self, engine: TextEngine, dialogues: Mapping[int, Dialogue], data: EpisodeRequest
    ) -> dict[int, str]:
        """Run a turn of each of these agents concurrently; returns their texts."""
        # A single agent runs without an asyncio task, which would cost as much as its environment.
        if len(dialogues) == 1:
            [(agent, dialogue)] = dialogues.items()
            return {agent: await self._speak(engine, dialogue, data, agent)}
        texts = await asyncio.gather(
            *(self._speak(engine, dialogue, data, i) for i, dialogue in dialogues.items())
        )
        return dict(zip(dialogues, texts, strict=True))

    async def _speak(
        self, engine: TextEngine, dialogue: Dialogue, data: EpisodeRequest, agent: int
    ) -> str:
        """Run one turn of the model, resumed after each interruption; returns its text."""
        start, tokenizer = len(dialogue.tokens), self._tokenizer_of(agent)
        turn = len(dialogue.texts)
        part = 0
        while True:
            request = GenerationRequest(
                uid=_uid(data, agent, self.pool.spec.num_agents),
                input_ids=(*dialogue.prompt, *dialogue.tokens),
                max_new_tokens=self.max_response_length - len(dialogue.tokens),
                seed=(*data.policy_seed, agent, turn, part),
                greedy=data.greedy,
                stop=self.stop,
                episode=data.uid,
                agent=agent,
                pictures=dialogue.pictures,
            )
            begun = len(dialogue.tokens)
            dialogue.say(await engine.agenerate(request))
            if part > 0:
                self._end_at_split_stop(dialogue, start, begun, agent)
            if (
                len(dialogue.tokens) >= self.max_response_length
                and dialogue.finish_reason == "abort"
            ):
                dialogue.finish_reason = "length"
            if dialogue.finish_reason != "abort":
                break
            part += 1
        spoken = dialogue.tokens[start:]
        dialogue.closed = spoken[-1] in tokenizer.stop_ids
        text = tokenizer.decode(spoken[:-1] if dialogue.closed else spoken)
        dialogue.end_turn(text, start)
        return text

    def _end_at_split_stop(self, dialogue: Dialogue, start: int, begun: int, agent: int) -> None:
        """End the turn begun at token `start` if a stop string spans its resumption at `begun`.

        Tokens generated after the stop string are dropped.
        """
        end = split_stop(
            dialogue.tokens[start:],
            begun - start,
            stop=self.stop,
            decode=self._tokenizer_of(agent).decode,
        )
        if end is not None:
            dialogue.cut(start + end)

    def _listen(
        self, dialogues: dict[int, Dialogue], observation: Any, data: EpisodeRequest
    ) -> bool:
        """Append the environment's messages, if every agent then has tokens left to answer.

        The first messages to an agent are its prompt.
        """
        heard = []
        observations = observation if self.pool.spec.num_agents > 1 else [observation]
        for agent, entry in enumerate(observations):
            if entry is None:
                continue
            messages, dialogue = entry[MESSAGES], dialogues.get(agent)
            if dialogue is None:
                dialogues[agent] = self._open(agent, messages, data)
                continue
            tokens = self._tokenizer_of(agent).encode_turn(messages, closed=dialogue.closed)
            if len(dialogue.tokens) + len(tokens) >= self.max_response_length:
                return False
            heard.append((dialogue, tokens, messages))
        for dialogue, tokens, messages in heard:
            dialogue.hear(tokens, messages)
        return True

    def _note(
        self, dialogues: Mapping[int, Dialogue], rewards: Any, info: Mapping[str, Any]
    ) -> None:
        """Record each agent's reward and grading."""
        if self.pool.spec.num_agents == 1:
            dialogues[0].note(rewards, info)
            return
        for agent, (reward, of_agent) in enumerate(zip(rewards, info["agents"], strict=True)):
            if agent in dialogues and dialogues[agent].tokens:
                dialogues[agent].note(reward, of_agent)
            elif reward:
                raise SimulationFailed(
                    f"Environment {self.pool.spec.name!r} rewards agent {agent} with {reward} "
                    "before its first action; envs.checker.check_env finds such faults."
                )

    def _leave_unscored(self, dialogues: Mapping[int, Dialogue], *, graded: bool) -> None:
        """End the episode with reward 0 if a text exceeds the environment's limit.

        The text is not truncated.
        """
        verdict = (
            f"a text has more than {self._most_characters()} characters, the environment's limit"
        )
        for dialogue in dialogues.values():
            dialogue.note(0.0, {"success": False if graded else None, VERDICT: verdict})

    def _trajectory(
        self,
        dialogue: Dialogue,
        data: EpisodeRequest,
        opening: Mapping[str, Any],
        agent: int,
        *,
        truncated: bool,
    ) -> Trajectory:
        uid = _uid(data, agent, self.pool.spec.num_agents)
        truth = _ground_truth(data, opening)
        texts = {
            "response_text": lambda: self._tokenizer_of(agent).decode(dialogue.tokens),
            "ground_truth": lambda: json.dumps(truth),
            "data_source": lambda: str(opening.get("data_source", data.task)),
            "extra_info": lambda: json.dumps(data.options.get(ROW, {}).get("extra_info") or {}),
            "prompt_messages": lambda: json.dumps(dialogue.messages),
        }
        row = dialogue.row(data, uid=uid, truncated=truncated) | {
            name: texts[name]() for name in self.text_columns
        }
        if self.played_by:
            row |= {"agent": agent, "agent_group": self.played_by[agent]}
        if self.marks_versions:
            row["policy_versions"] = dialogue.versions_of_tokens()
        record = dialogue.record() | {"ground_truth": truth}
        return Trajectory(row=row, instruction=dialogue.messages[-1]["content"], record=record)


def _uid(data: EpisodeRequest, agent: int, agents: int) -> str:
    return data.uid if agents == 1 else f"{data.uid}-a{agent}"


def _reset_options(data: EpisodeRequest) -> dict[str, Any]:
    """Options with the task, or without it if the request has a row (the row is then the task).

    Pictures are left out: the environment sees only the text of the row.
    """
    if ROW not in data.options:
        return {"task": data.task, **data.options}
    row = {name: value for name, value in data.options[ROW].items() if name != IMAGES}
    return {**data.options, ROW: row}


def _ground_truth(data: EpisodeRequest, opening: Mapping[str, Any]) -> Any:
    """Ground truth of the request's row, else the environment's; None if neither has one."""
    if ROW in data.options:
        return data.options[ROW]["reward_model"]["ground_truth"]
    return opening.get(GROUND_TRUTH)


def make_text_workflow(reference: str | None, **arguments: Any) -> RolloutWorkflow:
    """Make `TextWorkflow`, or a user's workflow with the same arguments.

    Args:
        reference: `module:name` of a class or function; None: `TextWorkflow`.
        arguments: Arguments of `TextWorkflow`, by name; a user's workflow may take `**kwargs` for
            those it does not use.

    Raises:
        ConfigError: It cannot be imported or called with these arguments, or does not make a
            RolloutWorkflow.
    """
    if reference is None:
        return TextWorkflow(**arguments)
    workflow = _maker(reference, arguments)(**arguments)
    if not isinstance(workflow, RolloutWorkflow):
        raise _no_workflow(reference, f"made a {type(workflow).__name__}")
    return workflow


def check_own_workflow(reference: str, *, has_roles: bool) -> None:
    """Refuse a user's workflow by its signature and its class, without making it.

    Args:
        reference: `module:name`.
        has_roles: Whether it gets `played_by`.

    Raises:
        ConfigError: It cannot be imported or called with the arguments of `TextWorkflow`, or is a
            class that is no RolloutWorkflow. What a function returns is not checked.
    """
    names = inspect.signature(TextWorkflow).parameters.keys()
    make = _maker(reference, dict.fromkeys(names if has_roles else names - {"played_by"}))
    if isinstance(make, type) and not issubclass(make, RolloutWorkflow):
        raise _no_workflow(reference, "is another class")


def _maker(reference: str, arguments: Mapping[str, Any]) -> Callable[..., Any]:
    make: Callable[..., Any] = load_reference(reference, place=_WORKFLOW_KEY)
    names = ", ".join(f"{name}=…" for name in arguments)
    check_call(make, (), arguments, place=f"{_WORKFLOW_KEY}={reference}", call=f"({names})")
    return make


def _no_workflow(reference: str, found: str) -> ConfigError:
    return ConfigError(
        f"{_WORKFLOW_KEY}={reference} {found}; it must be a "
        "siirl.engine.rollout.workflow.RolloutWorkflow."
    )
