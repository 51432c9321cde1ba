"""Ray's object store: its size for a job with separate rollout ranks, and the refusal of a machine
whose /dev/shm does not hold the weights.
"""

from pathlib import Path

import pytest

from siirl.execution.scheduler.placement import ClusterLayout, ClusterMachine
from siirl.jobs.training_run import warn_of_small_stores
from siirl.preflight.object_store import ROWS_BYTES, small_stores, store_bytes, store_problems
from siirl.reporting.metric_writers import WARNINGS_FILE, MetricWriters, RunDescription
from tests.preflight.test_memory import job

PARTS = (
    ("policy and Adam", 5e9),
    ("weights for rollout ranks", 6e9),
    ("images", 1e9),
    ("agent 1's weights for rollout ranks", 2e9),
)
SEPARATE = ("dag.groups={rollout: 1, train: 1}", "trainer.n_gpus_per_node=2")


def refusals(*words: str, free: float) -> list[str]:
    config = job(*SEPARATE, *words)
    return [str(each) for each in store_problems(config, PARTS, shared_memory_bytes=lambda: free)]


def test_the_store_holds_the_weights_of_all_agents_and_the_rows_below_the_share_that_ray_fills() -> (
    None
):
    assert store_bytes(PARTS) == (6e9 + 2e9 + 1e9 + ROWS_BYTES) / 0.8


def test_without_separate_rollout_ranks_ray_decides() -> None:
    assert store_bytes((("policy and Adam", 5e9), ("images", 1e9))) == 0.0


def test_weights_beyond_the_shared_memory_are_refused_with_the_remedies() -> None:
    """8 GB in a store that is at most 80 % full, in 95 % of /dev/shm, need 10.5 GB there."""
    assert refusals(free=10.6e9) == []
    assert refusals(free=64e6) == [
        "The weights for the rollout ranks of dag.groups take 8.0 GB in Ray's object store, which "
        "needs 10.5 GB of /dev/shm, but this machine has 64 MB free there: make it larger (in "
        "Docker --shm-size=12g), or train adapters (actor_rollout_ref.model.lora.rank)."
    ]


def test_small_stores_of_a_running_cluster_draw_a_warning_where_ranks_may_be() -> None:
    assert refusals("cluster.address=10.0.0.1:6379", free=64e6) == []
    there = [
        ClusterMachine("a", "10.0.0.1", 0, 1e9),  # has no GPU, so it gets no rank
        ClusterMachine("b", "10.0.0.2", 2, 2e9),
        ClusterMachine("c", "10.0.0.3", 2, 4e9),
    ]
    layout = ClusterLayout(ranks_per_node=2, gpus=(1, 1))
    assert small_stores(2e9, layout, there) is None
    assert small_stores(0.0, ClusterLayout(), there) is None
    assert small_stores(3e9, layout, there) == (
        "The rollout ranks of dag.groups need 3.0 GB of Ray's object store on a machine, and the "
        "cluster has 10.0.0.2 with 2.0 GB: Ray writes the rest to the disk, and an exchange may "
        "take seconds. Start Ray with --object-store-memory=3000000000 there."
    )


def test_the_warning_of_small_stores_is_in_the_run_folder(tmp_path: Path) -> None:
    layout, there = ClusterLayout(), [ClusterMachine("a", "10.0.0.1", 0, 1e9)]
    with MetricWriters([], RunDescription(tmp_path, total_steps=1)) as writers:
        warn_of_small_stores(writers, 0.9e9, layout, there=there)
        assert not (tmp_path / WARNINGS_FILE).exists()
        warn_of_small_stores(writers, 3e9, layout, there=there)
    assert "the cluster has 10.0.0.1 with 1.0 GB" in (tmp_path / WARNINGS_FILE).read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("trainer.max_staleness=2",), False),
        (("trainer.max_staleness=2", "actor_rollout_ref.rollout.mode=sync"), True),
        (("trainer.max_staleness=0",), False),
    ],
)
def test_less_staleness_helps_a_schedule_alone(words: tuple[str, ...], told: bool) -> None:
    (problem,) = refusals(*words, free=64e6)
    assert problem.endswith(", or lower trainer.max_staleness.") == told


def test_adapters_are_no_remedy_if_they_are_trained_already() -> None:
    (problem,) = refusals("actor_rollout_ref.model.lora.rank=4", free=64e6)
    assert problem.endswith("(in Docker --shm-size=12g).")
