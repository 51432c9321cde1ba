"""A graph is cut at the border of resource groups, and every rank gets the part of its group."""

import re

import pytest

from pipelines.embodied_srpo import embodied_srpo_pipeline
from pipelines.grpo import grpo_pipeline
from siirl.errors import ConfigError, UnknownNameError
from siirl.execution.dag import NodeType, Pipeline
from siirl.execution.dag.job_graph import NO_KL
from siirl.execution.dag.resource_groups import check_group_names, cut_graph
from siirl.execution.scheduler.process_group_manager import ProcessGroupManager
from siirl.execution.scheduler.task_scheduler import TaskScheduler, fill_in_sizes, ranks_of_groups

BOTH = ("rollout", "train")


def test_rollouts_end_with_a_put_and_training_begins_with_a_get():
    parts = cut_graph(grpo_pipeline(), groups=BOTH)
    assert parts["rollout"].get_topological_sort() == ["rollout_actor", "put_rollout_actor"]
    assert parts["train"].get_topological_sort()[:2] == ["get_rollout_actor", "function_reward"]
    assert parts["train"].nodes["get_rollout_actor"].node_type is NodeType.GET_FROM_BUFFER


@pytest.mark.parametrize("make", [grpo_pipeline, embodied_srpo_pipeline])
def test_the_parts_have_all_columns_that_they_require(make):
    for part in cut_graph(make(), groups=BOTH).values():
        part.check_columns()


def test_one_group_is_the_graph_itself():
    graph = grpo_pipeline()
    assert cut_graph(graph, groups=("train",)) == {"train": graph}


def test_a_node_may_name_its_group():
    graph = grpo_pipeline()
    graph.nodes["function_reward"].group = "rollout"
    parts = cut_graph(graph, groups=BOTH)
    assert "function_reward" in parts["rollout"].nodes
    assert next(iter(parts["train"].nodes)) == "get_function_reward"


def test_an_unknown_group_is_refused_in_a_run_without_groups_too():
    graph = grpo_pipeline()
    graph.nodes["function_reward"].group = "rollout"
    check_group_names(graph)
    graph.nodes["function_reward"].group = "bogus"
    with pytest.raises(UnknownNameError, match=r"'bogus'.*rollout, train"):
        check_group_names(graph)


def test_an_unknown_group_is_refused_with_the_known_ones():
    graph = grpo_pipeline()
    graph.nodes["function_reward"].group = "rolout"
    with pytest.raises(UnknownNameError, match="rollout"):
        cut_graph(graph, groups=BOTH)


def test_a_node_that_trains_cannot_roll_out():
    graph = grpo_pipeline()
    graph.nodes["actor_train"].group = "rollout"
    with pytest.raises(ConfigError, match=r"'actor_train'.*only the group 'train' has"):
        cut_graph(graph, groups=BOTH)


def passes(batch):
    return batch


def around_a_rollout(**of_entry):
    """Prompts are prepared, played and scored; another node looks at the prompts."""
    pipeline = Pipeline("own").add_node("prepare", passes).add_node("watch", passes, **of_entry)
    pipeline.add_node("rollout", "siirl.dag_worker.stages:generate", ["prepare"])
    pipeline.add_node("score", passes, ["rollout"]).add_node("end", passes, ["score"])
    return pipeline.build()


def test_what_comes_before_a_rollout_or_gets_the_prompts_runs_on_its_ranks():
    parts = cut_graph(around_a_rollout(), groups=BOTH)
    assert list(parts["rollout"].nodes) == ["prepare", "watch", "rollout", "put_rollout"]
    assert list(parts["train"].nodes) == ["get_rollout", "score", "end"]


def test_a_training_rank_has_no_prompts():
    with pytest.raises(ConfigError, match=r"'watch' gets the prompts.*set group=rollout"):
        cut_graph(around_a_rollout(group="train"), groups=BOTH)


def test_rollout_ranks_have_no_barrier():
    graph = around_a_rollout()
    graph.nodes["score"].node_type, graph.nodes["score"].group = NodeType.BARRIER_SYNC, "rollout"
    with pytest.raises(ConfigError, match=r"'score' \(BARRIER_SYNC/DEFAULT\).*set group=train"):
        cut_graph(graph, groups=BOTH)


def test_rows_do_not_go_back_to_the_rollouts():
    graph = grpo_pipeline()
    graph.nodes["calculate_advantages"].group = "rollout"
    with pytest.raises(ConfigError, match="only"):
        cut_graph(graph, groups=BOTH)


def scored_and_counted(*, reader):
    """A rollout whose rows two nodes of its ranks read; `train` reads `reader` of them."""
    pipeline = Pipeline("own").add_node("rollout", "siirl.dag_worker.stages:generate")
    for name in ("score", "count"):
        pipeline.add_node(name, passes, ["rollout"], group="rollout", provides=[name])
    pipeline.add_node("end", passes, ["score", "count"], requires=["score", "count"])
    return pipeline.add_node("more", passes, reader).build()


def test_nodes_that_are_read_together_are_joined_before_their_rows_pass():
    parts = cut_graph(scored_and_counted(reader=["count", "end", "score"]), groups=BOTH)
    assert list(parts["rollout"].nodes) == [
        *("rollout", "score", "count", "score_and_count", "put_score_and_count")
    ]
    assert parts["rollout"].rev_adj["score_and_count"] == ["score", "count"]
    taken = scored_and_counted(reader=["end"])
    taken.nodes["more"].aliases = ("score_and_count",)
    assert "score_and_count_joined" in cut_graph(taken, groups=BOTH)["rollout"].nodes
    assert parts["train"].rev_adj["end"] == ["get_score_and_count"]
    assert parts["train"].rev_adj["more"] == ["get_score_and_count", "end"]
    parts["train"].check_columns()


def test_each_agents_nodes_are_joined_by_a_node_of_its_own():
    pipeline = Pipeline("own")
    for agent in (0, 1):
        rollout = f"rollout_{agent}"
        pipeline.add_node(rollout, "siirl.dag_worker.stages:generate", agent_group=agent)
        for name in ("a", "b"):
            node = f"{name}{agent}"
            pipeline.add_node(node, passes, [rollout], group="rollout", agent_group=agent)
        pipeline.add_node(f"end_{agent}", passes, [f"a{agent}", f"b{agent}"], agent_group=agent)
    parts = cut_graph(pipeline.build(), groups=BOTH)
    assert [parts["train"].rev_adj[f"end_{agent}"] for agent in (0, 1)] == [
        ["get_a0_and_b0"],
        ["get_a1_and_b1"],
    ]


def test_a_node_that_is_read_alone_as_well_is_not_joined():
    with pytest.raises(ConfigError, match=r"2 nodes pass .*or the same nodes everywhere"):
        cut_graph(scored_and_counted(reader=["score"]), groups=BOTH)


def two_agents(after=("score_1",), **of_last):
    """A chain for each agent: rollout and score; then a node after these."""
    pipeline = Pipeline("own")
    for agent in (0, 1):
        rollout = "siirl.dag_worker.stages:generate"
        pipeline.add_node(f"rollout_{agent}", rollout, agent_group=agent)
        pipeline.add_node(f"score_{agent}", passes, [f"rollout_{agent}"], agent_group=agent)
    graph = pipeline.add_node("end", passes, agent_group=1).build()
    for name, value in {"dependencies": list(after), **of_last}.items():
        setattr(graph.nodes["end"], name, value)
    graph.update_edges()
    return graph


def test_the_rows_of_each_agent_have_a_pair_of_nodes():
    parts = cut_graph(two_agents(), groups=BOTH)
    nodes = {name: node.agent_group for name, node in parts["rollout"].nodes.items()}
    assert nodes == {"rollout_0": 0, "rollout_1": 1, "put_rollout_0": 0, "put_rollout_1": 1}
    order = [(node.node_id, node.agent_group) for node in parts["train"].get_nodes()]
    assert order[:4] == [("get_rollout_0", 0), ("score_0", 0), ("get_rollout_1", 1), ("score_1", 1)]


@pytest.mark.parametrize(
    ("of_last", "sentence"),
    [
        ({"after": ["score_0", "score_1"]}, "joins rows of 'rollout_0' and 'rollout_1'"),
        (
            {"after": ["rollout_1"], "agent_group": 0, "group": "rollout"},
            "'end' of agent group 0 and of the group 'rollout' reads 'rollout_1' of agent group 1",
        ),
        (
            {"agent_group": 2, "after": [], "group": "rollout"},
            "agent group 2: the rows of 0 nodes pass from the group 'rollout'",
        ),
    ],
)
def test_rows_of_two_agents_do_not_meet_where_ranks_are_separate(of_last, sentence):
    with pytest.raises(ConfigError, match=sentence):
        cut_graph(two_agents(**of_last), groups=BOTH)


def test_eight_ranks_two_of_which_roll_out():
    parts = cut_graph(grpo_pipeline(), groups=BOTH)
    mapping = TaskScheduler(2, 4).assign_resource_groups(parts, {"rollout": 2, "train": 6})
    groups = ProcessGroupManager(8, mapping)
    assert groups.group_of(0).ranks == (0, 1, 2, 3, 4, 5)
    assert groups.group_of(7).ranks == (6, 7)


def test_ranks_without_a_number_are_divided_evenly_or_by_parameters():
    graph = grpo_pipeline()
    fill_in_sizes(graph, parameters={0: 100})
    parts = cut_graph(graph, groups=BOTH)
    given = {"rollout": None, "train": None}
    even = ranks_of_groups(parts, given, num_workers=8, strategy="even")
    by_size = ranks_of_groups(parts, given, num_workers=8, strategy="param_aware")
    assert even == {"train": 4, "rollout": 4}
    assert by_size == {"train": 5, "rollout": 3}  # the policy and its reference against a policy


def test_a_skipped_model_counts_nothing():
    """Without a KL no reference is loaded: a policy against a policy."""
    graph = grpo_pipeline()
    graph.skip_node("reference_log_prob", reason=NO_KL)
    fill_in_sizes(graph, parameters={0: 100})
    parts = cut_graph(graph, groups=BOTH)
    given = {"rollout": None, "train": None}
    by_size = ranks_of_groups(parts, given, num_workers=8, strategy="param_aware")
    assert by_size == {"train": 4, "rollout": 4}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"rollout": 2, "train": 1}, "dag.groups={rollout: 2, train: 1} needs 3 ranks, but"),
        ({"rollout": 4, "train": None}, "{rollout: 4, train: null} needs at least 5 ranks, but"),
    ],
)
def test_numbers_that_do_not_add_up_are_refused(given, sentence):
    parts = cut_graph(grpo_pipeline(), groups=BOTH)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        ranks_of_groups(parts, given, num_workers=4, strategy="even")
