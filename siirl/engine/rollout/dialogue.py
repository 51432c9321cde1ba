"""Messages and tokens of one agent in a text episode, and the training row made from them."""

# T response token

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envs.text import REWARD_PARTS, VERDICT, Message
from siirl.engine.rollout.generation import FinishReason, GenerationResponse
from siirl.engine.rollout.workflow import EpisodeRequest
from siirl.errors import SimulationFailed

if TYPE_CHECKING:  # the module imports Pillow
    from siirl.models.seen_pictures import Pictures

_LOG_PROB_DIGITS = 5  # in the record for human readers; the row has full precision
_ROOM = 64  # a proposed length of prompts is a multiple of it, because questions differ in length


@dataclass
class Dialogue:
    """The messages and tokens of one agent so far."""

    prompt: tuple[int, ...]
    messages: list[Message]
    pictures: "Pictures | None" = None
    """Pictures in the prompt; None for a text-only model."""
    tokens: list[int] = field(default_factory=list)
    """Generated tokens and tokens of messages, like all columns of the response."""
    mask: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    """Rewards of the environment, each at the last token of its turn."""
    versions: list[int] = field(default_factory=list)
    """Version of the weights that generated each token."""
    texts: list[str] = field(default_factory=list)
    turns: list[dict[str, Any]] = field(default_factory=list)
    """For human readers: turns of the model and the messages between them."""
    finish_reason: FinishReason = "abort"
    closed: bool = False
    """Whether its last turn ended with a stop token."""
    env_return: float = 0.0
    reward_parts: dict[str, float] = field(default_factory=dict)
    verdict: str = ""
    success: bool = False
    graded: bool = True
    """Whether the environment graded the episode; if not, return and success are meaningless."""

    def say(self, response: GenerationResponse) -> None:
        """Append the model's tokens."""
        count = len(response.tokens)
        self.tokens += response.tokens.tolist()
        self.log_probs += response.log_probs.tolist()
        self.versions += response.versions.tolist()
        self.mask += [1] * count
        self.rewards += [0.0] * count
        self.finish_reason = response.finish_reason

    def cut(self, length: int) -> None:
        """Keep `length` tokens; the last one ends a stop string. All dropped tokens were
        generated.
        """
        gone = len(self.tokens) - length
        for column in (self.tokens, self.log_probs, self.mask, self.rewards, self.versions):
            del column[len(column) - gone :]
        self.finish_reason = "stop"

    def hear(self, tokens: Sequence[int], messages: list[Message]) -> None:
        """Append messages to the agent; the loss ignores their tokens."""
        self.tokens += tokens
        self.log_probs += [0.0] * len(tokens)
        self.mask += [0] * len(tokens)
        self.rewards += [0.0] * len(tokens)
        self.turns += [dict(entry) for entry in messages]

    def end_turn(self, text: str, start: int) -> None:
        """End the model's turn, which began at token `start`.

        Its record has the versions of its tokens if they are not all the oldest of the episode.
        """
        self.texts.append(text)
        log_probs = [round(value, _LOG_PROB_DIGITS) for value in self.log_probs[start:]]
        turn = {
            "role": "assistant",
            "content": text,
            "tokens": self.tokens[start:],
            "log_probs": log_probs,
        }
        versions = self.versions[len(self.versions) - len(log_probs) :]
        if {*versions} - {min(self.versions, default=0)}:
            turn["policy_versions"] = versions
        self.turns.append(turn)

    def note(self, reward: float, info: Mapping[str, Any] | None) -> None:
        """Record the environment's reward and grading of the last turn, at the last token.

        `info` is None if the environment reports nothing about the agent. The agent's last turn may
        then be an earlier one.
        """
        self.env_return += float(reward)
        self.rewards[-1] += float(reward)
        if info is None:
            return
        for name, value in info.get(REWARD_PARTS, {}).items():
            self.reward_parts[name] = self.reward_parts.get(name, 0.0) + float(value)
        success = info.get("success", False)
        self.verdict = str(info.get(VERDICT, ""))
        self.success = bool(success)
        self.graded = success is not None

    def row(self, data: EpisodeRequest, *, uid: str, truncated: bool) -> dict[str, Any]:
        """The training sample."""
        prompts = np.array(self.prompt, np.int64)
        responses = np.array(self.tokens, np.int64)
        whole = np.concatenate([prompts, responses])
        seen = {} if self.pictures is None else self.pictures.columns(whole)
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
            "input_ids": whole,
            "attention_mask": np.ones(len(whole), np.int64),
            "position_ids": np.arange(len(whole)),
            "rollout_log_probs": np.array(self.log_probs, np.float32),
            "finish_step": len(self.texts),
            "complete": self.success,
            "graded": self.graded,
            "truncated": bool(truncated),
            "env_return": self.env_return,
            "env_rewards": np.array(self.rewards, np.float32),
            **seen,
        }

    def versions_of_tokens(self) -> NDArray[np.int64]:
        """Version of the weights that generated each token; 0 for tokens of messages."""
        mask_T = np.array(self.mask, np.int64)
        mask_T[mask_T == 1] = self.versions
        return mask_T

    def record(self) -> dict[str, Any]:
        """The episode for human readers."""
        return {
            "prompt": [dict(entry) for entry in self.messages],
            "turns": self.turns,
            "reward_parts": self.reward_parts,
            "verdict": self.verdict,
            "finish_reason": self.finish_reason,
        }


def prompt_too_long(
    data: EpisodeRequest, *, tokens: int, longest: int, of_file: bool
) -> SimulationFailed:
    """The failure of an episode whose prompt has more than `longest` tokens.

    Args:
        data: The episode.
        tokens: Tokens of its prompt.
        longest: `data.max_prompt_length`.
        of_file: Whether the prompt is a row of a file, which can be left out.
    """
    if of_file:
        remedy = "Raise it, or leave such prompts out."
    else:
        remedy = (
            f"Raise it to {-(-tokens // _ROOM) * _ROOM} or more, or shorten in env.kwargs what the "
            "environment asks and which tools it announces."
        )
    return SimulationFailed(
        f"The prompt of {data.task!r} with seed {data.seed} has {tokens} tokens, more than "
        f"data.max_prompt_length={longest}. {remedy}"
    )
