"""A text engine with scripted answers, and a tokenizer with one token per byte: episodes that can
be followed by hand.

The tokens are the bytes of the text; END closes a turn, and USER, TOOL and MODEL open one.
"""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from envs.arguments import read_options
from envs.base import Environment, EpisodeFailed, checked_turns
from envs.math.math_env import MathEnv
from envs.text import message, observe, text_spec
from siirl.engine.rollout.generation import GenerationRequest, GenerationResponse

END, USER, TOOL, MODEL = 256, 257, 258, 259
MARKS = {"system": USER, "user": USER, "tool": TOOL}


class ByteTokenizer:
    """`USER` text `END` … `MODEL` is a prompt."""

    stop_ids = frozenset({END})

    def encode_prompt(self, messages, pictures=()):
        return (*self._said(messages), MODEL)

    def pictures_of(self, sources):
        return None

    def encode_turn(self, messages, *, closed):
        return (*([] if closed else [END]), *self._said(messages), MODEL)

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < 256).decode()

    def _said(self, messages):
        return [
            token
            for entry in messages
            for token in (MARKS[entry["role"]], *entry["content"].encode(), END)
        ]


class ScriptedEngine:
    """Generates `script(request)`, and END after it; the log-prob of a token is -1/100 of its
    number in the request.

    Args:
        script: The text of a turn.
        pause: Tokens after which a request gives way to others; 0 never.
    """

    def __init__(self, script: Callable[[GenerationRequest], str], *, pause: int = 0) -> None:
        self.script, self.pause = script, pause
        self.policy_version = 0
        self.rests = 0
        self.requests: list[GenerationRequest] = []
        self.running, self.most_running, self.announced, self.ended, self.interrupts, self.said = (
            0,
            0,
            0,
            0,
            0,
            0,
        )

    def expect(self, *, episodes: int, at_once: int) -> None:
        self.announced += episodes

    def episode_ended(self) -> None:
        self.ended += 1

    async def agenerate(self, request: GenerationRequest) -> GenerationResponse:
        self.requests.append(request)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        interrupts, wanted = self.interrupts, [*self.script(request).encode(), END]
        await asyncio.sleep(0)
        tokens, versions = [], []
        reason = "stop"
        for token in wanted:
            if self.pause and len(tokens) % self.pause == 0:
                await asyncio.sleep(0)
            if self.interrupts > interrupts:
                reason = "abort"
                break
            if len(tokens) == request.max_new_tokens:
                reason = "length"
                break
            tokens.append(token)
            self.said += 1
            versions.append(self.policy_version)
        self.running -= 1
        log_probs = -np.arange(1, len(tokens) + 1, dtype=np.float32) / 100
        return GenerationResponse(
            np.array(tokens, np.int64), log_probs, np.array(versions, np.int64), reason
        )

    def rest(self) -> None:
        self.rests += 1

    def interrupt(self) -> None:
        self.interrupts += 1

    def update_weights(self, version: int) -> None:
        self.policy_version = version

    def take_stats(self):
        calls = float(len(self.requests))
        return {"busy_s": 0.0, "calls": calls, "forward_passes": calls, "tokens": 0.0}

    def take_memory(self):
        return {}

    def close(self) -> None:
        self.closed = True


class UngradableEnv(MathEnv):
    """Questions whose grader fails."""

    async def step(self, action):
        raise EpisodeFailed("the grader was killed")


class ThreeTurnsEnv(Environment):
    """Asks twice more after any answer; the reward of a turn is 1."""

    def __init__(self):
        self.spec = text_spec(
            name="three turns", tasks=["more"], max_turns=3, max_action_characters=10_000
        )
        self.turns = 0

    async def reset(self, *, seed=None, options=None):
        self.turns = 0
        return observe([message("user", f"Say {seed}.")]), {"task": "more"}

    async def step(self, action):
        self.turns += 1
        done = self.turns == 3
        info = {"success": done, "reward_parts": {"said": 1.0}, "verdict": f"turn {self.turns}"}
        return observe([] if done else [message("user", "More?")]), 1.0, done, False, info

    def render(self):
        raise RuntimeError("Nothing to see.")


class TwoAgentsEnv(MathEnv):
    """Two ungraded answers to each question."""

    def __init__(self):
        super().__init__(num_agents=2)

    async def step(self, action):
        return (
            [observe(), observe()],
            np.zeros(2),
            True,
            False,
            {"success": False, "agents": [{"success": False}] * 2},
        )


class RelayEnv(Environment):
    """Sends a number to the first agent, whose text goes to the second, whose text goes back to the
    first; then each gets its own reward, 1 and 2.
    """

    def __init__(self):
        self.spec = text_spec(
            name="relay",
            tasks=["relay"],
            max_turns=3,
            max_action_characters=100,
            num_agents=2,
            agent_names=("caller", "answerer"),
        )
        self.turns = None

    async def reset(self, *, seed=None, options=None):
        checked = read_options(options or {}, spec=self.spec)
        self.turns = 0
        return [observe([message("user", f"Say {seed}.")]), None], {"task": checked.task}

    async def step(self, action):
        if self.turns is None:
            raise RuntimeError("Reset first.")
        speaker = self.turns % 2
        said = checked_turns(action, acting=[speaker], spec=self.spec)[speaker]
        self.turns += 1
        done = self.turns == 3
        seen = [None, None]
        seen[1 - speaker] = observe([message("user", said)])
        ended = [{"success": True}, {"success": False, "verdict": "late"}]
        info = {"task": "relay", "success": done, "agents": ended if done else [None, None]}
        rewards = self.rewards(done)
        if done:
            self.turns = None
        return [None, None] if done else seen, rewards, done, False, info

    def rewards(self, done):
        return np.array([1.0, 2.0]) * done

    def render(self):
        raise RuntimeError("Nothing to see.")


class EarlyRewardEnv(RelayEnv):
    """Rewards the second agent before its first text."""

    def rewards(self, done):
        return np.array([0.0, 2.0])
