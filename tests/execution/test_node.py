"""A node calls its function by name, on a copy of the batch, and checks columns at both ends."""

import pickle
import sys

import pytest
import torch
from tensordict import TensorDict

from siirl.errors import ConfigError, InvariantError, RunFailed
from siirl.execution.dag import Node, NodeOutput, NodeRole, NodeStatus, NodeType, columns


def compute_node(function, **options):
    return Node(
        node_id="under_test", node_type=NodeType.COMPUTE, executable_ref=function, **options
    )


def test_function_gets_what_its_signature_asks_for():
    def function(config, batch):
        return NodeOutput(batch=batch, metrics={"seen/config": config})

    output = compute_node(function).run(
        batch={"a": 1}, config=7, context="unused", process_group=None
    )
    assert output.metrics == {"seen/config": 7}


def test_a_function_with_kwargs_gets_every_argument():
    def function(batch, config, **kwargs):
        return NodeOutput(batch=batch, metrics={"names": sorted(kwargs)})

    output = compute_node(function).run(batch={}, config=1, context=2, process_group=3)
    assert output.metrics["names"] == ["context", "node", "process_group"]


def test_node_reaches_its_own_settings():
    def function(batch, node):
        return NodeOutput(batch=batch, metrics={"threshold": node.config["threshold"]})

    assert compute_node(function, config={"threshold": 0.5}).run(batch={}).metrics == {
        "threshold": 0.5
    }


def test_assigning_a_column_leaves_the_callers_batch_alone():
    def function(batch):
        batch["x"] = torch.ones(2)
        return NodeOutput(batch=batch)

    batch = TensorDict({"a": torch.zeros(2)}, batch_size=[2])
    output = compute_node(function).run(batch=batch)
    assert "x" not in batch.keys()
    assert output.batch["x"].tolist() == [1.0, 1.0]


def test_a_plain_batch_may_be_returned():
    batch = TensorDict({"a": torch.zeros(2)}, batch_size=[2])
    assert compute_node(lambda batch: batch).run(batch=batch).metrics == {}


def test_other_results_are_refused():
    with pytest.raises(InvariantError, match=r"node 'under_test' returned NoneType"):
        compute_node(lambda batch: None).run(batch={})


@pytest.mark.parametrize("more", [-1, 1.5, None])
def test_only_a_whole_number_of_further_prompts_is_accepted(more):
    with pytest.raises(InvariantError, match=rf"'under_test' returned more_prompts={more}: return"):
        compute_node(lambda batch: NodeOutput(batch, more_prompts=more)).run(batch={})


def test_a_function_that_exits_fails_the_run():
    with pytest.raises(RunFailed, match=r"node 'under_test' called ended with sys\.exit\(3\)"):
        compute_node(lambda batch: sys.exit(3)).run(batch={})


def test_node_without_function_passes_the_batch_on():
    batch = {"a": 1}
    assert compute_node(None).run(batch=batch).batch is batch


def test_missing_required_column_is_named_before_the_function_runs():
    calls = []

    @columns(requires=["rewards", "mask"])
    def function(batch):
        calls.append(batch)
        return batch

    with pytest.raises(
        ConfigError, match=r"'under_test' requires the columns \['rewards'\].*Available: \['mask'\]"
    ):
        compute_node(function).run(batch={"mask": 1})
    assert not calls


def test_declared_column_that_is_not_there_afterwards_is_named():
    @columns(provides=["advantages"])
    def function(batch):
        return batch

    with pytest.raises(InvariantError, match=r"declares the columns \['advantages'\]"):
        compute_node(function).run(batch={"rewards": 1})


def test_undeclared_columns_are_measured():
    def function(batch):
        batch["bonus"] = 1
        return batch

    node = compute_node(function)
    assert node.provided_columns is None
    node.run(batch={"rewards": 1})
    assert node.provided_columns == {"bonus"}


def test_the_nodes_columns_are_added_to_its_functions():
    @columns(requires=["a"], provides=["b"])
    def function(batch):
        return batch

    node = compute_node(function, requires=["c"], provides=["d"])
    assert node.required_columns == {"a", "c"}
    assert node.provided_columns == {"b", "d"}


def test_a_node_declares_the_columns_of_an_undecorated_function():
    node = compute_node(lambda batch: batch, requires=["c"], provides=["d"])
    assert (node.required_columns, node.provided_columns) == ({"c"}, {"d"})


def test_optional_columns_are_required_where_the_configuration_asks_for_them():
    @columns(requires=["a"], optional=["values"])
    def function(batch):
        return batch

    node = compute_node(function)
    assert (node.required_columns, node.optional_columns) == ({"a"}, {"values"})
    node.require(["values", "a column of another function"])
    assert node.required_columns == {"a", "values"}


def test_a_lone_string_is_not_a_list_of_columns():
    with pytest.raises(TypeError, match=r"write \['advantages'\]"):
        columns(provides="advantages")


def test_status_follows_the_run():
    node = compute_node(lambda batch: batch)
    assert node.status is NodeStatus.PENDING
    node.run(batch={})
    assert node.status is NodeStatus.COMPLETED


def test_failure_is_raised_with_the_nodes_name():
    def function(batch):
        raise ZeroDivisionError("no rows")

    node = compute_node(function)
    with pytest.raises(ZeroDivisionError) as caught:
        node.run(batch={})
    assert caught.value.__notes__ == ["(while node 'under_test' ran)"]
    assert node.status is NodeStatus.FAILED


def test_lost_connection_is_tried_again_on_a_fresh_batch(caplog):
    seen = []

    def function(batch):
        seen.append(sorted(batch))
        batch["half_done"] = 1
        if len(seen) < 3:
            raise ConnectionError("grader is away")
        return batch

    compute_node(function, retry_limit=2).run(batch={"a": 1})
    assert seen == [["a"], ["a"], ["a"]]
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "ConnectionError: grader is away. Retry 1 of 2 follows in 0.5 s.",
        "ConnectionError: grader is away. Retry 2 of 2 follows in 1 s.",
    ]


def test_lost_connection_is_raised_after_the_last_try():
    def function(batch):
        raise TimeoutError("grader is slow")

    with pytest.raises(TimeoutError, match="grader is slow"):
        compute_node(function, retry_limit=1).run(batch={})


def test_model_nodes_are_never_repeated():
    with pytest.raises(ConfigError, match="leaves the others waiting"):
        Node(
            node_id="train", node_type=NodeType.MODEL_TRAIN, node_role=NodeRole.ACTOR, retry_limit=1
        )


def test_missing_argument_is_named_with_what_there_is():
    with pytest.raises(
        ConfigError,
        match=r"asks for 'context', which is not given here. Available: batch, config, node",
    ):
        compute_node(lambda batch, context: batch).run(batch={}, config=1)


def test_node_is_pickled_by_the_name_of_its_function():
    node = Node(
        node_id="n", node_type=NodeType.COMPUTE, executable_ref="json.dumps", requires=["a"]
    )
    copy = pickle.loads(
        pickle.dumps(
            Node(
                node_id="n", node_type=NodeType.COMPUTE, executable_ref="json.dumps", requires=["a"]
            )
        )
    )
    assert copy.executable is node.executable
    assert copy.required_columns == {"a"}


def test_skipped_node_does_not_run():
    def function(batch):
        raise AssertionError("ran")

    node = compute_node(function, requires=["missing"])
    node.skip_reason = "KL coefficient 0"
    assert node.run(batch={"a": 1}).batch == {"a": 1}
    assert node.status is NodeStatus.SKIPPED


def takes_node(batch, node):
    return batch


@pytest.mark.parametrize("reference", ["operator:not_", lambda info: True])
def test_filter_plugin_is_imported_for_a_function_that_asks_for_its_node(reference):
    node = Node(
        node_id="share",
        node_type=NodeType.COMPUTE,
        executable_ref=takes_node,
        filter_plugin=reference,
    )
    node.check()
    assert callable(node.filter)
    assert compute_node(takes_node).filter is None


@pytest.mark.parametrize("function", [lambda batch: batch, lambda batch, **kwargs: batch, None])
def test_filter_plugin_that_nothing_would_call_is_refused(function):
    node = Node(
        node_id="score",
        node_type=NodeType.COMPUTE,
        executable_ref=function,
        filter_plugin=lambda info: True,
    )
    with pytest.raises(
        ConfigError,
        match=r"Node 'score' has filter_plugin=.*which its function would never call.*data_rebalance",
    ):
        node.check()


@pytest.mark.parametrize(
    ("filter_plugin", "reason"),
    [(lambda: True, "too many positional arguments"), ("builtins:bool", "no signature found")],
)
def test_filter_plugin_that_takes_no_sample_is_refused(filter_plugin, reason):
    node = Node(
        node_id="share",
        node_type=NodeType.COMPUTE,
        executable_ref=takes_node,
        filter_plugin=filter_plugin,
    )
    with pytest.raises(
        ConfigError, match=rf"filter .* of node 'share' is called with a SampleInfo: {reason}"
    ):
        node.check()
