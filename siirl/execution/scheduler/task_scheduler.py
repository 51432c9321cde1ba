"""Assigns a graph to every rank: split, sort by size, apportion ranks, place them on machines.
Pure: graphs in, {rank: graph} out.

Ranks are numbered machine by machine: rank = machine x ranks per machine + slot. Left out: starting
processes (`launch`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from siirl.errors import ConfigError, UnknownNameError
from siirl.execution.dag.node import NodeRole
from siirl.execution.dag.node_config import MODEL_PARAMETERS
from siirl.execution.dag.task_graph import TaskGraph
from siirl.execution.dag.task_loader import discover_and_split_parallel_paths
from siirl.execution.scheduler.enums import ApportionStrategy
from siirl.params.build import as_text


class TaskScheduler:
    """Assigns graphs to the ranks of a cluster.

    Attributes:
        worker_to_graph_assignment: The last result, {rank: graph}.
    """

    def __init__(self, num_physical_nodes: int, gpus_per_node: int) -> None:
        if num_physical_nodes < 1 or gpus_per_node < 1:
            raise ConfigError(
                f"trainer.nnodes={num_physical_nodes} and trainer.n_gpus_per_node={gpus_per_node} "
                "must both be at least 1: their product is the number of ranks."
            )
        self.num_physical_nodes = num_physical_nodes
        self.gpus_per_node = gpus_per_node
        self.num_workers = num_physical_nodes * gpus_per_node
        self.worker_to_graph_assignment: dict[int, TaskGraph] = {}

    def schedule_and_assign_tasks(
        self,
        original_task_graphs: Sequence[TaskGraph],
        apportion_strategy: str = ApportionStrategy.PARAM_AWARE,
        consider_node_cohesion: bool = True,
        consider_node_load: bool = True,
    ) -> dict[int, TaskGraph]:
        """Assign a graph to every rank.

        Args:
            original_task_graphs: Graphs with different ids. Each is split if that is possible and
                every part gets a rank; otherwise its ranks run it whole.
            apportion_strategy: "even", or "param_aware": in proportion to the models' parameters,
                at least one rank each.
            consider_node_cohesion: Prefer machines that already run the graph.
            consider_node_load: Prefer machines that run less.

        Raises:
            ConfigError: No graphs, two with the same id, or fewer ranks than graphs.
        """
        parts = [
            part
            for graph in original_task_graphs
            for part in discover_and_split_parallel_paths(graph)
        ]
        if len(parts) > self.num_workers:
            parts = [graph.copy() for graph in original_task_graphs]
        self._check_parts(parts)
        parts.sort(key=lambda part: (-estimate_graph_model_params(part), -len(part.nodes)))
        quotas = apportion(
            [estimate_graph_model_params(part) for part in parts],
            self.num_workers,
            apportion_strategy,
        )
        return self._place(parts, quotas, cohesion=consider_node_cohesion, load=consider_node_load)

    def assign_resource_groups(
        self, parts: Mapping[str, TaskGraph], ranks: Mapping[str, int]
    ) -> dict[int, TaskGraph]:
        """Assign the graph of its resource group to every rank.

        Args:
            parts: Graph of each group (`siirl.execution.dag.resource_groups.cut_graph`); rank 0
                runs the first.
            ranks: Ranks of each group (`ranks_of_groups`).
        """
        self._check_parts(list(parts.values()))
        return self._place(
            list(parts.values()), [ranks[group] for group in parts], cohesion=True, load=True
        )

    def _place(
        self, parts: Sequence[TaskGraph], quotas: Sequence[int], *, cohesion: bool, load: bool
    ) -> dict[int, TaskGraph]:
        owners: dict[int, int] = {}
        for index, quota in enumerate(quotas):
            for _ in range(quota):
                owners[self._best_rank(index, owners, cohesion=cohesion, load=load)] = index
        self.worker_to_graph_assignment = {
            rank: parts[owners[rank]].copy() for rank in sorted(owners)
        }
        return self.worker_to_graph_assignment

    def _check_parts(self, parts: Sequence[TaskGraph]) -> None:
        if not parts:
            raise ConfigError("There is no graph to schedule.")
        counts = Counter(part.graph_id for part in parts)
        repeated = [graph_id for graph_id, count in counts.items() if count > 1]
        if repeated:
            raise ConfigError(
                f"Two graphs have the id {repeated[0]!r}. Give each pipeline its own."
            )
        if len(parts) > self.num_workers:
            names = ", ".join(part.graph_id for part in parts)
            raise ConfigError(
                f"{len(parts)} graphs run in parallel ({names}), but there are only "
                f"{self.num_workers} ranks (trainer.nnodes={self.num_physical_nodes} x "
                f"trainer.n_gpus_per_node={self.gpus_per_node}). Give at least one to each."
            )

    def _best_rank(self, index: int, owners: dict[int, int], *, cohesion: bool, load: bool) -> int:
        """The free rank with the highest (cohesion, -load, -rank): near the graph's other ranks, on
        a machine with little load, with a low number.
        """
        machine_of = {rank: rank // self.gpus_per_node for rank in range(self.num_workers)}
        own = Counter(machine_of[rank] for rank, owner in owners.items() if owner == index)
        busy = Counter(machine_of[rank] for rank in owners)

        def score(rank: int) -> tuple[int, int, int]:
            machine = machine_of[rank]
            return (own[machine] if cohesion else 0, -busy[machine] if load else 0, -rank)

        return max((rank for rank in machine_of if rank not in owners), key=score)


def estimate_graph_model_params(graph: TaskGraph) -> int:
    """Parameters of the models that a graph runs; each (role, agent group) counts once.

    A skipped node runs none. They are read from `node.config["model_parameters"]`; if no node has
    that key, the result is the number of models.
    """
    sizes: dict[tuple[NodeRole, int], int] = {}
    for node in graph.nodes.values():
        if node.skip_reason is None and node.runs_a_model:
            key = (node.node_role, node.agent_group)
            sizes[key] = max(sizes.get(key, 0), int(node.config.get(MODEL_PARAMETERS, 0)))
    return sum(sizes.values()) or len(sizes)


def apportion(sizes: Sequence[int], num_workers: int, strategy: str) -> list[int]:
    """Number of ranks of each graph; all ranks are used and each graph gets at least one.

    "even" gives the remainder to the first. "param_aware" gives one each and divides the rest in
    proportion to `sizes` by largest remainders.

    Raises:
        UnknownNameError: Another strategy.
    """
    if strategy not in set(ApportionStrategy):
        raise UnknownNameError.of(
            kind="apportion strategy", name=strategy, known=list(ApportionStrategy)
        )
    count = len(sizes)
    if strategy == ApportionStrategy.EVEN or sum(sizes) == 0:
        return [num_workers // count + (index < num_workers % count) for index in range(count)]
    spare = num_workers - count
    quotas = [1 + spare * size // sum(sizes) for size in sizes]
    remainders = [spare * size % sum(sizes) for size in sizes]
    neediest = sorted(range(count), key=lambda index: (-remainders[index], index))
    for index in neediest[: num_workers - sum(quotas)]:
        quotas[index] += 1
    return quotas


def ranks_of_groups(
    parts: Mapping[str, TaskGraph],
    given: Mapping[str, int | None],
    *,
    num_workers: int,
    strategy: str,
) -> dict[str, int]:
    """Ranks of each resource group: as given; `apportion` divides the rest among the other groups.

    Args:
        parts: Graph of each group.
        given: Ranks by group; None leaves the number to `strategy`.
        num_workers: Ranks of the run.
        strategy: See `apportion`; "param_aware" reads the models' sizes in the graphs.

    Raises:
        ConfigError: The numbers do not add up to the ranks of the run.
    """
    fixed = {group: number for group, number in given.items() if number is not None}
    open_groups = [group for group in parts if group not in fixed]
    rest = num_workers - sum(fixed.values())
    if rest < len(open_groups) or (rest > 0 and not open_groups):
        least = num_workers - rest + len(open_groups)
        raise ConfigError(
            f"dag.groups={as_text(given)} needs {'at least ' if open_groups else ''}{least} ranks, "
            f"but trainer.nnodes x trainer.n_gpus_per_node = {num_workers}: change one of them."
        )
    sizes = [estimate_graph_model_params(parts[group]) for group in open_groups]
    shares = apportion(sizes, rest, strategy) if open_groups else []
    return fixed | dict(zip(open_groups, shares, strict=True))


def fill_in_sizes(graph: TaskGraph, *, parameters: Mapping[int, int]) -> None:
    """Fill in parameter counts, by agent group, for every node that runs a model and does not state
    one.
    """
    for node in graph.nodes.values():
        if node.runs_a_model:
            node.config.setdefault(MODEL_PARAMETERS, parameters[node.agent_group])
