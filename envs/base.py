"""The environment contract: asynchronous methods, Gymnasium's five values, and one call per action
chunk.

An EnvServer in another process may step the environment, so everything here is picklable data.
Rendering dominates a simulator's cost. `step_chunk` therefore renders only the observation after
the last action, and other frames are rendered only for the streams requested at `reset`
(`FrameRequest`).

Left out: siiRL's documented form, `reset(dp_rank, ddp_world_size, seed, options)` and a 3-value
`step`. Environments do not shard, and `terminated` and `truncated` are separate signals.
`envs.adapter` wraps such a class.
"""

from __future__ import annotations

import abc
import inspect
import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from envs.spec_fields import MEMORY_FIELDS, SPEC_FIELDS, check_fields

if TYPE_CHECKING:  # a machine that only trains does not need gymnasium
    import gymnasium

# Keys of an embodied observation; an environment omits those it lacks.
IMAGES = "images"  # uint8 [cameras, height, width, 3]
# float32 [P]: the robot's own state; never the pose of an object or of the goal
PROPRIOCEPTION = "proprioception"
INSTRUCTION = "instruction"  # str

# Embodied environments: a Mapping with the keys above. Text environments:
# `envs.text.TextObservation`.
Observation = Any
Info = dict[str, Any]
StepResult = tuple[Observation, float, bool, bool, Info]

LARGEST_REWARD = 1e15
"""Largest size of a step's reward: squares of an episode's return stay finite in float32."""


def is_reward(value: Any) -> bool:
    """Whether `value` is a finite number that training can use as a reward."""
    is_number = isinstance(value, int | float | np.integer | np.floating)
    return is_number and bool(abs(value) <= LARGEST_REWARD)


@dataclass(frozen=True)
class SimulatorMemory:
    """Bytes that environments take for themselves, as a run's plan counts them.

    Measured as the memory that two servers do not share.
    """

    server: float
    """A server process: interpreter, simulator library, OpenGL, Ray worker."""
    scene: float = 0.0
    """Meshes and textures of a task, which the environments of a server share."""
    simulator: float = 0.0
    """The simulator of one task in one environment."""
    bounded: bool = False
    """Whether `env.kwargs.kept_simulators` bounds the simulators that an environment keeps."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise ValueError for the first invalid field; unpickling skips this check."""
        check_fields(self, MEMORY_FIELDS)


UNMEASURED = SimulatorMemory(server=200e6)  # an interpreter with Gymnasium
_MEMORY = (lambda value: isinstance(value, SimulatorMemory), "a SimulatorMemory")


@dataclass(frozen=True)
class EnvSpec:
    """Properties of an environment that policy and planner need before the first reset."""

    name: str
    """Registry name, for example `metaworld`."""
    tasks: tuple[str, ...]
    """Names that `reset(options={"task": name})` accepts; at least one."""
    observation_space: gymnasium.Space[Any]
    """Space of one observation. Embodied: a `gymnasium.spaces.Dict` of `images` uint8
    [cameras, height, width, 3], `proprioception` float32 [P] and `instruction` (str).
    """
    action_space: gymnasium.Space[Any]
    """Space of one action: `Box` (continuous, shape [A]) or `Discrete`."""
    max_episode_steps: int
    """Episode limit, in environment steps; longer episodes are truncated."""
    reports_success: bool = True
    """Whether `info["success"]` is the benchmark's own flag; if not, the return is the only score.
    """
    tasks_with_distance: tuple[str, ...] | None = None
    """Tasks with a true distance to success. Infos have it, as `oracle_distance`, only if all tasks
    of the environment do. None: the first episode shows whether infos have it.
    """
    renders: bool = True
    """Whether `render` and the frame streams work; if not, `reset` refuses frame requests."""
    replayable: bool = True
    """Whether seed and actions determine the episode; if not (a real robot), lost episodes are not
    replayed.
    """
    decisions: tuple[int, ...] = ()
    """Of a `Box` whose dimensions are decisions, such as `MultiDiscrete`: n_i, the number of values
    of each. Dimension i is over [-0.5, n_i - 0.5], and the nearest whole number is the decision.
    Empty: the actions are continuous, or `Discrete`.
    """
    instruction_changes: bool = False
    """Whether `instruction` may change within an episode; training rows then have one for each
    chunk.
    """
    num_agents: int = 1
    """Number of acting agents N. For N > 1, `step` takes N actions and returns N observations and
    an array of N rewards. An agent whose observation is None waits: its next action is None. Agents
    may thus act together, in turn, or both; until the episode ends, at least one acts.
    """
    agent_names: tuple[str, ...] = ()
    """Names of agents with different roles, in their order; empty for one agent, or several of one
    role. The episode's success is that of the first agent.
    """
    check_row: Callable[[Any], object] | None = None
    """Raises ValueError for a prompt row (`envs.prompt_files.PromptRow`) that
    `reset(options={"row": …})` would refuse; None if only rows without a ground truth are refused.
    A module-level function, because specs are pickled.
    """
    leaves_ungraded: bool = False
    """Whether some episodes have no verdict: `info["success"]` is None and the reward has no
    meaning. Statistics of success and return exclude them.
    """
    slowest_step_s: float = 0.0
    """Seconds after which the environment itself ends its slowest step, by its own deadlines (for
    tools); 0: it has none. `env.deadline_s` must not be shorter.
    """
    needs_opengl: bool = False
    """Whether the simulator renders with MuJoCo; a job then tests OpenGL before it starts."""
    notice: str = ""
    """Caveat for readers of this environment's results; metric files, videos and reports show it.
    """
    memory: SimulatorMemory = UNMEASURED
    """Memory of the environment's servers, for the plan of a run."""
    expert: str = ""
    """Scripted experts, for demonstrations: `module:function`, which takes a task's name and
    returns a function from environment to action. Empty: none.
    """
    expert_seed: int | None = None
    """First seed of demonstrations, if the environment needs its own; null: they follow the seeds
    of held-out episodes.
    """

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise ValueError for the first invalid field; unpickling a spec skips this check."""
        check_fields(self, {**SPEC_FIELDS, "memory": _MEMORY})
        self.memory.check()
        if self.decisions and self.action_space != decision_space(self.decisions):
            raise ValueError(
                f"{type(self).__name__}.decisions {reprlib.repr(self.decisions)} need the action "
                f"space {decision_space(self.decisions)}, got {self.action_space}."
            )
        if self.agent_names and len(self.agent_names) != self.num_agents:
            raise ValueError(
                f"{type(self).__name__}.agent_names {reprlib.repr(self.agent_names)} must name all "
                f"of the {self.num_agents} agents (num_agents)."
            )


def decision_space(counts: Sequence[int]) -> gymnasium.spaces.Box:
    """The action space of `EnvSpec.decisions`."""
    import gymnasium

    high = np.asarray(counts) - 0.5
    return gymnasium.spaces.Box(
        np.full(len(high), -0.5, np.float32), high.astype(np.float32), dtype=np.float32
    )


def acting_agents(observation: Observation, *, spec: EnvSpec) -> list[int]:
    """Numbers of the agents that act next: all with an observation."""
    if spec.num_agents == 1:
        return [0]
    return [agent for agent, entry in enumerate(observation) if entry is not None]


def checked_turns(action: Any, *, acting: Sequence[int], spec: EnvSpec) -> list[Any]:
    """The actions of a step: one per agent, None for agents that wait.

    Raises:
        ValueError: Not one entry per agent, an action out of turn, or none from an acting agent.
    """
    if not isinstance(action, list | tuple) or len(action) != spec.num_agents:
        raise ValueError(
            f"step needs a list of {spec.num_agents} actions, one per agent, got "
            f"{type(action).__name__}."
        )
    for agent, entry in enumerate(action):
        name = spec.agent_names[agent] if spec.agent_names else str(agent)
        if entry is None and agent in acting:
            raise ValueError(f"It is the turn of agent {name!r}, but its action is None.")
        if entry is not None and agent not in acting:
            raise ValueError(f"Agent {name!r} waits, so its action must be None.")
    return list(action)


ENCODER_STREAM = "encoder"
"""The stream of the frames from which a reward is computed."""
RECORDER_STREAM = "recorder"
"""The stream of a run's videos, without which it trains all the same."""


@dataclass(frozen=True)
class FrameRequest:
    """Requests a stream of frames in addition to the observations, for a video encoder or the
    recorder.

    Passed to `reset` as `options={"frames": {name: request}}`.
    """

    every: int
    """Environment steps between frames; reset and the last step always have a frame."""
    size: int
    """Height and width in pixels."""

    def __post_init__(self) -> None:
        for name, value in (("every", self.every), ("size", self.size)):
            if value < 1:
                raise ValueError(f"FrameRequest.{name} must be at least 1, got {value}.")


@dataclass(frozen=True)
class Frames:
    """N frames of one stream: `images` uint8 [N, size, size, 3], and their environment `steps` [N].

    Step 0 is the reset.
    """

    images: NDArray[np.uint8]
    steps: tuple[int, ...] = field(default=())


class EpisodeFailed(RuntimeError):
    """The episode cannot be scored, and a replay would fail as well: it counts as failed, without a
    score.

    The environment stays usable; its next episode can be played.
    """


class ServerAway(EpisodeFailed, ValueError):
    """The server behind an environment cannot be used; its constructor raises this.

    A plan refuses it, as any ValueError. A running job makes the environment again for
    `patience_s`, because the server may be restarted; then the waiting episodes fail.
    """

    def __init__(self, text: str, *, patience_s: float = 0.0) -> None:
        super().__init__(text)
        self.patience_s = patience_s


class Misbehaved(RuntimeError):
    """Code or server of a user's environment broke its contract; the message names the place, so
    reports leave the traceback out.
    """


class WrongForm(Misbehaved):
    """A result of the wrong type, shape or number of values. A replay would give it again, so its
    episode fails without one.
    """


RESET_VALUES = ("observation", "info")
STEP_VALUES = ("observation", "reward", "terminated", "truncated", "info")


async def answer_of(answer: Any, *, call: str, values: Sequence[str]) -> Any:
    """The answer of an environment's method `call`, which has these values.

    Raises:
        WrongForm: The method is not `async def`, or returned another number of values.
    """
    if not inspect.isawaitable(answer):
        raise WrongForm(f"{call} is a plain function: define it with `async def`.")
    result = await answer
    if not isinstance(result, tuple | list) or len(result) != len(values):
        sized = isinstance(result, tuple | list)
        returned = f"{len(result)} values" if sized else f"a {type(result).__name__}"
        raise WrongForm(f"{call} must return ({', '.join(values)}), but returned {returned}.")
    return result


class Environment(abc.ABC):
    """One environment: subclasses implement `reset`, `step` and `render`.

    Simulators override `step_chunk` to render less.
    """

    spec: EnvSpec

    asks_questions: ClassVar[bool] = False
    """Whether tasks are sources of questions: a task is the `data_source` of its questions. Checks
    read it for the environments in `envs`.
    """
    is_tested: bool = True
    """Whether tests of siirl or Gymnasium cover the environment, so that checks before a job play
    no first step (`envs.trial`). Checks read it for the environments in `envs`.
    """

    @abc.abstractmethod
    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode; seed, options and actions determine it if `spec.replayable`.

        Args:
            seed: Seeds all randomness of the episode.
            options: `task` (one of `spec.tasks`; the first by default), `frames` ({stream:
                FrameRequest}), and options that the environment documents.

        Returns:
            Observation and info; info has `task` and, if frames were requested, `frames` ({stream:
            Frames}).

        Raises:
            ValueError: An unknown task or option; the message lists the known ones.
        """

    @abc.abstractmethod
    async def step(self, action: Any) -> StepResult:
        """Apply one action; returns (observation, reward, terminated, truncated, info).

        info has `success` if `spec.reports_success` (None for an ungraded episode, see
        `spec.leaves_ungraded`), and `frames` if `reset` requested them.

        Raises:
            ValueError: The action has the wrong shape, has NaN, or lies outside the space.
            RuntimeError: No episode runs: `reset` was not called, or the episode ended.
        """

    async def step_chunk(self, actions: Sequence[Any]) -> StepResult:
        """Apply K actions, stopping at the end of the episode; sums the rewards.

        Returns:
            The last executed step's values, with the summed reward. info also has `executed`
            (number of applied actions) and all frames of the chunk.
        """
        if len(actions) == 0:
            raise ValueError("step_chunk needs at least one action.")
        total: Any = 0.0
        frames, call = FrameBuffer(), f"{type(self).__name__}.step"
        for executed, action in enumerate(actions, start=1):
            observation, reward, terminated, truncated, info = await answer_of(
                self.step(action), call=call, values=STEP_VALUES
            )
            if not isinstance(info, Mapping):
                raise WrongForm(f"{call} returned the info {info!r:.80}: return a dict.")
            total = _added(total, reward, num_agents=self.spec.num_agents, call=call)
            frames.extend(frames_of(info, call=call))
            if _is_over(terminated, truncated, call=call):
                break
        info = {**info, "executed": executed}
        if frames.streams:
            info["frames"] = frames.take()
        return observation, total, terminated, truncated, info

    @abc.abstractmethod
    def render(self) -> NDArray[np.uint8]:
        """Return the current camera image, uint8 [height, width, 3].

        Raises:
            RuntimeError: The environment has no image.
        """

    def check_drawing(self, streams: Collection[str]) -> None:  # noqa: B027
        """Draw a picture if that is cheap, and drop it; checks before a job call it on an instance
        that plays no episode. By default nothing is drawn, because simulators are built at reset.

        Raises:
            Misbehaved: `render` is broken; `streams` are those that the job will request.
        """

    async def close(self) -> None:  # noqa: B027  (optional: most environments hold nothing)
        """Release simulators and processes; a second call does nothing."""


def frames_of(info: Mapping[str, Any], *, call: str) -> Mapping[str, Frames]:
    """`info["frames"]` of a user's `call`; empty without it.

    Raises:
        WrongForm: It is something else.
    """
    found = info.get("frames", {})
    if not isinstance(found, Mapping) or not all(
        isinstance(each, Frames) for each in found.values()
    ):
        raise WrongForm(
            f"{call} returned info['frames']={found!r:.80}: return the Frames of each stream, or "
            "give the entry another name."
        )
    return found


def _is_over(terminated: Any, truncated: Any, *, call: str) -> bool:
    try:
        return bool(terminated) or bool(truncated)
    except ValueError as error:  # an array of several
        raise WrongForm(
            f"{call} returned terminated={terminated!r:.40} and truncated={truncated!r:.40}: "
            "return two bools, also for several agents."
        ) from error


def _added(total: Any, reward: Any, *, num_agents: int, call: str) -> Any:
    """`total` plus the reward of a step; of several agents, each agent's own, as an array."""
    wanted = "a number" if num_agents == 1 else f"{num_agents} numbers, one for each agent"
    try:
        if num_agents == 1:
            return total + reward
        if len(reward) == num_agents:
            return total + np.asarray(reward)
    except (TypeError, ValueError) as error:  # ValueError: a list of lists
        raise WrongForm(f"{call} returned the reward {reward!r:.80}: return {wanted}.") from error
    raise WrongForm(f"{call} returned the reward {reward!r:.80}: return {wanted}.")


class FrameBuffer:
    """Collects frames of several streams, to return them as `Frames`."""

    def __init__(self) -> None:
        self.streams: dict[str, tuple[list[NDArray[np.uint8]], list[int]]] = {}

    def add(self, stream: str, image: NDArray[np.uint8], step: int) -> None:
        """Append one image, uint8 [size, size, 3], taken after environment step `step`."""
        images, steps = self.streams.setdefault(stream, ([], []))
        images.append(image)
        steps.append(step)

    def extend(self, frames: Mapping[str, Frames]) -> None:
        """Append the frames of `info["frames"]`."""
        for stream, part in frames.items():
            for image, step in zip(part.images, part.steps, strict=True):
                self.add(stream, image, step)

    def take(self) -> dict[str, Frames]:
        """Return the collected frames and empty the buffer."""
        taken = {
            name: Frames(np.stack(images), tuple(steps))
            for name, (images, steps) in self.streams.items()
        }
        self.streams = {}
        return taken
