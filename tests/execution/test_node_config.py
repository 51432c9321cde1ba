"""A node's config holds what its function reads, with values that it can use."""

import functools
import math

import pytest

from siirl.dag_worker import stages
from siirl.errors import ConfigError
from siirl.execution.dag import Node, NodeRole, NodeType, Pipeline, load_workflow_file
from siirl.execution.dag.workflow_file import STAGES

REWARD = "{node_id: reward, node_type: COMPUTE, node_role: REWARD, config: %s}"
ROLLOUT = "{node_id: rollout, node_type: MODEL_INFERENCE, node_role: ROLLOUT, config: %s}"


def load(tmp_path, node):
    file = tmp_path / "mine.yaml"
    file.write_text(f"nodes:\n  - {node}\n")
    return load_workflow_file(file)


@functools.wraps(stages.generate)
def around_generate(*, batch, node):
    return batch


@pytest.mark.parametrize(
    ("node", "config", "words"),
    [
        (ROLLOUT, "{loss: .nan}", "stages:generate does not read 'loss' .* reads model_parameters"),
        (ROLLOUT, "{1: {a: 1}}", "does not read 1 of the node's config"),
        (ROLLOUT, "{buffer: rows}", "does not read 'buffer'"),
        (ROLLOUT, "{null: 1, true: 2}", "does not read None, True"),
        (REWARD, "{model_parameters: 7}", "compute_reward does not read 'model_parameters'"),
        (REWARD, "{threshold: 3}", "name your own function"),
    ],
)
def test_a_key_that_a_stage_does_not_read_is_refused(node, config, words, tmp_path):
    with pytest.raises(ConfigError, match=rf"mine\.yaml: node '\w+': .*{words}") as refused:
        load(tmp_path, node % config)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("value", ["x", "[1]", "{a: 1}", ".nan", "2.0", "-5", "0", "null", "true"])
def test_a_parameter_count_is_a_positive_whole_number(value, tmp_path):
    with pytest.raises(ConfigError, match=r"config.model_parameters must be a whole number of at"):
        load(tmp_path, ROLLOUT % f"{{model_parameters: {value}}}")


@pytest.mark.parametrize("value", [3, None, "", " ", ["rows"], math.nan])
def test_the_name_of_a_buffer_is_text(value):
    pipeline = Pipeline("p").add_node("put", stages.put_to_buffer, config={"buffer": value})
    with pytest.raises(ConfigError, match=r"node 'put': config.buffer must be text"):
        pipeline.build()


def test_the_keys_that_stages_read_pass(tmp_path):
    loaded = load(tmp_path, ROLLOUT % "{model_parameters: 7000000000}")
    assert loaded.nodes["rollout"].config == {"model_parameters": 7_000_000_000}
    assert load(tmp_path, ROLLOUT % "null").nodes["rollout"].config == {}
    put = Pipeline("p").add_node("put", stages.put_to_buffer, config={"buffer": "rows"})
    assert put.build().nodes["put"].config == {"buffer": "rows"}


def test_an_own_function_may_read_any_key():
    config = {"loss": math.nan, 1: {2: 3}, "model_parameters": "x"}
    built = Pipeline("p").add_node("own", around_generate, config=config, node_type=NodeType.CUSTOM)
    assert built.build().nodes["own"].config is not None


def test_siirl_reads_the_parameter_count_of_an_own_function_that_runs_a_model():
    pipeline = Pipeline("p").add_node(
        "own",
        lambda batch: batch,
        node_type=NodeType.MODEL_TRAIN,
        node_role=NodeRole.ACTOR,
        config={"model_parameters": "x", "loss": "y"},
    )
    with pytest.raises(ConfigError, match=r"config.model_parameters must be .*, but is 'x'"):
        pipeline.build()


@pytest.mark.parametrize(
    "stage", sorted({name for known in STAGES.values() for name in known.values()})
)
def test_every_stage_of_a_workflow_file_refuses_unknown_keys(stage):
    node = Node("a", NodeType.COMPUTE, executable_ref=stage, config={"unknown": 1})
    with pytest.raises(ConfigError, match="does not read 'unknown'"):
        node.check()


@pytest.mark.parametrize("config", [None, [1], "text", 3])
def test_a_config_that_is_no_mapping_is_refused(config):
    with pytest.raises(ConfigError, match="Node 'a': config must be a mapping, but is"):
        Pipeline("p").add_node("a", None, config=config)
