"""Observations, actions and infos of text environments: chat messages in, model text out.

- **Observation**: `{"messages": [{"role": …, "content": …}, …]}`, the messages since the model's
  last turn. This is the whole prompt at reset, the answers of tools (or of a user) after a step,
  and an empty list at the end. The model's own text is not repeated, because the rollout holds it
  as tokens and does not retokenize between turns.
- **Action**: the model's text of one turn, a `str`; may be empty.
- **Info of a step**: `task`, `success`, `reward_parts` ({name: float}, whose sum is the reward) and
  `verdict` (the grader's finding, a word or sentence). With several agents, `agents` is a list of
    such dicts, one per agent, and `success` says whether all succeeded. An entry is None if the
    step says nothing about the agent. For an ungraded episode (`EnvSpec.leaves_ungraded`),
    `success` is None and the reward is 0 without parts.

An episode that cannot be scored raises `envs.base.EpisodeFailed`. Left out: tokens, chat templates
and token budgets, which belong to the rollout.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, get_args

import gymnasium
from gymnasium import spaces

from envs.base import EnvSpec

MESSAGES = "messages"  # key of the observation
# key of reset's info: the reference answer as text, if it has one; never shown
GROUND_TRUTH = "ground_truth"
# key of reset's info: False if the environment cannot grade; steps then have `success` None
GRADED = "graded"
REWARD_PARTS, VERDICT = "reward_parts", "verdict"  # keys of a step's info

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)
# of random actions: digits, and characters that break parsers
SAMPLE_CHARACTERS = "0123456789+-*/=^()[]{}\\#.,:;<>\"' \nabcxyzABCXYZ"
SAMPLE_LENGTH = 80


class Message(TypedDict):
    """One entry of a chat, in the form of chat templates."""

    role: Role
    content: str


class TextObservation(TypedDict):
    """Observation of a text environment."""

    messages: list[Message]


class Messages(gymnasium.Space[list[Message]]):
    """Space of lists of chat messages; includes the empty list."""

    def contains(self, x: Any) -> bool:
        """Whether `x` is a list of dicts with exactly a known `role` and a str `content`."""
        return isinstance(x, list) and all(_is_message(entry) for entry in x)

    def sample(self, mask: Any = None, probability: Any = None) -> list[Message]:
        """One user message with a random number."""
        if mask is not None or probability is not None:
            raise ValueError("Messages.sample takes neither mask nor probability.")
        return [{"role": "user", "content": str(self.np_random.integers(1000))}]

    @property
    def is_np_flattenable(self) -> bool:
        """False, because text has no fixed number of elements."""
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Messages)

    def __repr__(self) -> str:
        return "Messages()"


class ModelText(spaces.Text):
    """Space of texts up to `max_length` characters, in any script; samples are short ASCII."""

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0, charset=SAMPLE_CHARACTERS)

    def contains(self, x: Any) -> bool:
        """Whether `x` is a str of at most `max_length` characters."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A random text of at most `SAMPLE_LENGTH` characters."""
        if mask is None and probability is None:
            mask = (int(self.np_random.integers(min(self.max_length, SAMPLE_LENGTH) + 1)), None)
        return super().sample(mask, probability)

    def __repr__(self) -> str:
        return f"ModelText({self.max_length})"


def text_spec(
    *,
    name: str,
    tasks: Sequence[str],
    max_turns: int,
    max_action_characters: int,
    num_agents: int = 1,
    agent_names: Sequence[str] = (),
    replayable: bool = True,
    check_row: Callable[[Any], object] | None = None,
    leaves_ungraded: bool = False,
    slowest_step_s: float = 0.0,
) -> EnvSpec:
    """Spec of a text environment: no images, reports success, one environment step per turn.

    Args:
        name: Registry name.
        tasks: Names that `reset(options={"task": …})` accepts.
        max_turns: Model turns after which an episode is truncated.
        max_action_characters: Longest text that `step` accepts.
        num_agents: Models that act in an episode.
        agent_names: Their roles, if they differ; see `EnvSpec`.
        replayable: Whether seed and texts determine the episode; False if tools have outside state.
        check_row: Raises ValueError for a row that `reset(options={"row": …})` would refuse.
        leaves_ungraded: Whether `success` may be None; see `EnvSpec`.
        slowest_step_s: Largest duration of a step by the environment's own deadlines; 0: no
            deadline.
    """
    return EnvSpec(
        name=name,
        tasks=tuple(tasks),
        observation_space=spaces.Dict({MESSAGES: Messages()}),
        action_space=ModelText(max_action_characters),
        max_episode_steps=max_turns,
        renders=False,
        replayable=replayable,
        num_agents=num_agents,
        agent_names=tuple(agent_names),
        check_row=check_row,
        leaves_ungraded=leaves_ungraded,
        slowest_step_s=slowest_step_s,
    )


def message(role: Role, content: str) -> Message:
    """One chat message."""
    return {"role": role, "content": content}


def observe(messages: Sequence[Message] = ()) -> TextObservation:
    """Observation with copies of `messages`; without messages, the one that ends an episode."""
    return {"messages": [message(entry["role"], entry["content"]) for entry in messages]}


def checked_text(action: Any, *, space: ModelText) -> str:
    """`action` as a plain str.

    Raises:
        ValueError: Not a str, or longer than `space` allows.
    """
    if not isinstance(action, str):
        raise ValueError(f"An action must be the model's text, a str, got {type(action).__name__}.")
    if len(action) > space.max_length:
        raise ValueError(
            f"An action may have at most {space.max_length} characters "
            f"(env.kwargs.max_action_characters), got {len(action)}."
        )
    return str(action)


def checked_messages(value: Any) -> list[Message]:
    """Return `value` as a prompt: at least one message, each a dict with `role` and `content`.

    Raises:
        ValueError: Anything else; the message names the entry and its fault.
    """
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or len(value) == 0:
        raise ValueError(
            f"must be a list of at least one chat message {{role, content}}, got {shortened(value)}"
        )
    for number, entry in enumerate(value):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("content"), str):
            raise ValueError(
                f"entry {number} must be a chat message {{role, content}} whose content is text, "
                f"got {shortened(entry)}"
            )
        if entry.get("role") not in ROLES:
            raise ValueError(
                f"entry {number} has the role {entry.get('role')!r}; known: {', '.join(ROLES)}"
            )
    return [message(entry["role"], entry["content"]) for entry in value]


def shortened(value: Any, *, characters: int = 80) -> str:
    """`repr(value)`, truncated for an error message."""
    text = repr(value)
    return text if len(text) <= characters else text[: characters - 1] + "…"


def _is_message(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and set(entry) == {"role", "content"}
        and entry["role"] in ROLES
        and isinstance(entry["content"], str)
    )
