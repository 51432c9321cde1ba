"""The environment contract: Gymnasium's five values, asynchronous, with one call for a chunk of
actions.

An environment is stepped by an EnvServer that may live in another process, so everything here is
picklable data. Rendering is the cost of a simulator, hence the two rules of the contract:
`step_chunk` renders the observation after the last action only, and further frames are rendered
only for the streams that `reset` was asked for (`FrameRequest`).

Left out on purpose: the user's documents have `reset(dp_rank, ddp_world_size, seed, options)` and a
3-value `step`. Sharding is no business of an environment, and `terminated` and `truncated` are two
ideas; `envs.adapter` takes such a class.
"""

import abc
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

# Keys of an embodied observation. An environment leaves out what it does not have.
IMAGES = "images"  # uint8 [cameras, height, width, 3]
# float32 [P]: what the robot feels; never the pose of an object or of the goal
PROPRIOCEPTION = "proprioception"
INSTRUCTION = "instruction"  # str

# a Mapping with the keys above for embodied environments; whatever a text environment says
# otherwise
Observation = Any
Info = dict[str, Any]
StepResult = tuple[Observation, float, bool, bool, Info]


@dataclass(frozen=True)
class EnvSpec:
    """What a policy and a planner must know of an environment before its first reset."""

    name: str
    """Registry name, for example `mujoco`."""
    tasks: tuple[str, ...]
    """Names that `reset(options={"task": name})` accepts; at least one."""
    observation_space: gymnasium.Space[Any]
    """Space of the observations; a `gymnasium.spaces.Dict` with the keys above for embodied
    environments.
    """
    action_space: gymnasium.Space[Any]
    """Space of one action; `Box` (continuous) or `Discrete`."""
    max_episode_steps: int
    """Environment steps after which an episode is truncated."""
    reports_success: bool = True
    """Whether `info["success"]` is the benchmark's own flag; if not, only the return says how an
    episode went.
    """
    renders: bool = True
    """Whether `render` and the frame streams work; if not, asking for frames is refused."""
    replayable: bool = True
    """Whether seed and actions fix the episode; a real robot says False, and its lost episodes are
    not replayed.
    """
    num_agents: int = 1
    """Agents that act; with more than one, `step` takes a list of actions and returns one entry an
    agent.
    """
    check_row: Callable[[Any], object] | None = None
    """Raises ValueError for a row of the prompt columns (`envs.prompt_files.PromptRow`) that
    `reset(options={"row": …})` would refuse; None where none is but those without a ground truth.
    It is pickled, so it is a function of a module."""
    leaves_ungraded: bool = False
    """Whether it asks what it cannot grade, because somebody else decides: such an episode has
    `info["success"]` None and a reward without meaning, and is left out of every statistic of
    success and return."""
    notice: str = ""
    """What whoever reads a number of this environment must know; metric files, videos and reports
    carry it. Nothing by default.
    """

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise ValueError for the first field that nobody could work with; `pickle` makes a spec
        without this.
        """
        for name, (is_sound, expected) in _FIELDS.items():
            value = getattr(self, name)
            if not is_sound(value):
                raise ValueError(
                    f"{type(self).__name__}.{name} must be {expected}, got {reprlib.repr(value)}."
                )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_tasks(value: object) -> bool:
    return isinstance(value, tuple | list) and len(value) > 0 and all(map(_is_name, value))


def _is_count(value: object) -> bool:
    return (
        isinstance(value, int | np.integer)
        and not isinstance(value, bool)
        and 1 <= int(value) <= sys.maxsize
    )


def _is_space(value: object) -> bool:
    return isinstance(value, gymnasium.Space)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool | np.bool_)


_SPACE = (_is_space, "a gymnasium.Space")
_COUNT = (_is_count, "a whole number of at least 1")
_FLAG = (_is_flag, "True or False")
_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (_is_name, "a name"),
    "tasks": (_are_tasks, "a tuple of at least one task's name"),
    "observation_space": _SPACE,
    "action_space": _SPACE,
    "max_episode_steps": _COUNT,
    "reports_success": _FLAG,
    "renders": _FLAG,
    "replayable": _FLAG,
    "num_agents": _COUNT,
    "check_row": (lambda value: value is None or callable(value), "a function, or None"),
    "leaves_ungraded": _FLAG,
    "notice": (lambda value: isinstance(value, str), "text"),
}
"""Of each field of a spec: what it is checked by, and what is expected of it."""


@dataclass(frozen=True)
class FrameRequest:
    """A stream of frames beside the observations, for the video encoder or the recorder:
    `options={"frames": {name: request}}`.
    """

    every: int
    """Environment steps between two frames; the frame after reset and the one after the last step
    are always there.
    """
    size: int
    """Height and width in pixels."""

    def __post_init__(self) -> None:
        for name, value in (("every", self.every), ("size", self.size)):
            if value < 1:
                raise ValueError(f"FrameRequest.{name} must be at least 1, got {value}.")


@dataclass(frozen=True)
class Frames:
    """Frames of one stream: `images` uint8 [N, size, size, 3], taken after environment steps
    `steps` [N] (0 is the reset).
    """

    images: NDArray[np.uint8]
    steps: tuple[int, ...] = field(default=())


class EpisodeFailed(RuntimeError):
    """This episode cannot be scored, and would not be if it were played again: it is counted as
    failed, and never scored.

    The environment that raises it is sound, and its next episode may be played.
    """


class Environment(abc.ABC):
    """One environment. Subclasses implement `reset`, `step` and `render`; simulators override
    `step_chunk` to render less.
    """

    spec: EnvSpec

    @abc.abstractmethod
    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode. The same `seed` and `options` give the same episode for the same
        actions.

        Args:
            seed: Fixes everything random in the episode.
            options: `task` (one of `spec.tasks`; the first by default), `frames` ({stream:
                FrameRequest}), and what else the environment documents.

        Returns:
            Observation and info; info has `task` and, where frames were asked for, `frames`
            ({stream: Frames}).

        Raises:
            ValueError: An unknown task or option, with the known ones.
        """

    @abc.abstractmethod
    async def step(self, action: Any) -> StepResult:
        """Apply one action; Gymnasium's (observation, reward, terminated, truncated, info).

        info has `success` where `spec.reports_success` (None where `spec.leaves_ungraded` and
        nobody here can say), and `frames` where asked for at reset.

        Raises:
            ValueError: An action of the wrong shape, with NaN, or outside of the space.
            RuntimeError: A step before `reset` or after the end of the episode.
        """

    async def step_chunk(self, actions: Sequence[Any]) -> StepResult:
        """Apply up to K actions and stop where the episode ends; rewards are summed.

        Returns:
            The values of the last executed step; info also has `executed`, the number of actions
            applied, and all frames of the chunk.
        """
        if len(actions) == 0:
            raise ValueError("step_chunk needs at least one action.")
        total, frames = 0.0, FrameBuffer()
        for executed, action in enumerate(actions, start=1):
            observation, reward, terminated, truncated, info = await self.step(action)
            total += reward
            frames.extend(info.get("frames", {}))
            if terminated or truncated:
                break
        info = {**info, "executed": executed}
        if frames.streams:
            info["frames"] = frames.take()
        return observation, total, terminated, truncated, info

    @abc.abstractmethod
    def render(self) -> NDArray[np.uint8]:
        """The current camera image, uint8 [height, width, 3]; raises RuntimeError where there is
        nothing to see.
        """

    async def close(self) -> None:  # noqa: B027  (optional: most environments hold nothing)
        """Release simulators and processes; may be called twice."""


class FrameBuffer:
    """Collects frames of several streams and hands them out as `Frames`."""

    def __init__(self) -> None:
        self.streams: dict[str, tuple[list[NDArray[np.uint8]], list[int]]] = {}

    def add(self, stream: str, image: NDArray[np.uint8], step: int) -> None:
        """Append one image, uint8 [size, size, 3], taken after environment step `step`."""
        images, steps = self.streams.setdefault(stream, ([], []))
        images.append(image)
        steps.append(step)

    def extend(self, frames: Mapping[str, Frames]) -> None:
        """Append what `info["frames"]` holds."""
        for stream, part in frames.items():
            for image, step in zip(part.images, part.steps, strict=True):
                self.add(stream, image, step)

    def take(self) -> dict[str, Frames]:
        """Hand out everything collected so far and start anew."""
        taken = {
            name: Frames(np.stack(images), tuple(steps))
            for name, (images, steps) in self.streams.items()
        }
        self.streams = {}
        return taken
