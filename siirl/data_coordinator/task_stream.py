"""Stream of training episodes (task, trial, seed): a pure function of run seed and position.

Prompt i belongs to pass i // number of tasks; each pass has its own order of all tasks. Rank r of R
takes every R-th prompt without communication. The state is one position, from which any number of
ranks can resume. The seeds are those of training (`envs.seeds`).

Left out: text prompts from files (`siirl.data_coordinator.prompts`), and running the episodes
(siirl.engine.rollout).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from envs.seeds import FIRST_DEMONSTRATION_SEED, FIRST_TRAINING_SEED, LAST_SEED
from siirl.errors import CheckpointError, ConfigError
from siirl.params.build import as_text
from siirl.params.key_names import MODEL_PATH

LOADER_COLUMNS = frozenset({"index", "task_name", "task_id", "trial_id", "seed"})
"""Columns of `EpisodeTask.columns`, for `TaskGraph.check_columns(loader_columns=...)`."""

TASKS_KEY = "env.tasks"
SEED_KEYS = "data.seed, by default trainer.seed"
SAME_OR_NEW = (
    "Resume with the same, or start a new run from the checkpoint's weights "
    f"({MODEL_PATH}=CHECKPOINT/actor)."
)

Outcomes = Mapping[str, tuple[int, int]]
"""Successes and graded episodes of each task."""


@dataclass(frozen=True)
class EpisodeTask:
    """A prompt of embodied training: the n rollouts of its group all start from it."""

    task: str
    task_id: int
    """Position in the list of tasks."""
    trial_id: int
    """Number of earlier prompts of the same task."""
    seed: int
    """Fixes the environment."""
    group_id: int
    """Unique over the run."""

    def columns(self) -> dict[str, Any]:
        """The task as columns of a batch; `Samples2Dict([Sample(task.columns()) for task in
        tasks])` builds one.
        """
        values = asdict(self)
        return {"index": values.pop("group_id"), "task_name": values.pop("task"), **values}


class Loader(Protocol):
    """A stream of prompts, seen from one rank; `TaskLoader` and
    `siirl.data_coordinator.prompts.PromptLoader`.
    """

    def draw(self, count: int) -> Sequence[EpisodeTask]:
        """This rank's share of the next `count` prompts; all ranks ask for the same count."""

    def observe(self, outcomes: Sequence[Outcomes]) -> None:
        """Record a rollout's outcomes, rank by rank; every rank gets the same."""

    def metrics(self) -> dict[str, float]:
        """Position in the data; the same on every rank."""

    def passes(self) -> float:
        """Passes over the prompts so far, 0 for an endless stream; the same on every rank."""

    def state_dict(self) -> dict[str, Any]:
        """The global state: the same on every rank."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, on any number of ranks."""

    def close(self) -> None:
        """End processes that read ahead; safe to call twice."""


class TaskLoader:
    """The training stream, seen from one rank.

    Args:
        tasks: Names of the tasks.
        weights: Prompts of each task in a pass over the tasks; None: one each.
        prompts_per_step: `data.train_batch_size`, over all ranks.
        seed: Seed of the order and of the environments; runs with different seeds have different
            episodes.
        rank: This rank; it gets the prompts at positions rank, rank + ranks, … of each step.
        ranks: Number of ranks.
        tasks_from: The setting that has these tasks, for messages.

    Raises:
        ConfigError: No tasks, a repeated task, fewer prompts than ranks, or a rank out of range.
    """

    sampling = "even"
    """Value of `data.task_sampling`."""

    def __init__(
        self,
        *,
        tasks: Sequence[str],
        weights: Sequence[int] = (),
        prompts_per_step: int,
        seed: int,
        rank: int = 0,
        ranks: int = 1,
        tasks_from: str = TASKS_KEY,
    ) -> None:
        _check_tasks(tasks)
        if not 0 <= rank < ranks:
            raise ConfigError(f"TaskLoader: rank {rank} of {ranks}; ranks count from 0.")
        check_prompts_per_step(prompts_per_step, ranks=ranks)
        self.tasks = tuple(tasks)
        self.weights = tuple(weights) or (1,) * len(self.tasks)
        self._pass = np.repeat(np.arange(len(self.tasks)), self.weights)
        self.prompts_per_step = prompts_per_step
        self.seed = seed
        self.rank, self.ranks = rank, ranks
        self.tasks_from = tasks_from
        self.position = 0
        """Prompts that all ranks together have taken."""

    def draw(self, count: int) -> list[EpisodeTask]:
        """This rank's share of the next `count` prompts; all ranks must request the same count
        (also in a refill).
        """
        first, self.position = self.position, self.position + count
        return [
            self._prompt(number) for number in range(first + self.rank, first + count, self.ranks)
        ]

    def prompts_at(self, numbers: Sequence[int]) -> list[EpisodeTask]:
        """Prompts of the stream by number, for any rank; the position does not change."""
        return [self._prompt(number) for number in numbers]

    def observe(self, outcomes: Sequence[Outcomes]) -> None:
        """Do nothing: the stream does not depend on outcomes."""

    def metrics(self) -> dict[str, float]:
        """Empty: the stream of start states has no end."""
        return {}

    def passes(self) -> float:
        """Passes over the data; 0, because the stream is endless."""
        return 0.0

    def state_dict(self) -> dict[str, Any]:
        """The global state: the same on every rank."""
        own = {
            "seed": self.seed,
            "tasks": list(self.tasks),
            "weights": list(self.weights),
            "task_sampling": self.sampling,
        }
        return {"position": self.position, **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from `state`, possibly with another number of ranks or prompts per step.

        Raises:
            CheckpointError: It belongs to a stream of other tasks, weights or sampling, or of
                another seed.
        """
        own = self.state_dict()
        saved = {
            "weights": [1] * len(state["tasks"]),
            "task_sampling": "even",
            **state,
        }  # older checkpoints lack these keys
        settings = {
            "seed": SEED_KEYS,
            "tasks": self.tasks_from,
            "weights": "data.task_weights",
            "task_sampling": "data.task_sampling",
        }
        for name, setting in settings.items():
            if saved[name] != own[name]:
                raise other_stream(name, its=saved[name], own=own[name], setting=setting)
        self.position = int(state["position"])

    def close(self) -> None:
        """Do nothing: no process reads ahead."""

    def _prompt(self, number: int) -> EpisodeTask:
        """Prompt `number` of the stream, for any rank."""
        passes, place = divmod(number, len(self._pass))
        order = self._pass[np.random.default_rng([self.seed, passes]).permutation(len(self._pass))]
        task_id = int(order[place])
        trial_id = passes * self.weights[task_id] + int((order[:place] == task_id).sum())
        return self._episode(task_id=task_id, trial_id=trial_id, number=number)

    def _episode(self, *, task_id: int, trial_id: int, number: int) -> EpisodeTask:
        seed = training_seed(run_seed=self.seed, number=number)
        return EpisodeTask(
            task=self.tasks[task_id], task_id=task_id, trial_id=trial_id, seed=seed, group_id=number
        )


def other_stream(name: str, *, its: Any, own: Any, setting: str) -> CheckpointError:
    """Refuse the checkpoint of a stream that differs from this run's in what `setting` decides."""
    return CheckpointError(
        f"The checkpoint's run has {name.replace('_', ' ')} {as_text(its)}, but this run has "
        f"{as_text(own)} ({setting}). {SAME_OR_NEW}"
    )


def training_seed(*, run_seed: int, number: int) -> int:
    """Seed of the environment for prompt `number`: in [1,000,000, 2**31), different for each prompt
    of a run.
    """
    available = LAST_SEED + 1 - FIRST_TRAINING_SEED
    start = int(np.random.SeedSequence(run_seed).generate_state(1, np.uint64)[0])
    return FIRST_TRAINING_SEED + (start + number) % available


def evaluation_tasks(
    *,
    tasks: Sequence[str],
    episodes_per_task: int,
    seed_offset: int = 0,
    rank: int = 0,
    ranks: int = 1,
) -> list[EpisodeTask]:
    """This rank's share of an evaluation: `episodes_per_task` episodes of each task, from the seeds
    that begin at `seed_offset`.

    Raises:
        ConfigError: Seeds outside those of held-out episodes (`envs.seeds`), or no tasks.
    """
    _check_tasks(tasks)
    if (
        episodes_per_task < 1
        or seed_offset < 0
        or seed_offset + episodes_per_task > FIRST_DEMONSTRATION_SEED
    ):
        raise ConfigError(
            f"trainer.val_episodes={episodes_per_task} from trainer.val_seed_offset={seed_offset} "
            f"are the seeds {seed_offset} to "
            f"{seed_offset + episodes_per_task - 1}. Evaluation seeds are 0 to "
            f"{FIRST_DEMONSTRATION_SEED - 1}; those above belong to demonstrations and training."
        )
    episodes = [
        EpisodeTask(
            task=task,
            task_id=task_id,
            trial_id=trial,
            seed=seed_offset + trial,
            group_id=trial * len(tasks) + task_id,
        )
        for trial in range(episodes_per_task)
        for task_id, task in enumerate(tasks)
    ]
    return episodes[rank::ranks]


def check_prompts_per_step(prompts_per_step: int, *, ranks: int) -> None:
    """Require a prompt for each rank.

    Raises:
        ConfigError: Fewer prompts than ranks.
    """
    if prompts_per_step < ranks:
        raise ConfigError(
            f"data.train_batch_size={prompts_per_step} leaves some of the {ranks} ranks "
            f"without a prompt. Use at least {ranks}."
        )


def _check_tasks(tasks: Sequence[str]) -> None:
    if isinstance(tasks, str) or not tasks:
        raise ConfigError(f"env.tasks={tasks!r} must be a list with at least one task.")
    if len(set(tasks)) < len(tasks):
        raise ConfigError(f"env.tasks={list(tasks)!r} names a task twice.")
