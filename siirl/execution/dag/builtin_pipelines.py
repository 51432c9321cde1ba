"""The built-in pipelines under the names that the documents import; each is written in its own file under pipelines/."""

from collections.abc import Callable

from pipelines.embodied_srpo import embodied_srpo_pipeline
from pipelines.grpo import grpo_pipeline
from siirl.execution.dag.task_graph import TaskGraph

__all__ = ["PIPELINES", "embodied_srpo_pipeline", "grpo_pipeline"]

PIPELINES: dict[str, Callable[[], TaskGraph]] = {
    "embodied_srpo": embodied_srpo_pipeline,
    "grpo": grpo_pipeline,
}
