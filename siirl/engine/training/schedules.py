"""Learning-rate schedules: a factor for each optimiser step, as plain functions.

There is no scheduler object: a checkpoint needs only the step number.
"""

import math
from collections.abc import Callable

from siirl.algos.call import register_in
from siirl.errors import ConfigError, UnknownNameError
from siirl.params import OptimizerArguments


def _flat(progress: float) -> float:
    return 1.0


def _linear(progress: float) -> float:
    return 1.0 - progress


def _cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


# Name -> factor after warm-up, as a function of the progress (0 to 1) of the rest of the run.
SCHEDULES: dict[str, Callable[..., float]] = {
    "constant": _flat,
    "constant_with_warmup": _flat,
    "linear": _linear,
    "linear_with_warmup": _linear,
    "cosine_with_warmup": _cosine,
}

SCHEDULE_ARGUMENTS = {"progress": "0 to 1, of the rest of the run after warm-up"}


def register_schedule(name: str) -> Callable[[Callable[..., float]], Callable[..., float]]:
    """Decorator that registers a schedule, a function of `progress` that returns the factor of the
    learning rate.

    Raises:
        ConfigError: Another function has this name, or the function requires another argument.
    """
    return register_in(SCHEDULES, name, kind="learning-rate schedule", known=SCHEDULE_ARGUMENTS)


WITHOUT_WARMUP = ("constant", "linear")


def warmup_length(
    *, scheduler: str, warmup_steps: int | None, warmup_ratio: float, total_steps: int | None
) -> int:
    """Optimiser steps of warm-up: `warmup_steps` if set, else `warmup_ratio` of the run.

    Raises:
        ConfigError: A ratio of a run of unknown length.
    """
    if scheduler in WITHOUT_WARMUP:
        return 0
    if warmup_steps is not None:
        return warmup_steps
    if total_steps is None and warmup_ratio > 0:
        raise ConfigError(
            f"optim.warmup_ratio={warmup_ratio} needs trainer.total_steps, or set "
            "optim.warmup_steps instead."
        )
    return 0 if total_steps is None else math.ceil(warmup_ratio * total_steps)


def learning_rate_factor(
    *, scheduler: str, step: int, warmup: int, total_steps: int | None
) -> float:
    """Factor of the learning rate in optimiser step `step` (from 0).

    Warm-up is linear and never 0: step 0 has 1 / (warmup + 1), step `warmup` has 1. A first step at
    rate 0 would waste its rollouts. Falling schedules reach 0 after the last of `total_steps` and
    stay there.

    Raises:
        UnknownNameError: No such schedule.
        ConfigError: A schedule that falls, in a run of unknown length.
    """
    if scheduler not in SCHEDULES:
        raise UnknownNameError.of(
            kind="learning-rate schedule (optim.scheduler)", name=scheduler, known=SCHEDULES
        )
    if step < warmup:
        return (step + 1) / (warmup + 1)
    factor = SCHEDULES[scheduler]
    if factor is _flat:
        return 1.0
    if total_steps is None:
        raise ConfigError(
            f"optim.scheduler={scheduler} needs the length of the run: set trainer.total_steps, or "
            "choose constant_with_warmup."
        )
    return float(factor(progress=min(1.0, (step - warmup) / max(1, total_steps - warmup))))


def schedule_factor(
    settings: OptimizerArguments, *, step: int, progress: float, total_steps: int | None
) -> float:
    """Factor of the learning rate `optim.lr` in optimiser step `step`.

    Args:
        settings: The group `optim`.
        step: Optimiser steps so far.
        progress: Share of the run that is done, in [0, 1]. Schedules follow it, because filters may
            leave fewer optimiser steps than planned.
        total_steps: Optimiser steps of the run; None if unknown.

    Raises:
        UnknownNameError: No such schedule.
        ConfigError: A schedule or warm-up that needs the length of the run.
    """
    warmup = warmup_length(
        scheduler=settings.scheduler,
        warmup_steps=settings.warmup_steps,
        warmup_ratio=settings.warmup_ratio,
        total_steps=total_steps,
    )
    if total_steps is not None and step >= warmup:
        step = max(step, int(progress * total_steps))
    return learning_rate_factor(
        scheduler=settings.scheduler, step=step, warmup=warmup, total_steps=total_steps
    )
