"""Estimates the disk space of a run: checkpoints, videos and logs."""

import math

from siirl.dag_worker.manifest import KEPT_CHECKPOINTS
from siirl.params.model_args import ModelArguments
from siirl.params.training_args import TrainingArguments
from siirl.preflight.memory import BYTES_PER_PARAMETER, policy_parameters

MOMENTS_BYTES_PER_PARAMETER = 8  # Adam's two moments, in a checkpoint
VIDEO_BYTES = 300e3  # a few seconds of 256x256 mp4
LOG_BYTES = 20e6
SHORTEST_STEP_S = 1.0  # with videos; bounds their number if max_minutes ends the run


def disk_bytes(
    trainer: TrainingArguments,
    model: ModelArguments,
    *,
    models: int,
    trajectories: int,
    val_episodes: int,
    evaluations: int | None,
) -> float:
    """Bytes of checkpoints, videos and logs.

    Args:
        trainer: How often a run saves and records.
        model: Its policy.
        models: 2 with a critic, else 1.
        trajectories: Of a step.
        val_episodes: Of one evaluation.
        evaluations: Of the run; None if its number of steps is open.
    """
    steps = _steps_at_most(trainer)
    written = 1 + (steps // trainer.save_freq if trainer.save_freq > 0 else 0)
    # the oldest is deleted after the newest is written
    checkpoints = min(written, KEPT_CHECKPOINTS + 1)
    # one after each step, one before training, one at the end
    evaluations = min(evaluations or 1, steps + 2)
    of_a_step = min(trainer.record_episodes, trajectories)  # a large number records all
    videos = steps * of_a_step + evaluations * min(trainer.record_val_episodes, val_episodes)
    trained = models - int(model.lora.rank > 0)
    weights = models * BYTES_PER_PARAMETER + trained * MOMENTS_BYTES_PER_PARAMETER
    parameters = policy_parameters(model)
    return checkpoints * parameters * weights + videos * VIDEO_BYTES + LOG_BYTES


def _steps_at_most(trainer: TrainingArguments) -> int:
    """Upper bound of the run's steps; 0 if only max_minutes bounds it."""
    steps = trainer.total_steps or 0
    return (
        steps
        if trainer.max_minutes is None
        else min(steps, math.ceil(60 * trainer.max_minutes / SHORTEST_STEP_S))
    )
