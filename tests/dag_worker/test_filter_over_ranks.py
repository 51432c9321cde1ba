"""The rebalancing stage with a filter plug-in on two ranks: real processes, the coordinator between
them, the node as graphs have it.
"""

import dataclasses
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from siirl.dag_worker.context import StageContext
from siirl.data_coordinator.ray_edge import start_coordinator
from siirl.data_coordinator.ray_redistribution import RayRedistribution
from siirl.data_coordinator.sample_info import SampleInfo
from siirl.engine.training.collectives import join, leave
from siirl.execution.dag import Node, NodeType
from siirl.execution.scheduler.launch import run_on_ray
from siirl.execution.scheduler.placement import ClusterLayout
from siirl.execution.scheduler.ray_session import ClusterSettings, ray_session

LENGTHS = (
    (1, 6, 2, 6),
    (1, 2, 2, 1),
)  # tokens of the rows of each rank; those longer than 3 are rejected
SETTINGS = ClusterSettings(address=None, env_vars={"OMP_NUM_THREADS": "1"})


def short(info: SampleInfo) -> bool:
    """A user's filter: drops rows of more than three tokens."""
    return info.response_length <= 3


def rows_of(rank: int) -> TensorDict:
    """Row r of rank k is called `k-r`, and has LENGTHS[k][r] tokens."""
    lengths = torch.tensor(LENGTHS[rank])[:, None]
    mask_BT = (torch.arange(6) < lengths).long()
    uids = NonTensorStack(*[f"{rank}-{row}" for row in range(len(lengths))])
    columns = {
        "uid": uids,
        "index": torch.zeros(len(lengths), dtype=torch.int64),
        "responses": mask_BT * 7,
        "response_mask": mask_BT,
    }
    return TensorDict(columns, batch_size=[len(lengths)])


class OneStage:
    """A rank that runs the stage once, and reports what every rank has then."""

    def __init__(self, *, rank: int, init_method: str, coordinator: Any) -> None:
        self.rank, self.coordinator = rank, coordinator
        self.ranks = join(rank=rank, world_size=2, init_method=init_method)

    def run(self) -> Any:
        """Yields [(rows by uid with their number of tokens, metrics) of each rank]."""
        unused: dict[str, Any] = {field.name: None for field in dataclasses.fields(StageContext)}
        redistribution = RayRedistribution(self.coordinator, rank=self.rank, ranks=2)
        context = StageContext(
            **unused
            | {
                "ranks": self.ranks,
                # a model whose FLOPs are unknown
                "actor": SimpleNamespace(engine=SimpleNamespace(module=torch.nn.Identity())),
                "redistribution": redistribution,
                "run_folder": Path(),
                "step": 3,
            }
        )
        node = Node(
            "data_rebalance",
            NodeType.COMPUTE,
            executable_ref="siirl.dag_worker.stages:data_rebalance",
            filter_plugin=short,
        )
        node.check()
        output = node.run(batch=rows_of(self.rank), context=context)
        redistribution.acknowledge()
        tokens_B = output.batch["response_mask"].sum(dim=1).tolist()
        yield self.ranks.gather_objects(
            (dict(zip(output.batch.get("uid").tolist(), tokens_B, strict=True)), output.metrics)
        )
        leave(self.ranks)


def make(*, rank: int, init_method: str, coordinator: Any) -> OneStage:
    return OneStage(rank=rank, init_method=init_method, coordinator=coordinator)


@pytest.mark.slow  # a separate Ray session, and torch imported in two processes
def test_each_rank_drops_what_the_filter_rejects_and_the_rest_is_shared_by_tokens():
    """Left are rows of 1 and 2 tokens on rank 0, and of 1, 2, 2 and 1 on rank 1: 9 tokens, so the
    best shares are 4 and 5.
    """
    with ray_session(SETTINGS):
        ((first, first_metrics), (second, second_metrics)) = next(
            iter(
                run_on_ray(
                    functools.partial(make, coordinator=start_coordinator()),
                    layout=ClusterLayout(ranks_per_node=2),
                )
            )
        )
    assert first | second == {"0-0": 1, "0-2": 2, "1-0": 1, "1-1": 2, "1-2": 2, "1-3": 1}
    assert len(first) + len(second) == 6  # none twice
    assert sorted((sum(first.values()), sum(second.values()))) == [4, 5]
    assert [
        metrics["sampling/dropped_filter_plugin"] for metrics in (first_metrics, second_metrics)
    ] == [2.0, 0.0]
    assert first_metrics["data/imbalance"] == second_metrics["data/imbalance"] == 5 * 2 / 9
