"""What a text environment sees and says: chat messages in the observation, the model's text as
action, and how a reward came about.

- **Observation**: `{"messages": [{"role": …, "content": …}, …]}`, what is said to the model since
  it last spoke: the whole prompt at reset, answers of tools (or of a user) after a step, an empty
  list at the end. The model's own words never come back, because whoever plays has them as tokens,
  and tokens are not made anew between turns.
- **Action**: the model's text of one turn, a `str`; the empty one is allowed.
- **Info of a step**: `task`, `success`, `reward_parts` ({name: float}, whose sum is the reward) and
  `verdict` (a short word or sentence: what the grader saw). With several agents, `agents` is a list
  of such dicts, one an agent, and `success` says whether all succeeded. Where the environment was
  told to ask what it cannot grade (`EnvSpec.leaves_ungraded`), `success` is None and the reward 0
  without parts.

What cannot be scored raises `envs.base.EpisodeFailed`. Left out: tokens, chat templates and budgets
in tokens, which belong to the rollout.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, get_args

import gymnasium
from gymnasium import spaces

from envs.base import EnvSpec

MESSAGES = "messages"  # key of the observation
# key of reset's info: what the answer is held against, where it can be said in a text; never shown
GROUND_TRUTH = "ground_truth"
# key of reset's info: False where nobody here can say whether an answer is right; steps then have
# `success` None
GRADED = "graded"
REWARD_PARTS, VERDICT = "reward_parts", "verdict"  # keys of a step's info

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)
SAMPLE_CHARACTERS = "0123456789+-*/=^()[]{}\\#.,:;<>\"' \nabcxyzABCXYZ"  # of random actions: digits, and what parsers stumble over
SAMPLE_LENGTH = 80


class Message(TypedDict):
    """One entry of a chat, as chat templates take it."""

    role: Role
    content: str


class TextObservation(TypedDict):
    """What a text environment observes."""

    messages: list[Message]


class Messages(gymnasium.Space[list[Message]]):
    """Space of lists of chat messages, the empty list among them."""

    def contains(self, x: Any) -> bool:
        """Whether `x` is a list of dicts with exactly a known `role` and a `content` of type str."""
        return isinstance(x, list) and all(_is_message(entry) for entry in x)

    def sample(self, mask: Any = None, probability: Any = None) -> list[Message]:
        """One message of a user, with a random number."""
        if mask is not None or probability is not None:
            raise ValueError("Messages.sample takes neither mask nor probability.")
        return [{"role": "user", "content": str(self.np_random.integers(1000))}]

    @property
    def is_np_flattenable(self) -> bool:
        """Text has no fixed number of elements."""
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Messages)

    def __repr__(self) -> str:
        return "Messages()"


class ModelText(spaces.Text):
    """Space of every text up to `max_length` characters, in any script; samples are short and
    ASCII.
    """

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
    replayable: bool = True,
    check_row: Callable[[Any], object] | None = None,
    leaves_ungraded: bool = False,
) -> EnvSpec:
    """The spec of a text environment: nothing to render, success is reported, one environment step
    a turn of the model.

    Args:
        name: Registry name.
        tasks: What `reset(options={"task": …})` accepts.
        max_turns: Turns of the model after which an episode is truncated.
        max_action_characters: Longest text that `step` takes; longer ones are refused.
        num_agents: Models that answer at once.
        replayable: Whether seed and texts fix the episode; False where tools reach into the world.
        check_row: Raises ValueError for a row that `reset(options={"row": …})` would refuse.
        leaves_ungraded: Whether `success` may be None; see `EnvSpec`.
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
        check_row=check_row,
        leaves_ungraded=leaves_ungraded,
    )


def message(role: Role, content: str) -> Message:
    """One chat message."""
    return {"role": role, "content": content}


def observe(messages: Sequence[Message] = ()) -> TextObservation:
    """The observation that says `messages`, in dicts of its own; without any, the one at the end of
    an episode.
    """
    return {"messages": [message(entry["role"], entry["content"]) for entry in messages]}


def checked_text(action: Any, *, space: ModelText) -> str:
    """`action` as a plain str.

    Raises:
        ValueError: No text, or a longer one than `space` has.
    """
    if not isinstance(action, str):
        raise ValueError(f"An action must be the model's text, a str, got {type(action).__name__}.")
    if len(action) > space.max_length:
        raise ValueError(
            f"An action may have {space.max_length} characters (env.kwargs.max_action_characters), got {len(action)}."
        )
    return str(action)


def checked_messages(value: Any) -> list[Message]:
    """`value` as a prompt: at least one message, each a dict with `role` and `content`.

    Raises:
        ValueError: Anything else; the message says which entry, and what is wrong with it.
    """
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or len(value) == 0:
        raise ValueError(
            f"must be a list of at least one chat message {{role, content}}, got {shortened(value)}"
        )
    for number, entry in enumerate(value):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("content"), str):
            raise ValueError(
                f"entry {number} must be a chat message {{role, content}} whose content is text, got {shortened(entry)}"
            )
        if entry.get("role") not in ROLES:
            raise ValueError(
                f"entry {number} has the role {entry.get('role')!r}; known: {', '.join(ROLES)}"
            )
    return [message(entry["role"], entry["content"]) for entry in value]


def shortened(value: Any, *, characters: int = 80) -> str:
    """`repr(value)`, cut for an error message."""
    text = repr(value)
    return text if len(text) <= characters else text[: characters - 1] + "…"


def _is_message(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and set(entry) == {"role", "content"}
        and entry["role"] in ROLES
        and isinstance(entry["content"], str)
    )
