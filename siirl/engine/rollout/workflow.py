"""Episodes as coroutines: `EpisodeRequest` in, `Trajectory` out, run by
`RolloutWorkflow.arun_episode(engine, data)`; many at once by
`siirl.engine.rollout.inference_engine.InferenceEngine`.

The workflows of the two domains are `embodied_workflow` and `text_workflow`. In both, an episode
requests actions from the engine and passes them to its environment until it ends; nothing is
computed for it afterwards. Many episodes run at once; the engine decides which of them share a
forward pass.
"""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensordict import TensorDict

from envs.base import Frames
from siirl.data_coordinator.sample import Sample, Samples2Dict
from siirl.engine.rollout.generation import EngineWithTokenizer
from siirl.errors import InvariantError, SimulationFailed


@dataclass(frozen=True)
class EpisodeRequest:
    """One requested rollout: the episode, and the seed of the policy in it."""

    uid: str
    """Unique over the whole run."""
    group_id: int
    """Rollouts of one prompt (task and seed) share it."""
    task: str
    task_id: int
    trial_id: int
    seed: int
    """Fixes the environment; the same for all rollouts of a group."""
    policy_seed: tuple[int, ...]
    """Fixes the sampled actions; unique to this rollout."""
    greedy: bool = False
    """Take greedy tokens (the most likely ones) instead of sampling."""
    noise_correlation: float = 0.0
    """Robots: correlation of the random numbers of successive actions, for exploration."""
    record: bool = False
    """Whether to record a video."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the environment's reset, such as `split` or a whole `row`."""


@dataclass
class Trajectory:
    """One finished episode: the row for training, and data that training batches do not carry."""

    row: dict[str, Any]
    """Batch columns of one sample, unpadded (legend: siirl.data_coordinator)."""
    instruction: str = ""
    frames: dict[str, Frames] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    """For human readers, as JSON values: messages, turns, verdict, reward parts."""
    changed_instruction: str = ""
    """How a robot's instruction changed within a row that has room for only one
    (`EnvSpec.instruction_changes`); such a row cannot be trained on.
    """


class RolloutWorkflow(abc.ABC):
    """Runs the episodes of a domain; users may subclass it."""

    @abc.abstractmethod
    async def arun_episode(
        self, engine: Any, data: Any
    ) -> Trajectory | Sequence[Trajectory] | None:
        """Run one episode; returns its trajectories, or None if the episode is rejected."""

    def engine_with_tokenizer(self, engine: Any) -> EngineWithTokenizer | None:
        """How `engine` plays roles in other agent groups' environments; None: it plays none."""
        return None


Outcome = list[Trajectory] | SimulationFailed
"""Result of an episode: its trajectories (none if rejected), or the reason why its simulation
failed."""


@dataclass(frozen=True)
class RolloutResult:
    """Results of a list of requests."""

    trajectories: list[Trajectory] = field(default_factory=list)
    """Rows of finished episodes, in the order of the requests; an episode's rows are adjacent."""
    failed: list[tuple[Any, SimulationFailed]] = field(default_factory=list)
    """Episodes that could not be simulated, with the reason."""
    rejected: list[Any] = field(default_factory=list)
    """Episodes that the workflow or the caller rejected."""
    broken_off: int = 0
    """Number of the signal that stopped the episodes (siirl.interrupts); 0: none. If set, the other
    fields are empty.
    """

    def batch(self) -> TensorDict:
        """Rows of the finished episodes as a padded batch."""
        return Samples2Dict([Sample(trajectory.row) for trajectory in self.trajectories])

    def training_batch(self) -> TensorDict:
        """As `batch`, for training.

        Raises:
            InvariantError: The instruction of a row changed, but the row has room for one: its
                later actions would be scored under another text than the one they were chosen for.
        """
        for trajectory in self.trajectories:
            if trajectory.changed_instruction:
                raise InvariantError(
                    f"The instruction of task {trajectory.row['task_name']!r} changed within an "
                    f"episode ({trajectory.changed_instruction}), but its environment does not "
                    "declare this: set instruction_changes=True in its EnvSpec, or keep the text "
                    "the same until the episode ends."
                )
        return self.batch()

    def add(self, data: Any, outcome: Outcome) -> None:
        """Add the outcome of the episode requested by `data`."""
        if isinstance(outcome, SimulationFailed):
            self.failed.append((data, outcome))
        elif outcome:
            self.trajectories.extend(outcome)
        else:
            self.rejected.append(data)

    def reasons(self) -> list[str]:
        """Reason and task of each episode that could not be simulated; a traceback is below."""
        return [_reason(request.task, failure) for request, failure in self.failed]


def _reason(task: str, failure: SimulationFailed) -> str:
    # the failure names the seed of the episode: a segment's request may have another
    sentence, newline, trace = (failure.culprit or str(failure)).partition("\n")
    name = f"task {task!r}" + (f", {failure.episode}" if failure.episode else "")
    return f"{sentence.rstrip('.')} ({name}).{newline}{trace}"


def trajectories_of(workflow: RolloutWorkflow, returned: Any) -> list[Trajectory]:
    """The value returned by `arun_episode` as a list; empty if the episode was rejected.

    Raises:
        TypeError: The workflow returned something other than trajectories or None.
    """
    if returned is None:
        return []
    trajectories = [returned] if isinstance(returned, Trajectory) else list(returned)
    for trajectory in trajectories:
        if not isinstance(trajectory, Trajectory):
            got = type(trajectory).__name__
            raise TypeError(
                f"{type(workflow).__name__}.arun_episode must return a Trajectory, several of "
                f"them, or None; got {got}."
            )
    return trajectories
