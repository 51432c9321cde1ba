"""Which graph is walked."""

from dataclasses import dataclass

from siirl.params.fields import option


@dataclass
class DagArguments:
    """The pipeline; of the first three keys, the last that is set wins."""

    pipeline: str = option("embodied_srpo", "File in pipelines/; set by pipeline=.", why="the demo job")
    workflow_file: str | None = option(None, "YAML workflow with nodes, instead of a pipeline.")
    custom_pipeline_fn: str | None = option(None, "`module:function` that returns a graph, instead of a pipeline.")
    enable_perf: bool = option(False, "Wait for the device before a node's time is taken.", why="exact times cost a little speed")
    backend_threshold: int = option(
        256, "From this number of ranks on, gloo beside NCCL.", why="siiRL's code; its guide also says 32", minimum=1
    )
