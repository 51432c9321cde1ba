"""A text episode: prompt, the model's turn, what the environment says to it, the next turn, … in
tokens all along.

Single-turn is the case in which the environment ends the episode after the first turn. What was
generated goes back in as it came out; only what the environment says is tokenized, once. Those
tokens stand in the response with a zero in `response_mask`, so that the loss leaves them alone.
`max_response_length` counts everything after the prompt, over all turns.

An episode of which the budget is spent is truncated: the environment still sees the last text, and
what it gives for it counts. Where the engine was interrupted (an update of the weights, for
example), the turn goes on behind the tokens that are there, and each token keeps the version of the
weights that it came from. Environments with several agents give a trajectory for each.
"""

# P prompt token, T response token

import asyncio
import functools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from envs.text import GRADED, GROUND_TRUTH, MESSAGES, REWARD_PARTS, VERDICT, Message, Role, message
from siirl.engine.rollout.generation import (
    FinishReason,
    GenerationRequest,
    GenerationResponse,
    TextEngine,
)
from siirl.engine.rollout.stop_strings import split_stop
from siirl.engine.rollout.workflow import EpisodeRequest, RolloutWorkflow, Trajectory
from siirl.env_server.pool import EnvPool
from siirl.errors import ConfigError, SimulationFailed, UnknownNameError

TEXT_COLUMNS = ("response_text", "ground_truth", "data_source", "extra_info", "prompt_messages")
"""String columns that a reward may read; `ground_truth`, `extra_info` and `prompt_messages` are
JSON.
"""
ROW = "row"  # the option of reset that is a whole row with the prompt columns
_PROMPTS_KEPT = (
    1024  # encoded prompts: the rollouts of a group ask the same, and come close to each other
)
_LOG_PROB_DIGITS = 5  # of the record, which is for reading; the row has them in full


class TurnTokenizer(Protocol):
    """What an episode needs of a tokenizer (siirl.models.chat)."""

    stop_ids: frozenset[int]
    """Tokens that end a turn."""

    def encode_prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """A chat up to where the model begins to speak."""

    def encode_turn(self, messages: Sequence[Message], *, closed: bool) -> tuple[int, ...]:
        """What comes after a turn of the model, up to where it speaks again; `closed` where it
        ended the turn with a stop token.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Tokens as text, without special ones."""


class TextWorkflow(RolloutWorkflow):
    """Episodes of language models, of one turn or several.

    Args:
        pool: Environments; an episode holds one slot of it.
        tokenizer: Between the environment's messages and the model's tokens.
        max_prompt_length: Tokens of the longest prompt; an episode with a longer one fails, and
            says so.
        max_response_length: Tokens after the prompt, those of tools among them, over all turns.
        cut_prompts: Take the last tokens of a prompt that is too long (`data.overlong_prompts=cut`)
            instead of failing.
        stop: Texts that end a turn, besides the tokenizer's stop tokens.
        text_columns: String columns wanted in the row, of `TEXT_COLUMNS`.

    Raises:
        ConfigError: A length below 1, or an unknown column.
    """

    def __init__(
        self,
        *,
        pool: EnvPool,
        tokenizer: TurnTokenizer,
        max_prompt_length: int,
        max_response_length: int,
        stop: Sequence[str] = (),
        text_columns: Collection[str] = (),
        cut_prompts: bool = False,
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
        self.pool, self.tokenizer, self.stop, self.text_columns = (
            pool,
            tokenizer,
            tuple(stop),
            tuple(text_columns),
        )
        self.max_prompt_length, self.max_response_length, self.cut_prompts = (
            max_prompt_length,
            max_response_length,
            cut_prompts,
        )
        self._encode_prompt = functools.lru_cache(maxsize=_PROMPTS_KEPT)(self._encode_chat)

    async def arun_episode(self, engine: TextEngine, data: EpisodeRequest) -> list[Trajectory]:
        """Run one episode; a trajectory for each agent.

        Raises:
            SimulationFailed: The pool could not simulate it, also not by replay; its answer cannot
                be graded; its prompt is too long.
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
            dialogues = [self._open(messages, data) for messages in self._messages(observation)]
            truncated = terminated = False
            while not (terminated or truncated):
                texts = await self._speak_all(engine, dialogues, data)
                if any(len(text) > self._most_characters() for text in texts):
                    self._leave_unscored(dialogues, graded=opening.get(GRADED, True))
                    truncated = True
                    break
                action = texts if len(dialogues) > 1 else texts[0]
                observation, rewards, terminated, truncated, info = await slot.step_chunk([action])
                self._note(dialogues, rewards, info)
                if not (terminated or truncated):
                    truncated = not self._listen(dialogues, observation)
            truncated |= any(dialogue.finish_reason == "length" for dialogue in dialogues)
        return [
            self._trajectory(dialogue, data, opening, i, truncated=truncated)
            for i, dialogue in enumerate(dialogues)
        ]

    def _messages(self, observation: Any) -> list[list[Message]]:
        """What is said to each agent."""
        observations = observation if self.pool.spec.num_agents > 1 else [observation]
        return [entry[MESSAGES] for entry in observations]

    def _most_characters(self) -> float:
        space = self.pool.spec.action_space
        return space.max_length if isinstance(space, spaces.Text) else float("inf")

    def _open(self, messages: list[Message], data: EpisodeRequest) -> "_Dialogue":
        prompt = self._encode_prompt(tuple((entry["role"], entry["content"]) for entry in messages))
        if self.cut_prompts:
            prompt = prompt[-self.max_prompt_length :]
        if len(prompt) > self.max_prompt_length:
            raise SimulationFailed(
                f"The prompt of {data.task!r} with seed {data.seed} has {len(prompt)} tokens, more than data.max_prompt_length="
                f"{self.max_prompt_length}. Raise it, or leave such prompts out."
            )
        return _Dialogue(prompt=prompt, messages=messages)

    def _encode_chat(self, chat: tuple[tuple[Role, str], ...]) -> tuple[int, ...]:
        return self.tokenizer.encode_prompt([message(role, content) for role, content in chat])

    async def _speak_all(
        self, engine: TextEngine, dialogues: "Sequence[_Dialogue]", data: EpisodeRequest
    ) -> list[str]:
        """A turn of each agent, all at once; one agent needs no task of its own, which costs as
        much as its environment.
        """
        if len(dialogues) == 1:
            return [await self._speak(engine, dialogues[0], data, 0)]
        return await asyncio.gather(
            *(self._speak(engine, dialogue, data, i) for i, dialogue in enumerate(dialogues))
        )

    async def _speak(
        self, engine: TextEngine, dialogue: "_Dialogue", data: EpisodeRequest, agent: int
    ) -> str:
        """One turn of the model, taken up again as often as it is interrupted; its text."""
        start, turn, part = len(dialogue.tokens), len(dialogue.texts), 0
        while True:
            request = GenerationRequest(
                uid=_uid(data, agent, self.pool.spec.num_agents),
                input_ids=(*dialogue.prompt, *dialogue.tokens),
                max_new_tokens=self.max_response_length - len(dialogue.tokens),
                seed=(*data.policy_seed, agent, turn, part),
                greedy=data.greedy,
                stop=self.stop,
            )
            begun = len(dialogue.tokens)
            dialogue.say(await engine.agenerate(request))
            if part > 0:
                self._end_at_split_stop(dialogue, start, begun)
            if (
                len(dialogue.tokens) >= self.max_response_length
                and dialogue.finish_reason == "abort"
            ):
                dialogue.finish_reason = "length"
            if dialogue.finish_reason != "abort":
                break
            part += 1
        spoken = dialogue.tokens[start:]
        dialogue.closed = spoken[-1] in self.tokenizer.stop_ids
        text = self.tokenizer.decode(spoken[:-1] if dialogue.closed else spoken)
        dialogue.end_turn(text, start)
        return text

    def _end_at_split_stop(self, dialogue: "_Dialogue", start: int, begun: int) -> None:
        """End a turn that began at token `start` where a stop string lies across `begun`, where it
        was taken up again.

        What was generated behind it is dropped: nobody has seen it.
        """
        end = split_stop(
            dialogue.tokens[start:], begun - start, stop=self.stop, decode=self.tokenizer.decode
        )
        if end is not None:
            dialogue.cut(start + end)

    def _listen(self, dialogues: "Sequence[_Dialogue]", observation: Any) -> bool:
        """Append what the environment said; whether every agent has tokens left to answer with."""
        said = list(zip(dialogues, self._messages(observation), strict=True))
        heard = [
            self.tokenizer.encode_turn(messages, closed=dialogue.closed)
            for dialogue, messages in said
        ]
        if any(
            len(dialogue.tokens) + len(new) >= self.max_response_length
            for dialogue, new in zip(dialogues, heard, strict=True)
        ):
            return False
        for (dialogue, messages), new in zip(said, heard, strict=True):
            dialogue.hear(new, messages)
        return True

    def _note(
        self, dialogues: "Sequence[_Dialogue]", rewards: Any, info: Mapping[str, Any]
    ) -> None:
        """Give each agent its reward and what the grader said."""
        if self.pool.spec.num_agents == 1:
            dialogues[0].note(rewards, info)
            return
        for dialogue, reward, of_agent in zip(dialogues, rewards, info["agents"], strict=True):
            dialogue.note(reward, of_agent)

    def _leave_unscored(self, dialogues: "Sequence[_Dialogue]", *, graded: bool) -> None:
        """A text that the environment would refuse ends the episode: it gets no reward, and is not
        cut into another text.
        """
        verdict = f"a text has more than the {self._most_characters()} characters that the environment takes"
        for dialogue in dialogues:
            dialogue.note(0.0, {"success": False if graded else None, VERDICT: verdict})

    def _trajectory(
        self,
        dialogue: "_Dialogue",
        data: EpisodeRequest,
        opening: Mapping[str, Any],
        agent: int,
        *,
        truncated: bool,
    ) -> Trajectory:
        uid, truth = _uid(data, agent, self.pool.spec.num_agents), _ground_truth(data, opening)
        texts = {
            "response_text": lambda: self.tokenizer.decode(dialogue.tokens),
            "ground_truth": lambda: json.dumps(truth),
            "data_source": lambda: str(opening.get("data_source", data.task)),
            "extra_info": lambda: json.dumps(data.options.get(ROW, {}).get("extra_info") or {}),
            "prompt_messages": lambda: json.dumps(dialogue.messages),
        }
        row = dialogue.row(data, uid=uid, truncated=truncated) | {
            name: texts[name]() for name in self.text_columns
        }
        record = dialogue.record() | {"ground_truth": truth}
        return Trajectory(row=row, instruction=dialogue.messages[-1]["content"], record=record)


@dataclass
class _Dialogue:
    """What one agent has heard and said so far."""

    prompt: tuple[int, ...]
    messages: list[Message]
    tokens: list[int] = field(default_factory=list)
    """Its own and those that it heard, as all columns of the response."""
    mask: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    """The environment's, each at the last token of its turn."""
    versions: list[int] = field(default_factory=list)
    """Of its own tokens alone."""
    texts: list[str] = field(default_factory=list)
    turns: list[dict[str, Any]] = field(default_factory=list)
    """For reading: its own, and in between what was said to it."""
    finish_reason: FinishReason = "abort"
    closed: bool = False
    """Whether its last turn ended with a stop token."""
    env_return: float = 0.0
    reward_parts: dict[str, float] = field(default_factory=dict)
    verdict: str = ""
    success: bool = False
    graded: bool = True
    """Whether the environment says how the episode went; where not, its return and success mean
    nothing.
    """

    def say(self, response: GenerationResponse) -> None:
        """Append what the model said."""
        count = len(response.tokens)
        self.tokens += response.tokens.tolist()
        self.log_probs += response.log_probs.tolist()
        self.versions += response.versions.tolist()
        self.mask += [1] * count
        self.rewards += [0.0] * count
        self.finish_reason = response.finish_reason

    def cut(self, length: int) -> None:
        """Keep `length` tokens, the last of which ended its turn with a stop string; all that go
        were its own.
        """
        gone = len(self.tokens) - length
        for column in (self.tokens, self.log_probs, self.mask, self.rewards, self.versions):
            del column[len(column) - gone :]
        self.finish_reason = "stop"

    def hear(self, tokens: Sequence[int], messages: list[Message]) -> None:
        """Append what was said to it; not to be learnt."""
        self.tokens += tokens
        self.log_probs += [0.0] * len(tokens)
        self.mask += [0] * len(tokens)
        self.rewards += [0.0] * len(tokens)
        self.turns += [dict(entry) for entry in messages]

    def end_turn(self, text: str, start: int) -> None:
        """The model's turn is over; it began at token `start`."""
        self.texts.append(text)
        log_probs = [round(value, _LOG_PROB_DIGITS) for value in self.log_probs[start:]]
        self.turns.append(
            {
                "role": "assistant",
                "content": text,
                "tokens": self.tokens[start:],
                "log_probs": log_probs,
            }
        )

    def note(self, reward: float, info: Mapping[str, Any]) -> None:
        """What the environment gave for the last turn, which is the end of what there is so far."""
        self.env_return += float(reward)
        self.rewards[-1] = float(reward)
        for name, value in info.get(REWARD_PARTS, {}).items():
            self.reward_parts[name] = self.reward_parts.get(name, 0.0) + float(value)
        success = info.get("success", False)
        self.verdict, self.success, self.graded = (
            str(info.get(VERDICT, "")),
            bool(success),
            success is not None,
        )

    def row(self, data: EpisodeRequest, *, uid: str, truncated: bool) -> dict[str, Any]:
        """The sample that training sees."""
        prompts, responses = np.array(self.prompt, np.int64), np.array(self.tokens, np.int64)
        return {
            "uid": uid,
            "index": data.group_id,
            "task_name": data.task,
            "task_id": data.task_id,
            "trial_id": data.trial_id,
            "seed": data.seed,
            "policy_version": min(self.versions),
            "prompts": prompts,
            "responses": responses,
            "response_mask": np.array(self.mask, np.int64),
            "input_ids": np.concatenate([prompts, responses]),
            "attention_mask": np.ones(len(prompts) + len(responses), np.int64),
            "position_ids": np.arange(len(prompts) + len(responses)),
            "rollout_log_probs": np.array(self.log_probs, np.float32),
            "finish_step": len(self.texts),
            "complete": self.success,
            "graded": self.graded,
            "truncated": bool(truncated),
            "env_return": self.env_return,
            "env_rewards": np.array(self.rewards, np.float32),
        }

    def record(self) -> dict[str, Any]:
        """What a person wants to read."""
        return {
            "prompt": [dict(entry) for entry in self.messages],
            "turns": self.turns,
            "reward_parts": self.reward_parts,
            "verdict": self.verdict,
            "finish_reason": self.finish_reason,
        }


def _uid(data: EpisodeRequest, agent: int, agents: int) -> str:
    return data.uid if agents == 1 else f"{data.uid}-a{agent}"


def _reset_options(data: EpisodeRequest) -> dict[str, Any]:
    """A row is a task of its own; the environment need not know its source by name."""
    return dict(data.options) if ROW in data.options else {"task": data.task, **data.options}


def _ground_truth(data: EpisodeRequest, opening: Mapping[str, Any]) -> Any:
    """The row's own where the request brought one, else what the environment says; None where
    neither does.
    """
    if ROW in data.options:
        return data.options[ROW]["reward_model"]["ground_truth"]
    return opening.get(GROUND_TRUTH)
