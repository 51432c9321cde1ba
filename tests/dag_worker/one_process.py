"""A whole run in the test's own process: what a DAGWorker reports of it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from siirl.dag_worker.dagworker import DAGWorker
from siirl.dag_worker.events import Event, StepDone
from siirl.params.parser import parse_config
from siirl.preflight.configured_graph import load_graph
from siirl.reporting.metrics import AGENT_PREFIX

TIMED = (
    "time/",
    "perf/",
    "sync/seconds",
    "sync/swap_seconds",
    "env/steps_per_s",
    "env/busy",
    "policy/busy",
    "policy/calls_per_s",
    "rollout/tokens_per_s",
    "memory/",
)


def events_of(
    folder: Path, words: Sequence[str], *, config_file: Path | None = None
) -> Iterator[Event]:
    """Yields the worker's events for the job of `words`; its run folder is
    `folder`.
    """
    config = parse_config(words, config_file=config_file)
    config.trainer.threads_per_rank = 1
    folder.mkdir(exist_ok=True)
    worker = DAGWorker(
        config=config,
        graph=load_graph(config),
        rank=0,
        world_size=1,
        init_method="",
        backend="gloo",
        run_folder=folder,
    )
    return worker.run()


def run(folder: Path, words: Sequence[str], *, config_file: Path | None = None) -> list[StepDone]:
    """The steps of the job."""
    events = events_of(folder, words, config_file=config_file)
    return [event for event in events if isinstance(event, StepDone)]


def untimed(metrics: dict) -> dict:
    """Metrics without those that a clock measures."""
    return {
        name: value
        for name, value in metrics.items()
        if not AGENT_PREFIX.sub("", name).startswith(TIMED)
    }
