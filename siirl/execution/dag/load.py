"""Loads the graph of a job: a built-in pipeline by name, a user's function, or a YAML file."""

from envs.mistakes import user_code
from siirl.errors import ConfigError, SiirlError, UnknownNameError
from siirl.execution.dag.builtin_pipelines import PIPELINES
from siirl.execution.dag.function_names import resolve_function
from siirl.execution.dag.pipeline import Pipeline
from siirl.execution.dag.task_graph import TaskGraph
from siirl.execution.dag.workflow_file import load_workflow_file


def load_pipeline(
    *, pipeline: str | None, custom_pipeline_fn: str | None = None, workflow_file: str | None = None
) -> TaskGraph:
    """Build and check the graph of a job.

    Args:
        pipeline: Name of a built-in one; required unless one of the others is given.
        custom_pipeline_fn: `module:function` that returns a TaskGraph (`dag.custom_pipeline_fn`).
        workflow_file: Path of a YAML file (`dag.workflow_file`).

    Raises:
        ConfigError: Both of the last two are given, an unknown name, or an invalid graph.
    """
    if custom_pipeline_fn and workflow_file:
        raise ConfigError(
            f"dag.custom_pipeline_fn={custom_pipeline_fn!r} and "
            f"dag.workflow_file={workflow_file!r} both name a graph. Give one of them."
        )
    if workflow_file:
        return load_workflow_file(workflow_file)
    if custom_pipeline_fn:
        return _custom(custom_pipeline_fn)
    return PIPELINES[check_name(pipeline)]()


def check_name(pipeline: str | None) -> str:
    """The name of a built-in pipeline.

    Raises:
        ConfigError: It is None, or unknown.
    """
    if pipeline is None:
        raise ConfigError(
            "dag.pipeline=null, but no custom graph is named: choose pipeline=NAME "
            f"({', '.join(PIPELINES)}), or give "
            "dag.workflow_file=FILE.yaml or dag.custom_pipeline_fn=module:function."
        )
    if pipeline not in PIPELINES:
        raise UnknownNameError.of(kind="pipeline", name=pipeline, known=PIPELINES)
    return pipeline


def _custom(reference: str) -> TaskGraph:
    make = resolve_function(reference, owner="dag.custom_pipeline_fn")
    with user_code(
        lambda raised: ConfigError(
            f"dag.custom_pipeline_fn={reference!r} is called without arguments, and raised "
            f"{raised}."
        ),
        passed=SiirlError,  # an invalid graph
    ):
        graph = make()
    if isinstance(graph, Pipeline):  # `.build()` forgotten
        graph = graph.build()
    if not isinstance(graph, TaskGraph):
        raise ConfigError(
            f"dag.custom_pipeline_fn={reference!r} returned {type(graph).__name__}, but must "
            "return a TaskGraph."
        )
    graph.check()
    return graph
