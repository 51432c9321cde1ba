"""Estimates the duration of a run from measured runs of the shipped models and this machine's
speed.

Left out: the remaining time of a running job, which siirl.reporting.progress derives from its
steps.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from envs.base import EnvSpec
from siirl.params import sizes
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.memory import policy_parameters

# the shipped models have 0.7 to 2.4 million weights; much larger ones were not measured
MEASURED_PARAMETERS = 5_000_000


PROBE_S = 0.004
"""Seconds of `_work` on the otherwise idle machine of `COSTS` (fastest of 50)."""
_PROBES = 15


@dataclass(frozen=True)
class Cost:
    """Seconds on a two-core machine (November 2026)."""

    step: float
    """Core seconds of an environment step (a turn of text), including its share of resets, images
    and policy inference.
    """
    limit_share: float
    """Mean episode length as a share of the step limit."""
    update: float
    """Seconds of a rank for one forward and backward pass of one trajectory."""


# From env/steps, time/rollout_actor_s and time/actor_train_s of the runs in
# benchmarks/results/*_learning*.json.
COSTS = {
    "metaworld": Cost(step=1.0e-3, limit_share=0.75, update=3e-3),
    "libero": Cost(step=4.3e-3, limit_share=0.6, update=9e-3),
    "math": Cost(step=9e-4, limit_share=1.0, update=2e-4),
    "tools": Cost(step=0.028, limit_share=0.33, update=1e-3),
    "sandbox": Cost(step=0.12, limit_share=1.0, update=1e-3),
}


def measured_speed(work: Callable[[], object] | None = None) -> float:
    """Present speed of this machine relative to the machine of `COSTS`.

    Runs a fixed mix of interpreter and matrix work, similar to simulation and small policies, for a
    few hundredths of a second. Other work on the machine lowers this speed, as it will lower the
    run's; the mean of many short pieces captures its share of the cores.
    """
    work = work or _work
    work()  # the first call also loads the libraries
    begin = time.perf_counter()
    for _ in range(_PROBES):
        work()
    return PROBE_S * _PROBES / (time.perf_counter() - begin)


def _work() -> float:
    """Work that spends half of its time in the interpreter, and half in single-threaded matrix
    products.
    """
    total = 0.0
    for number in range(40_000):
        total += number * 0.5
    matrix = torch.eye(64)
    for _ in range(100):
        matrix = torch.tanh(matrix @ matrix + 0.1)
    return total + float(matrix[0, 0])


def estimated_minutes(
    config: SiiRLArguments,
    env_spec: EnvSpec,
    *,
    cores: int,
    val_episodes: int,
    done: int = 0,
    plays: bool = True,
    speed: float = 1.0,
) -> float | None:
    """Minutes of training after `done` steps and of `val_episodes` evaluation episodes, on `cores`
    CPU cores of `speed` (`measured_speed`).

    An agent group that does not play (`plays`) trains on another's episodes. None without a
    comparable measurement: answers to prompts from files may have any length.
    """
    trainer, cost = config.trainer, COSTS.get(config.env.name)
    if trainer.total_steps is None:
        return trainer.max_minutes
    large = policy_parameters(config.actor_rollout_ref.model) > MEASURED_PARAMETERS
    if cost is None or large or config.data.train_files:
        return None
    episode = (
        cost.limit_share
        * env_spec.max_episode_steps
        * cost.step
        / min(cores, sizes.slots(config.env, ranks=sizes.rollout_ranks(config.trainer, config.dag)))
    )
    update = (
        config.actor_rollout_ref.actor.ppo_epochs
        * cost.update
        / min(cores, sizes.training_ranks(config.trainer, config.dag))
    )
    trajectories = (trainer.total_steps - done) * sizes.trajectories_per_step(
        config.data, config.actor_rollout_ref.rollout
    )
    training = trajectories * (plays * episode + update) / speed / 60
    bounded = training if trainer.max_minutes is None else min(training, trainer.max_minutes)
    return bounded + val_episodes * episode / speed / 60
