"""Every rank gets a graph; large graphs get more ranks; a graph stays on few machines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siirl.errors import ConfigError, UnknownNameError
from siirl.execution.dag import Node, NodeRole, NodeType, TaskGraph
from siirl.execution.scheduler.process_group_manager import ProcessGroupManager, choose_backend
from siirl.execution.scheduler.task_scheduler import (
    TaskScheduler,
    apportion,
    estimate_graph_model_params,
)


def passes(batch):
    return batch


def graph(graph_id, parameters=1, *, nodes=1):
    result = TaskGraph(graph_id)
    for index in range(nodes):
        result.add_node(
            Node(
                f"node_{index}",
                NodeType.MODEL_TRAIN,
                node_role=NodeRole.ACTOR,
                dependencies=[f"node_{index - 1}"] if index else [],
                executable_ref=passes,
                provides=(),
                config={"model_parameters": parameters},
            )
        )
    return result


def assignment(scheduler, graphs, **options):
    return {
        rank: found.graph_id
        for rank, found in scheduler.schedule_and_assign_tasks(graphs, **options).items()
    }


def test_every_rank_gets_its_own_copy_of_the_graph():
    mapping = TaskScheduler(1, 4).schedule_and_assign_tasks([graph("g")])
    assert sorted(mapping) == [0, 1, 2, 3]
    assert len({id(found) for found in mapping.values()}) == 4


def test_the_documents_example_of_two_machines():
    """Sixteen GPUs on two machines, quotas (6, 5, 5); each graph touches as few machines as its
    quota allows.
    """
    mapping = assignment(
        TaskScheduler(2, 8), [graph("a"), graph("b"), graph("c")], apportion_strategy="even"
    )
    assert mapping == {
        **dict.fromkeys(range(6), "a"),
        **dict.fromkeys(range(8, 13), "b"),
        6: "c",
        7: "c",
        13: "c",
        14: "c",
        15: "c",
    }


def test_without_cohesion_ranks_alternate_between_machines():
    mapping = assignment(
        TaskScheduler(2, 2), [graph("a"), graph("b")], consider_node_cohesion=False
    )
    assert mapping == {0: "a", 2: "a", 1: "b", 3: "b"}


def test_without_either_ranks_are_filled_in_order():
    mapping = assignment(
        TaskScheduler(2, 2),
        [graph("a"), graph("b")],
        consider_node_cohesion=False,
        consider_node_load=False,
    )
    assert mapping == {0: "a", 1: "a", 2: "b", 3: "b"}


def test_larger_graph_comes_first_then_the_longer_chain():
    mapping = assignment(
        TaskScheduler(1, 3), [graph("short", 7), graph("long", 7, nodes=2), graph("large", 70)]
    )
    assert mapping == {0: "large", 1: "long", 2: "short"}


def test_fewer_ranks_than_graphs_is_refused():
    with pytest.raises(
        ConfigError, match=r"3 graphs run in parallel \(a, b, c\), but there are only 2 ranks"
    ):
        TaskScheduler(1, 2).schedule_and_assign_tasks([graph("a"), graph("b"), graph("c")])


def test_fewer_ranks_than_parts_of_a_graph_run_it_whole():
    whole = graph("g")
    whole.add_node(Node("beside", NodeType.COMPUTE, executable_ref=passes))
    assert (
        TaskScheduler(1, 1).schedule_and_assign_tasks([whole])[0].nodes.keys() == whole.nodes.keys()
    )


def test_two_graphs_of_one_id_are_refused():
    with pytest.raises(ConfigError, match="Two graphs have the id 'a'"):
        TaskScheduler(1, 2).schedule_and_assign_tasks([graph("a"), graph("a")])


@pytest.mark.parametrize(("nodes", "gpus"), [(0, 1), (1, 0), (-1, 4)])
def test_a_cluster_has_ranks(nodes, gpus):
    with pytest.raises(
        ConfigError, match=rf"trainer.nnodes={nodes} and trainer.n_gpus_per_node={gpus}"
    ):
        TaskScheduler(nodes, gpus)


def test_a_model_used_twice_counts_once():
    assert estimate_graph_model_params(graph("g", 7, nodes=3)) == 7


def test_graphs_without_sizes_count_their_models():
    assert estimate_graph_model_params(graph("g", 0)) == 1


@pytest.mark.parametrize(
    ("sizes", "workers", "strategy", "quotas"),
    [
        ([1, 1, 1], 16, "even", [6, 5, 5]),
        ([70, 10], 10, "param_aware", [8, 2]),  # one each, and eight to divide as 7 : 1
        ([1000, 1], 4, "param_aware", [3, 1]),
        ([0, 0], 3, "param_aware", [2, 1]),
    ],
)
def test_ranks_are_shared_out_evenly_or_by_parameters(sizes, workers, strategy, quotas):
    assert apportion(sizes, workers, strategy) == quotas


@given(
    st.lists(st.integers(0, 10**12), min_size=1, max_size=9),
    st.integers(0, 60),
    st.sampled_from(["even", "param_aware"]),
)
def test_every_rank_is_used_and_every_graph_has_one(sizes, spare, strategy):
    quotas = apportion(sizes, len(sizes) + spare, strategy)
    assert sum(quotas) == len(sizes) + spare
    assert min(quotas) >= 1


def test_unknown_strategy_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match="Known: even, param_aware"):
        apportion([1], 1, "evn")


# Process groups


def test_one_graph_is_one_group():
    manager = ProcessGroupManager(2, {0: graph("g"), 1: graph("g")})
    assert {ranks: group.name for ranks, group in manager.groups.items()} == {
        (0, 1): "process_group_0"
    }
    assert manager.group_of(1) is manager.world
    assert manager.node_groups["node_0"] == [manager.world]


def test_each_graph_has_its_group_beside_the_world():
    manager = ProcessGroupManager(3, {0: graph("a"), 1: graph("b"), 2: graph("b")})
    assert {ranks: group.name for ranks, group in manager.groups.items()} == {
        (0, 1, 2): "process_group_0",
        (0,): "process_group_1",
        (1, 2): "process_group_2",
    }
    assert manager.group_of(2).ranks == (1, 2)


def test_rank_without_graph_is_refused():
    with pytest.raises(ConfigError, match=r"ranks \[0\]; each rank from 0 to 1 needs"):
        ProcessGroupManager(2, {0: graph("a")})


@pytest.mark.parametrize(
    ("world_size", "device_type", "backend"),
    [
        (2, "cpu", "gloo"),
        (512, "cpu", "gloo"),
        (255, "cuda", "nccl"),
        (256, "cuda", "cpu:gloo,cuda:nccl"),
    ],
)
def test_backend_depends_on_device_and_number_of_ranks(world_size, device_type, backend):
    assert choose_backend(world_size, device_type=device_type) == backend
