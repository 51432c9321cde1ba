"""Keys of the graph: a shipped pipeline or a user's graph."""

from dataclasses import dataclass, field

from siirl.params.fields import described, option

APPORTIONS = ("even", "param_aware")
BACKEND_THRESHOLD = 256  # siiRL, "Implementation Explained"


@dataclass
class DagArguments:
    """The graph: a shipped pipeline's, or your own by one of the two keys after it."""

    pipeline: str | None = option(
        None,
        "File in pipelines/; set by pipeline=. null: your own graph, with the keys' defaults.",
        why="configs/train.yaml chooses embodied_srpo, the demo job, unless you name a graph",
    )
    workflow_file: str | None = option(
        None,
        "YAML workflow that replaces the pipeline and its defaults; with pipeline=NAME, the "
        "defaults of that pipeline apply, but not its graph.",
        path=True,
    )
    custom_pipeline_fn: str | None = option(
        None,
        "`module:function` that returns a graph; replaces the pipeline and its defaults like "
        "workflow_file.",
    )
    enable_perf: bool = option(
        False,
        "Synchronise the device before a node's time is measured.",
        why="exact times cost a little speed",
    )
    backend_threshold: int = option(
        BACKEND_THRESHOLD,
        "Number of ranks from which gloo is used in addition to NCCL.",
        why="siiRL's value, not measured here: metrics and logs then leave NCCL to gradients",
        minimum=1,
    )

    groups: dict[str, int | None] = field(
        default_factory=dict,
        metadata=described(
            "Ranks of each resource group: {rollout: 2, train: 6}; null instead of a number leaves "
            "it to apportion. {}: every rank rolls out and trains (docs/asynchronous.md).",
            why="colocated ranks need no copy of the weights",
        ),
    )
    apportion: str = option(
        "param_aware",
        "How ranks are divided among groups without a number: `even`, or by the parameters of the "
        "models that each group runs. The result is the nearest sizes whose training ranks divide "
        "a mini-batch's trajectories.",
        why="the models are the work",
        choices=APPORTIONS,
    )

    @property
    def own_graph(self) -> str | None:
        """Reference or file of the user's graph; None with a shipped pipeline."""
        return self.custom_pipeline_fn or self.workflow_file

    @property
    def shipped_graph(self) -> str | None:
        """Pipeline whose graph runs; None for a user's graph, even with a pipeline's defaults."""
        return None if self.own_graph else self.pipeline
