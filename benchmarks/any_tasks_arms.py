"""Arms of `benchmarks.any_tasks`: the commands of each, and what their files say afterwards.

`Reinforced` is the documented workflow: `siirl.warm_start`, then `siirl.train`. `Cloned` and
`Supervised` are what a user can do instead. `FromScratch` needs no warm start.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.any_tasks_suites import Group, Suite

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
RANKED = "reward/oracle_rank_correlation"
"""Over the failures of a task in a step, mean over tasks; only where the distance is known."""
Found = dict[str, list[float]]
"""Of each task: successes and episodes, or the mean return."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A group of tasks with a seed, and where its files are."""

    suite: Suite
    number: int
    """The group's, from 1."""
    seed: int
    episodes: int
    """Held-out episodes of each task."""
    steps: int | None
    """Training steps; None: the default."""
    work: Path

    @property
    def group(self) -> Group:
        """The tasks."""
        return self.suite.groups[self.number - 1]

    @property
    def words(self) -> list[str]:
        """Environment and seed."""
        return [*self.suite.words(self.group), f"trainer.seed={self.seed}"]

    def folder(self, arm: str) -> Path:
        """Of an arm's runs and result."""
        return self.work / f"group{self.number}_{arm}_seed{self.seed}"


@dataclass(frozen=True)
class Cost:
    """Time of a command."""

    minutes: float
    processor_minutes: float
    """Of the process and the children that it waited for: without Ray, of all."""


class Arm(Protocol):
    """A way from tasks to a policy."""

    def run(self, job: Job, folder: Path) -> dict[str, Any]:
        """`before`, `after`, minutes and more; commands whose result is there are left out."""


@dataclass(frozen=True)
class Reinforced:
    """Warm start, then training on its result."""

    warm_start: tuple[str, ...] = ()
    train: tuple[str, ...] = ()

    def run(self, job: Job, folder: Path) -> dict[str, Any]:
        """See `Arm.run`."""
        weights, cost = start(job, self.warm_start)
        path = f"actor_rollout_ref.model.path={weights}"
        return {**start_cost(job, cost), **train(job, [*self.train, path], folder=folder)}


@dataclass(frozen=True)
class FromScratch:
    """Training of new weights."""

    train: tuple[str, ...] = ()

    def run(self, job: Job, folder: Path) -> dict[str, Any]:
        """See `Arm.run`."""
        return train(job, self.train, folder=folder)


@dataclass(frozen=True)
class Cloned:
    """A longer warm start from more demonstrations, and no training."""

    warm_start: tuple[str, ...]
    plain: tuple[str, ...] = ()
    """Of the warm start that it is compared with."""

    def run(self, job: Job, folder: Path) -> dict[str, Any]:
        """See `Arm.run`."""
        weights, cost = start(job, self.warm_start)
        plain, _ = start(job, self.plain)
        return {
            **start_cost(job, cost),
            "before": evaluate(job, plain, folder=folder),
            "after": evaluate(job, weights, folder=folder),
        }


@dataclass(frozen=True)
class Supervised:
    """The warm start continued on further answers, for the processor time that training took."""

    reference: str
    """The arm whose training it is compared with; has run."""

    def run(self, job: Job, folder: Path) -> dict[str, Any]:
        """See `Arm.run`."""
        file = job.folder(self.reference) / "result.json"
        if not file.is_file():
            raise SystemExit(f"supervised takes as long as {self.reference}: run that arm as well.")
        reference = json.loads(file.read_text())
        plain, cost = start(job, ())
        begun = json.loads((plain / "warm_start.json").read_text())["updates"]
        share = reference["processor_minutes"] / cost.processor_minutes
        updates = max(1, round(begun * share))
        output = folder / "weights"
        command, further = call(
            "siirl.warm_start",
            *("--output", str(output), "--updates", str(updates), "--stop-at", "2"),
            *(*job.words, f"actor_rollout_ref.model.path={plain}"),
        )
        return {
            **start_cost(job, cost),
            **costs(job, further),
            "command": command,
            "updates": updates,
            "before": reference["before"],
            "after": evaluate(job, output, folder=folder),
        }


NO_TARGET_NOISE = ("--target-noise", "0")
INDEPENDENT = (f"{ROLLOUT}.noise_correlation=0",)
BY_SCHEDULE = (f"{ACTOR}.target_kl=null", f"{ACTOR}.ppo_epochs=2")
MORE_DEMONSTRATIONS = ("--demonstrations", "40", "--updates", "3000")
"""On Meta-World about as long as training and its evaluations."""
ARMS: dict[str, dict[str, Arm]] = {
    "metaworld": {
        "defaults": Reinforced(),
        "success": Reinforced(train=("reward=success",)),
        "video_value": Reinforced(train=("reward=video_value",)),
        "oracle": Reinforced(train=("reward=oracle",)),
        "ppo": Reinforced(train=("pipeline=ppo",)),
        "learnable": Reinforced(train=("data.task_sampling=learnable",)),
        "dapo": Reinforced(train=("pipeline=dapo", "reward=success")),  # refills dropped groups
        "cloning": Cloned((*NO_TARGET_NOISE, *MORE_DEMONSTRATIONS), plain=NO_TARGET_NOISE),
        "earlier_defaults": Reinforced(NO_TARGET_NOISE, (*INDEPENDENT, *BY_SCHEDULE)),
        "without_target_noise": Reinforced(NO_TARGET_NOISE),
        "without_correlation": Reinforced(train=INDEPENDENT),
        "without_target_kl": Reinforced(train=BY_SCHEDULE),
    },
    "libero": {
        "defaults": Reinforced(),
        "success": Reinforced(train=("reward=success",)),
        "cloning": Cloned(MORE_DEMONSTRATIONS),
    },
    "text": {"defaults": Reinforced(), "supervised": Supervised("defaults")},
    "control": {"defaults": FromScratch()},
}
"""Arms by suite. `defaults` has no option."""


def start(job: Job, words: tuple[str, ...]) -> tuple[Path, Cost]:
    """Weights of `siirl.warm_start`, and the time that it took; made once."""
    weights = job.work / f"start{job.number}{''.join(words)}_seed{job.seed}"
    note = weights / "cost.json"
    if not note.is_file():
        _, cost = call("siirl.warm_start", "--output", str(weights), *words, *job.words)
        note.write_text(json.dumps([cost.minutes, cost.processor_minutes]))
    return weights, Cost(*json.loads(note.read_text()))


def train(job: Job, words: Sequence[str], *, folder: Path) -> dict[str, Any]:
    """Train by the defaults but for `words`; what metrics and evaluations say."""
    length = [] if job.steps is None else [f"trainer.total_steps={job.steps}"]
    command, cost = call(
        "siirl.train",
        *(*job.words, *job.suite.train, *words, *length, *quiet(job, folder)),
        *("trainer.experiment_name=run", "trainer.max_minutes=null", "trainer.record_episodes=0"),
    )
    run = max((folder / "run").iterdir())  # names are times; earlier ones were interrupted
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["step"] > 0]
    evaluated = [row for row in rows if "val/all/return" in row]
    curve = {"success": "rollout/success_rate", "return": "rollout/return"}[job.suite.measure]
    return {
        **costs(job, cost),
        "command": command,
        "minutes": sum(row["time/step_s"] for row in trained) / 60,
        "steps": trained[-1]["step"],
        "environment_steps": sum(row["env/steps"] for row in trained),
        "curve": [row.get(curve) for row in trained],
        "failures_ranked": thirds([row.get(RANKED) for row in trained]),
        "before": found_in(evaluated[0], job),
        "after": found_in(evaluated[-1], job),
    }


def thirds(values: Sequence[float | None]) -> list[float | None]:
    """Means of the first, the middle and the last third of the steps; None: no step has a value."""
    parts = (
        [value for value in part.tolist() if value is not None]
        for part in np.array_split(np.array(values, object), 3)
    )
    return [statistics.fmean(part) if part else None for part in parts]


def found_in(row: Mapping[str, float], job: Job) -> Found:
    """What one evaluation of training found of each task."""
    first, *others = {"success": ("successes", "episodes"), "return": ("return",)}[
        job.suite.measure
    ]
    names = [name.split("/") for name in row if name.startswith("val/")]
    tasks = [parts[1] for parts in names if len(parts) == 3 and parts[2] == first]
    return {
        task: [row[f"val/{task}/{kind}"] for kind in (first, *others)]
        for task in tasks
        if task != "all"
    }


def evaluate(job: Job, weights: Path, *, folder: Path) -> Found:
    """Successes and episodes of each task on the episodes that training holds out."""
    call("siirl.evaluate", f"checkpoint={weights}", *job.words, *quiet(job, folder))
    found = json.loads((max((folder / "evaluation").iterdir()) / "evaluation.json").read_text())
    return {
        task: [measured["successes"], measured["episodes"]]
        for task, measured in found["success"]["sampled"].items()
        if task != "all"
    }


def quiet(job: Job, folder: Path) -> list[str]:
    """Output and held-out episodes of training and evaluation."""
    return [
        f"trainer.output_dir={folder}",
        f"trainer.val_episodes={job.episodes}",
        "trainer.record_val_episodes=0",
    ]


def start_cost(job: Job, cost: Cost) -> dict[str, float]:
    """Columns of the warm start's time."""
    return {f"start_{name}": value for name, value in costs(job, cost).items()}


def costs(job: Job, cost: Cost) -> dict[str, float]:
    """Columns of a command's time; with Ray, most of it is other processes'."""
    processor = {"processor_minutes": cost.processor_minutes} if job.suite.one_process else {}
    return {"minutes": cost.minutes, **processor}


def call(module: str, *words: str) -> tuple[str, Cost]:
    """Run `python -m module`; returns the command and its time.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    begun = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", module, *words])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, [module, *words])
    used = usage.ru_utime + usage.ru_stime
    cost = Cost((time.monotonic() - begun) / 60, used / 60)
    return " ".join(["python -m", module, *words]), cost
