"""The built-in pipelines under their documented names; each is in a separate file of pipelines/."""

from collections.abc import Callable

from pipelines.dapo import dapo_pipeline
from pipelines.embodied_srpo import embodied_srpo_pipeline
from pipelines.grpo import grpo_pipeline
from pipelines.ppo import ppo_pipeline
from pipelines.remax import remax_pipeline
from siirl.execution.dag.task_graph import TaskGraph

__all__ = [
    "PIPELINES",
    "dapo_pipeline",
    "embodied_srpo_pipeline",
    "grpo_pipeline",
    "ppo_pipeline",
    "remax_pipeline",
]

PIPELINES: dict[str, Callable[[], TaskGraph]] = {
    "embodied_srpo": embodied_srpo_pipeline,
    "grpo": grpo_pipeline,
    "ppo": ppo_pipeline,
    "dapo": dapo_pipeline,
    "remax": remax_pipeline,
}
