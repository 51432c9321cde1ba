"""A YAML file declares the same graph as a pipeline file."""

import pytest

from siirl.errors import ConfigError, UnknownNameError
from siirl.execution.dag import NodeRole, NodeType, load_workflow_file
from siirl.execution.dag.workflow_file import default_stage
from tests.execution.distflow_guide import WORKFLOW


def load(tmp_path, text, name="workflow.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return load_workflow_file(path)


def test_the_guides_workflow_runs_as_written(tmp_path):
    graph = load(tmp_path, WORKFLOW, "workflow_grpo.yaml")
    assert graph.graph_id == "workflow_grpo"
    assert graph.get_topological_sort() == ["rollout_actor", "function_reward"]
    assert graph.nodes["rollout_actor"].executable.__qualname__ == "generate"
    assert graph.nodes["function_reward"].executable.__qualname__ == "compute_reward"


@pytest.mark.parametrize(
    ("node_type", "node_role", "only_forward_compute", "stage"),
    [
        ("MODEL_INFERENCE", "ROLLOUT", False, "generate"),
        ("COMPUTE", "REWARD", False, "compute_reward"),
        ("COMPUTE", "ADVANTAGE", False, "compute_advantage"),
        ("MODEL_TRAIN", "ACTOR", True, "compute_old_log_prob"),
        ("MODEL_INFERENCE", "ACTOR", False, "compute_old_log_prob"),
        ("MODEL_TRAIN", "REFERENCE", False, "compute_ref_log_prob"),
        ("MODEL_TRAIN", "ACTOR", False, "train_actor"),
        ("MODEL_TRAIN", "CRITIC", True, "compute_value"),
        ("MODEL_TRAIN", "CRITIC", False, "train_critic"),
        ("BARRIER_SYNC", "ROLLOUT", False, "sync_weights"),
        ("BARRIER_SYNC", "DEFAULT", False, "wait_for_all"),
        ("ENV_INTERACT", "ROLLOUT", False, "generate"),
        ("ENV_INTERACT", "DEFAULT", False, "generate"),
        ("DATA_LOAD", "DEFAULT", False, "load_prompts"),
        ("PUT_TO_BUFFER", "DEFAULT", False, "put_to_buffer"),
        ("GET_FROM_BUFFER", "DEFAULT", False, "get_from_buffer"),
    ],
)
def test_type_and_role_choose_the_stage(node_type, node_role, only_forward_compute, stage):
    found = default_stage(
        node_type=NodeType(node_type),
        node_role=NodeRole(node_role),
        only_forward_compute=only_forward_compute,
        place="here",
    )
    assert found == f"siirl.dag_worker.stages:{stage}"


def test_type_and_role_without_stage_need_a_function(tmp_path):
    with pytest.raises(
        ConfigError,
        match=r"node 1 \(filter\): no stage belongs to COMPUTE/DYNAMIC_SAMPLING. Name a function with 'func'",
    ):
        load(
            tmp_path, "nodes: [{node_id: filter, node_type: COMPUTE, node_role: DYNAMIC_SAMPLING}]"
        )


def test_a_stage_named_by_func_brings_its_type_role_and_columns(tmp_path):
    text = (
        "nodes: [{node_id: old, func: 'siirl.dag_worker.stages:compute_old_log_prob', requires: "
        "[seed]}]"
    )
    node = load(tmp_path, text).nodes["old"]
    assert (node.node_type, node.node_role, node.only_forward_compute) == (
        NodeType.MODEL_TRAIN,
        NodeRole.ACTOR,
        True,
    )
    assert node.required_columns == {"responses", "response_mask", "seed"}
    assert node.provided_columns == {"old_log_probs"}


def test_options_reach_the_node(tmp_path, monkeypatch):
    (tmp_path / "workflow_functions.py").write_text("def passes(batch):\n    return batch\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    options = "config: {threshold: 3}, provides: [x], retry_limit: 2, aliases: [b]"
    node = f"{{node_id: a, func: 'workflow_functions:passes', node_type: CUSTOM, {options}}}"
    graph = load(tmp_path, f"pipeline_id: mine\ndescription: my workflow\nnodes:\n  - {node}\n")
    loaded = graph.get_node("b")
    assert (graph.graph_id, graph.description) == ("mine", "my workflow")
    assert (loaded.node_type, loaded.config, loaded.provided_columns, loaded.retry_limit) == (
        NodeType.CUSTOM,
        {"threshold": 3},
        {"x"},
        2,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: []", "at least one node"),
        ("node: []", "Did you mean 'nodes'"),
        ("[1, 2]", "must hold a mapping"),
        ("nodes: [1", "is not YAML"),
        ("nodes: [{node_type: COMPUTE}]", "node 1: 'node_id' is missing"),
        ("nodes: [{node_id: a, node_role: REWRD}]", "Did you mean 'REWARD'"),
        ("nodes: [{node_id: a, node_typ: COMPUTE}]", "Did you mean 'node_type'"),
        ("nodes: [{node_id: a, func: 'json:dumpz'}]", "node 'a'"),
    ],
)
def test_mistakes_are_refused_with_their_place(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(
        ConfigError, match=r"dag.workflow_file=.*nowhere.yaml cannot be read: No such file"
    ):
        load_workflow_file(tmp_path / "nowhere.yaml")


def test_unknown_choice_lists_all(tmp_path):
    with pytest.raises(UnknownNameError, match="Known: BARRIER_SYNC, COMPUTE"):
        load(tmp_path, "nodes: [{node_id: a, node_type: nothing}]")
