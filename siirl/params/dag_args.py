"""Which graph is walked: a shipped pipeline's, or one of the user's own."""

from dataclasses import dataclass

from siirl.params.fields import option


@dataclass
class DagArguments:
    """The graph: a shipped pipeline's, or your own by one of the two keys after it."""

    pipeline: str | None = option(
        None,
        "File in pipelines/; set by pipeline=. null: the graph is your own, with the defaults "
        "of the keys.",
        why="configs/train.yaml chooses embodied_srpo, the demo job, where no graph of your own "
        "is named",
    )
    workflow_file: str | None = option(
        None,
        "YAML workflow with nodes, in place of a pipeline and of its defaults; pipeline=NAME "
        "beside it takes the defaults of that one, "
        "and not its graph.",
    )
    custom_pipeline_fn: str | None = option(
        None,
        "`module:function` that returns a graph, in place of a pipeline and of its defaults, as "
        "workflow_file.",
    )
    enable_perf: bool = option(
        False,
        "Wait for the device before a node's time is taken.",
        why="exact times cost a little speed",
    )
    backend_threshold: int = option(
        256, "From this number of ranks on, gloo beside NCCL.", why="siiRL's", minimum=1
    )

    @property
    def own_graph(self) -> str | None:
        """What names the user's own graph; None where a shipped one is walked."""
        return self.custom_pipeline_fn or self.workflow_file

    @property
    def shipped_graph(self) -> str | None:
        """The pipeline whose graph is walked; None for the user's own, whichever pipeline gave the
        defaults.
        """
        return None if self.own_graph else self.pipeline
