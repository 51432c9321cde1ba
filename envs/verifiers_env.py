r"""Environments of the `verifiers` package: single turns, tools and other dialogues.

    env = VerifiersEnv(id="my-environment")     # a package of the Environments Hub, installed
    observation, info = await env.reset(seed=7, options={"split": "heldout"})
    observation, reward, terminated, truncated, info = await env.step("...")

The package runs a rollout with a client that returns the model's messages. Here that client waits
for `step`. The messages that the environment adds to the conversation are the next observation, and
the text of the step is the model's answer. So the environment's own loop, tools, stop conditions
and rubric run unchanged. Tool calls are read from the text, in the form that the system message
announces (`envs.tools.calls`). A malformed call is treated as text.

The reward is the rubric's. A rubric counts a reward function that raises as 0. Here it fails the
episode, as does an error in the environment.

Left out: rewards of whole groups, environments that rewrite the conversation or query several
models at once, messages with pictures, and `verifiers.v1`.
"""

import asyncio
import functools
import importlib
import inspect
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import ModuleType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from envs.arguments import (
    HELDOUT_SHARE,
    check_heldout_share,
    checked_choice,
    checked_seed,
    not_running,
    read_options,
)
from envs.base import Environment, EpisodeFailed, Info, StepResult, is_reward
from envs.math.generators import SPLITS, held_out
from envs.mistakes import describe_error
from envs.text import (
    GRADED,
    GROUND_TRUTH,
    REWARD_PARTS,
    VERDICT,
    Message,
    ModelText,
    checked_text,
    observe,
    text_spec,
)
from envs.verifiers_messages import comparable, plain_message, response_of, with_tools

PACKAGE = "verifiers"
INSTALL = (
    "pip install verifiers==0.1.14 in a Python environment of its own (the tested version; 0.3 "
    "requires mcp<2, which takes the MCP tools of env=tools away)."
)
MAX_ACTION_CHARACTERS = 1 << 20
UNBOUNDED_TURNS = 64  # limit for an environment that has none
SUCCESS_AT = 1.0  # rubrics usually add up to 1

Row = Mapping[str, Any]
_FAULTS: ContextVar[list[str]] = ContextVar("_FAULTS")
"""Errors of reward functions in the rollout of this task."""


class RolloutFailed(EpisodeFailed):
    """The environment or its rubric failed, so the episode has no score."""


class VerifiersEnv(Environment):
    """Episodes of one environment of the package; its id is the only task."""

    def __init__(
        self,
        *,
        id: str,
        split: str = "train",
        heldout_share: float = HELDOUT_SHARE,
        success_at: float = SUCCESS_AT,
        max_action_characters: int = MAX_ACTION_CHARACTERS,
        **arguments: Any,
    ) -> None:
        """Load the environment, which all instances in a process share.

        Args:
            id: Name of an installed environment, as for `verifiers.load_environment`.
            split: Default split of `reset`, `train` or `heldout`.
            heldout_share: Share of questions that are held out, by a hash of the prompt, if the
                environment has no evaluation data set.
            success_at: Reward from which an episode counts as a success.
            max_action_characters: Longest text of the model; `step` refuses longer ones.
            arguments: Arguments of the environment's `load_environment`.

        Raises:
            ValueError: An environment that is not installed, or cannot be run.
            RuntimeError: The package is not installed, or has another interface.
        """
        check_heldout_share(heldout_share, may_be_zero=False)
        self._split = checked_choice("split", split, SPLITS)
        self._environment = _load(id, json.dumps(arguments, sort_keys=True))
        self._rows = {name: _rows_of(id, self._environment, name, heldout_share) for name in SPLITS}
        self._id, self._success_at = id, success_at
        turns = int(self._environment.max_turns)
        self.spec = text_spec(
            name=PACKAGE,
            tasks=(id,),
            max_turns=turns if turns > 0 else UNBOUNDED_TURNS,
            max_action_characters=max_action_characters,
            replayable=turns == 1,  # tools and users may have their own state
            check_row=refuse_row,
        )
        self._conversation: _Conversation | None = None

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, Info]:
        """See `Environment.reset`; options are `task` and `split`."""
        options = options or {}
        seed = checked_seed(seed)
        read_options(options, spec=self.spec, further=("split",))
        rows = self._rows[checked_choice("split", options.get("split", self._split), SPLITS)]
        random = np.random.default_rng(None if seed is None else [seed, zlib.crc32(b"verifiers")])
        row = rows[int(random.integers(len(rows)))]
        await self._end()
        self._conversation = _Conversation(self._environment, row)
        messages = await self._conversation.next_messages()
        if messages is None:
            raise self._failed("it ended before the model spoke")
        answer = row.get("answer")
        info: Info = {
            "task": self._id,
            "data_source": self._id,
            GROUND_TRUTH: None if answer is None else str(answer),
            GRADED: True,
        }
        return observe(messages), info

    async def step(self, action: Any) -> StepResult:
        """Pass the text to the environment; scores it if the rollout ends.

        Raises:
            ValueError: The action is not text, or too long.
            RuntimeError: No episode is open.
            RolloutFailed: The environment or a reward function raised; the episode is over.
        """
        text = checked_text(action, space=cast(ModelText, self.spec.action_space))
        if self._conversation is None:
            raise not_running()
        self._conversation.say(text)
        messages = await self._conversation.next_messages()
        if messages is not None:
            info: Info = {"task": self._id, "success": False, REWARD_PARTS: {}, VERDICT: "goes on"}
            return observe(messages), 0.0, False, False, info
        state = self._conversation.state()
        self._conversation = None
        reward = state.get("reward")
        if not isinstance(reward, int | float) or not is_reward(reward):
            raise self._failed(f"its rubric returned {reward!r}, which is not a usable number")
        info = {
            "task": self._id,
            "success": float(reward) >= self._success_at,
            REWARD_PARTS: {"score": float(reward)},
            VERDICT: str(state.get("stop_condition") or "scored"),
        }
        return observe(), float(reward), True, False, info

    def render(self) -> NDArray[np.uint8]:
        """Raises RuntimeError: a text environment has no image."""
        raise RuntimeError(f"Environment {PACKAGE!r} has no images.")

    async def close(self) -> None:
        """Cancel a rollout in progress."""
        await self._end()

    async def _end(self) -> None:
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            await conversation.cancel()

    def _failed(self, reason: str) -> RolloutFailed:
        self._conversation = None
        return RolloutFailed(f"env.id={self._id}: {reason}.")


class _Conversation:
    """A rollout of the package, whose client waits for the policy's messages."""

    def __init__(self, environment: Any, row: Row) -> None:
        self._asked: asyncio.Future[tuple[list[Message], Any]] = asyncio.Future()
        self._said: asyncio.Future[str] | None = None
        self._known: list[Message] = []
        self._rollout = asyncio.create_task(_scored(environment, row, self))

    async def next_messages(self) -> list[Message] | None:
        """The environment's next messages; None if the rollout is over.

        Raises:
            RolloutFailed: It raised, or rewrote the conversation.
        """
        either: set[asyncio.Future[Any]] = {self._asked, self._rollout}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._asked.done():
            self.state()
            return None
        prompt, tools = self._asked.result()
        self._asked = asyncio.Future()
        known = len(self._known)
        if comparable(prompt[:known]) != comparable(self._known):
            await self.cancel()
            raise RolloutFailed(
                "The environment rewrites the conversation between turns, but a policy continues "
                "its own tokens: such an environment cannot be trained on."
            )
        new = prompt[known:] if not known else prompt[known + 1 :]
        self._known = prompt
        return with_tools(new, tools) if not known else new

    def say(self, text: str) -> None:
        """Answer the environment's request."""
        assert self._said is not None
        self._said.set_result(text)

    def state(self) -> dict[str, Any]:
        """State of the finished rollout.

        Raises:
            RolloutFailed: It raised.
        """
        try:
            return dict(self._rollout.result())
        except Exception as error:  # a user's environment may raise any class
            raise RolloutFailed(f"The rollout failed: {describe_error(error)}") from error

    async def cancel(self) -> None:
        """End the rollout."""
        self._rollout.cancel()
        await asyncio.wait({self._rollout})

    async def ask(self, prompt: Sequence[Any], tools: Any) -> Any:
        """Called by the package: the model's answer to `prompt`."""
        if self._asked.done():
            raise RuntimeError("It queries the model twice at once, but a policy takes turns")
        self._said = asyncio.Future()
        self._asked.set_result(([plain_message(entry) for entry in prompt], tools))
        return response_of(await self._said, tools)


async def _scored(environment: Any, row: Row, conversation: _Conversation) -> Mapping[str, Any]:
    """Run and score a rollout; returns its state."""
    faults: list[str] = []
    _FAULTS.set(faults)
    state = await environment.rollout(dict(row), _client(conversation), "policy", {})
    if state.get("error") is not None:
        raise RuntimeError(f"{type(state['error']).__name__}: {state['error']}")
    await environment.rubric.score_rollout(state)
    if faults:
        raise RuntimeError(f"a reward function raised {faults[0]}")
    found: Mapping[str, Any] = state
    return found


def _client(conversation: _Conversation) -> Any:
    """A client for the package that queries the policy."""
    clients = importlib.import_module(f"{PACKAGE}.clients")

    class Handover(clients.Client):  # type: ignore[name-defined]
        async def get_response(
            self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any
        ) -> Any:
            return await conversation.ask(prompt, tools)

    Handover.__abstractmethods__ = frozenset()  # get_response is all that a rollout calls
    return Handover(None)


def refuse_row(row: object) -> None:
    """Raises ValueError: every question comes from the environment's own data set."""
    raise ValueError(
        "env=verifiers takes the questions of its environment and no rows of files: leave "
        "data.train_files and data.val_files out."
    )


@functools.cache
def _load(name: str, arguments: str) -> Any:
    """The environment, with reward functions that record their exceptions."""
    package = _package()
    try:
        environment = package.load_environment(name, **json.loads(arguments))
    except Exception as error:  # a user's package may raise any class
        raise ValueError(
            f"env.id={name} cannot be loaded with {arguments}: {str(error).rstrip('.')}. Install "
            "its package (uv pip install, or prime env install OWNER/NAME), or correct env.kwargs."
        ) from error
    if not hasattr(environment, "max_turns") or getattr(environment, "env_map", None):
        raise ValueError(
            f"env.id={name} is a {type(environment).__name__}, which is not a single dialogue: use "
            "a MultiTurnEnv or one member of a group."
        )
    if getattr(environment.rubric, "has_group_rewards", False):
        raise ValueError(
            f"env.id={name} rewards whole groups of rollouts, which episodes of env=verifiers do "
            "not see: choose an environment whose reward functions score one rollout."
        )
    _watch(environment.rubric)
    return environment


def _package() -> ModuleType:
    try:
        package = importlib.import_module(PACKAGE)
    except ModuleNotFoundError as missing:
        raise RuntimeError(f"env=verifiers lacks the package {missing.name!r}: {INSTALL}") from None
    if not hasattr(package, "load_environment"):
        version = getattr(package, "__version__", "unknown")
        raise RuntimeError(
            f"verifiers {version} has no load_environment, which version 0.4 removed: {INSTALL}"
        )
    return package


def _rows_of(name: str, environment: Any, split: str, heldout_share: float) -> list[Row]:
    """The questions of a split: from the environment's own two data sets, or from one by hash."""
    training, evaluation = environment.build_dataset(), environment.build_eval_dataset()
    if training is not None and evaluation is not None:
        rows = list(training if split == "train" else evaluation)
    else:
        data = training if training is not None else evaluation
        rows = [
            row
            for row in (data if data is not None else [])
            if held_out(json.dumps(row["prompt"], default=str), share=heldout_share)
            == (split == "heldout")
        ]
    if not rows:
        raise ValueError(
            f"env.id={name} has no {split} questions: add rows to its data set, or change "
            f"heldout_share from {heldout_share}."
        )
    return rows


def _watch(rubric: Any) -> None:
    """Make the reward functions of a rubric, and of nested ones, record their exceptions."""
    for part in getattr(rubric, "rubrics", []):
        _watch(part)
    rubric.funcs = [_watched(function) for function in rubric.funcs]


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def watched(*arguments: Any, **named: Any) -> float:
        try:
            found = function(*arguments, **named)
            return float(await found if inspect.isawaitable(found) else found)
        except Exception as error:  # a user's function may raise any class
            _FAULTS.get().append(f"{type(error).__name__} in {function.__name__}: {error}")
            raise

    return watched
