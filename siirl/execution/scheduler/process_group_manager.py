"""Describes process groups (ranks, name, backend); every process builds its groups from them.

Ranks that run the same graph are data-parallel, so each graph has one group, and a node's group is
that of its rank's graph. Groups have a fixed order, because all ranks must call
`torch.distributed.new_group` in the same order.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from siirl.errors import ConfigError
from siirl.execution.dag.task_graph import TaskGraph
from siirl.params.dag_args import BACKEND_THRESHOLD


@dataclass(frozen=True)
class ProcessGroup:
    """A set of ranks that communicate."""

    name: str
    ranks: tuple[int, ...]
    backend: str


class ProcessGroupManager:
    """Process groups of a run.

    Attributes:
        world: The group of all ranks.
        groups: All groups by their ranks, `world` first.
        node_groups: For each node id the groups that run it (several if a graph was split).
    """

    def __init__(
        self,
        total_workers: int,
        rank_taskgraph_mapping: Mapping[int, TaskGraph],
        *,
        device_type: str = "cpu",
        backend_threshold: int = BACKEND_THRESHOLD,
    ) -> None:
        if sorted(rank_taskgraph_mapping) != list(range(total_workers)):
            assigned = sorted(rank_taskgraph_mapping)
            raise ConfigError(
                f"Graphs are assigned to the ranks {assigned}; each rank from 0 to "
                f"{total_workers - 1} needs one graph."
            )
        backend = choose_backend(
            total_workers, device_type=device_type, threshold=backend_threshold
        )
        members: dict[str, list[int]] = {}
        for rank in range(total_workers):
            members.setdefault(rank_taskgraph_mapping[rank].graph_id, []).append(rank)
        every_rank = tuple(range(total_workers))
        self.world = ProcessGroup("process_group_0", every_rank, backend)
        self.groups: dict[tuple[int, ...], ProcessGroup] = {every_rank: self.world}
        self.node_groups: dict[str, list[ProcessGroup]] = {}
        self._group_of_rank: dict[int, ProcessGroup] = {}
        for ranks in map(tuple, members.values()):
            group = self.groups.setdefault(
                ranks, ProcessGroup(f"process_group_{len(self.groups)}", ranks, backend)
            )
            self._group_of_rank.update(dict.fromkeys(ranks, group))
            for node_id in rank_taskgraph_mapping[ranks[0]].nodes:
                self.node_groups.setdefault(node_id, []).append(group)

    def group_of(self, rank: int) -> ProcessGroup:
        """The group with which `rank` runs its graph."""
        return self._group_of_rank[rank]


def choose_backend(world_size: int, *, device_type: str, threshold: int = BACKEND_THRESHOLD) -> str:
    """Backend for `torch.distributed`: gloo on CPU, NCCL on GPU, both from `threshold` ranks on."""
    if device_type == "cpu":
        return "gloo"
    return "nccl" if world_size < threshold else "cpu:gloo,cuda:nccl"
