"""The shipped pipelines are as documented, and can be built; so can those of siiRL's
documentation.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from siirl.errors import ConfigError, UnknownNameError
from siirl.execution.dag import NodeRole, NodeType, Pipeline, TaskGraph, order_for_kl_in_reward
from siirl.execution.dag.builtin_pipelines import (
    PIPELINES,
    dapo_pipeline,
    embodied_srpo_pipeline,
    grpo_pipeline,
    ppo_pipeline,
    remax_pipeline,
)
from siirl.execution.dag.load import load_pipeline
from siirl.params.parser import parse_config
from siirl.preflight.configured_graph import require_configured_columns

PROMPT_COLUMNS = ["index", "task_name", "task_id", "trial_id", "seed"]


def test_srpo_filters_before_the_reward_and_balances_between():
    assert embodied_srpo_pipeline().get_topological_sort() == [
        "rollout_actor",
        "embodied_sampling",
        "data_rebalance",
        "compute_reward",
        "calculate_advantages",
        "actor_old_log_prob",
        "reference_log_prob",
        "actor_train",
        "sync_weights",
    ]


def test_grpo_has_the_documents_nodes_and_gives_the_weights_back():
    assert grpo_pipeline().get_topological_sort() == [
        "rollout_actor",
        "function_reward",
        "calculate_advantages",
        "actor_old_log_prob",
        "reference_log_prob",
        "actor_train",
        "sync_weights",
    ]


def test_ppo_asks_the_critic_before_the_advantage_and_trains_it_before_the_actor():
    assert ppo_pipeline().get_topological_sort() == [
        "rollout_actor",
        "actor_old_log_prob",
        "reference_log_prob",
        "function_reward",
        "compute_value",
        "calculate_advantages",
        "single_decisions",
        "critic_train",
        "actor_train",
        "sync_weights",
    ]


def test_dapo_scores_before_it_filters_and_balances_what_is_left():
    assert dapo_pipeline().get_topological_sort() == [
        "rollout_actor",
        "function_reward",
        "dynamic_sampling",
        "data_rebalance",
        "calculate_advantages",
        "actor_old_log_prob",
        "reference_log_prob",
        "actor_train",
        "sync_weights",
    ]


def test_remax_has_its_baseline_before_it_samples():
    order = remax_pipeline().get_topological_sort()
    assert order[:4] == [
        "greedy_baseline",
        "rollout_actor",
        "function_reward",
        "calculate_advantages",
    ]


@pytest.mark.parametrize("alias", ["dynamic_sampling", "dynaminc_sampling"])
def test_the_filter_is_found_under_the_documents_spellings(alias):
    assert embodied_srpo_pipeline().get_node(alias).node_id == "embodied_sampling"


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_columns_fit_what_the_task_loader_gives(name):
    PIPELINES[name]().check(loader_columns=PROMPT_COLUMNS)


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_columns_are_declared_at_the_stages_alone(name):
    for node in PIPELINES[name]().nodes.values():
        assert (node.requires, node.provides) == (None, None)
        assert node.provided_columns is not None


STAGES = "siirl.dag_worker.stages"
DAPO_FILTER = "siirl.user_interface.filter_interface.dapo.dynamic_sampling"


def test_grpos_rollout_with_dapos_filter_is_accepted():
    pipeline = Pipeline("filtered_grpo").add_node("rollout_actor", f"{STAGES}:generate")
    pipeline.add_node("function_reward", f"{STAGES}:compute_reward", ["rollout_actor"])
    pipeline.add_node("dynamic_sampling", DAPO_FILTER, ["function_reward"])
    pipeline.add_node("calculate_advantages", f"{STAGES}:compute_advantage", ["dynamic_sampling"])
    pipeline.add_node("actor_train", f"{STAGES}:train_actor", ["calculate_advantages"])
    pipeline.build().check(loader_columns=PROMPT_COLUMNS)


def rolls_out(batch):
    return batch


def test_a_rollout_without_a_column_of_the_reward_is_refused_with_the_nodes_that_provide_it():
    episode = [
        "uid",
        "responses",
        "response_mask",
        "rollout_log_probs",
        "policy_version",
        "env_return",
    ]
    pipeline = Pipeline("own").add_node(
        "own_rollout", rolls_out, requires=PROMPT_COLUMNS, provides=episode
    )
    pipeline.add_node("function_reward", f"{STAGES}:compute_reward", ["own_rollout"])
    with pytest.raises(
        UnknownNameError,
        match=r"required by node 'function_reward'.*'complete'.*'complete' is provided by siirl.dag_worker.stages:generate\.",
    ):
        pipeline.build()


@pytest.mark.parametrize(
    ("settings", "node", "column"),
    [
        (["algorithm.adv_estimator=gae"], "calculate_advantages", "values"),
        (["algorithm.adv_estimator=remax"], "calculate_advantages", "reward_baselines"),
        (["actor_rollout_ref.actor.use_kl_loss=true"], "actor_train", "ref_log_prob"),
        (["actor_rollout_ref.actor.loss=decoupled"], "actor_train", "old_log_probs"),
        (["actor_rollout_ref.actor.importance.level=token"], "actor_train", "old_log_probs"),
    ],
)
def test_columns_that_a_stage_reads_because_of_a_setting_are_required_before_the_start(
    settings, node, column
):
    pipeline = Pipeline("own").add_node("rollout_actor", f"{STAGES}:generate")
    pipeline.add_node("function_reward", f"{STAGES}:compute_reward", ["rollout_actor"])
    pipeline.add_node("calculate_advantages", f"{STAGES}:compute_advantage", ["function_reward"])
    pipeline.add_node("actor_train", f"{STAGES}:train_actor", ["calculate_advantages"])
    config = parse_config(["env=gymnasium", "env.id=CartPole-v1", "pipeline=grpo", *settings])
    with pytest.raises(UnknownNameError, match=f"required by node '{node}'.*'{column}'"):
        require_configured_columns(config, pipeline.build())


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_every_pipeline_can_have_the_kl_in_its_reward(name):
    graph = PIPELINES[name]()
    order_for_kl_in_reward(graph, use_kl_in_reward=True)
    (reward,) = (node for node in graph.get_nodes() if node.node_role is NodeRole.REWARD)
    before = graph.get_ancestors(reward.node_id)
    assert {"rollout_actor", "actor_old_log_prob", "reference_log_prob"} <= before


def test_dapo_with_the_kl_in_its_reward_filters_after_both():
    graph = dapo_pipeline()
    order_for_kl_in_reward(graph, use_kl_in_reward=True)
    assert graph.get_topological_sort() == [
        "rollout_actor",
        "actor_old_log_prob",
        "reference_log_prob",
        "function_reward",
        "dynamic_sampling",
        "data_rebalance",
        "calculate_advantages",
        "actor_train",
        "sync_weights",
    ]


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_pipeline_files_import_nothing_but_the_graph(name, repository):
    tree = ast.parse((repository / "pipelines" / f"{name}.py").read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"siirl.execution.dag"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)]


def test_declaring_a_pipeline_loads_no_torch():
    code = (
        "import sys, pipelines.embodied_srpo; sys.exit('torch' in sys.modules or 'ray' in "
        "sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Choosing one


def test_a_pipeline_is_found_by_its_name():
    assert load_pipeline(pipeline="grpo").graph_id == "grpo"


def test_unknown_pipeline_is_refused_with_the_known_ones():
    with pytest.raises(
        UnknownNameError, match=r"Unknown pipeline 'embodied_srp'. Did you mean 'embodied_srpo'\?"
    ):
        load_pipeline(pipeline="embodied_srp")


def test_a_function_and_a_file_at_once_are_refused():
    with pytest.raises(ConfigError, match="both name a graph"):
        load_pipeline(pipeline="grpo", custom_pipeline_fn="a:b", workflow_file="c.yaml")


def test_no_graph_at_all_is_refused_with_the_ways_to_name_one():
    with pytest.raises(
        ConfigError,
        match=r"dag.pipeline=null.*choose pipeline=NAME \(embodied_srpo, grpo.*dag.workflow_file",
    ):
        load_pipeline(pipeline=None)


def test_pipeline_from_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "nodes: [{node_id: rollout_actor, node_type: MODEL_INFERENCE, node_role: ROLLOUT}]"
    )
    assert load_pipeline(pipeline="grpo", workflow_file=str(path)).graph_id == "mine"


@pytest.fixture
def my_module(tmp_path, monkeypatch):
    """The package `my_module` of the architecture guide's section 11."""
    package = tmp_path / "my_module"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "custom_reward.py").write_text(
        "def compute_custom_reward(batch, config, **kwargs):\n    return batch\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_module"]:
        del sys.modules[name]


# From the architecture guide, section 11.1, as written there.
CUSTOM_PIPELINE = '''
from siirl.execution.dag.pipeline import Pipeline
from siirl.execution.dag.node import NodeType, NodeRole
from siirl.execution.dag.task_graph import TaskGraph

def my_custom_pipeline() -> TaskGraph:
    """Custom training pipeline"""
    pipeline = Pipeline("my_custom_pipeline", "My custom RL workflow")

    # Add custom nodes
    pipeline.add_node(
        "rollout_actor",
        func="siirl.dag_worker.dagworker:DAGWorker.generate",
        deps=[],
        node_type=NodeType.MODEL_INFERENCE,
        node_role=NodeRole.ROLLOUT
    ).add_node(
        "custom_reward",
        func="my_module.custom_reward:compute_custom_reward",  # Custom function
        deps=["rollout_actor"],
        node_type=NodeType.COMPUTE,
        node_role=NodeRole.REWARD
    ).add_node(
        "calculate_advantages",
        func="siirl.dag_worker.dagworker:DAGWorker.compute_advantage",
        deps=["custom_reward"],
        node_type=NodeType.COMPUTE,
        node_role=NodeRole.ADVANTAGE
    ).add_node(
        "actor_train",
        func="siirl.dag_worker.dagworker:DAGWorker.train_actor",
        deps=["calculate_advantages"],
        node_type=NodeType.MODEL_TRAIN,
        node_role=NodeRole.ACTOR
    )

    return pipeline.build()
'''


def test_the_guides_custom_pipeline_runs_as_written(my_module):
    (my_module / "custom_pipeline.py").write_text(CUSTOM_PIPELINE)
    graph = load_pipeline(
        pipeline="grpo", custom_pipeline_fn="my_module.custom_pipeline:my_custom_pipeline"
    )
    assert graph.get_topological_sort() == [
        "rollout_actor",
        "custom_reward",
        "calculate_advantages",
        "actor_train",
    ]


def test_pipeline_whose_build_was_forgotten_is_built(my_module):
    (my_module / "custom_pipeline.py").write_text(
        CUSTOM_PIPELINE.replace("pipeline.build()", "pipeline")
    )
    assert isinstance(
        load_pipeline(
            pipeline="grpo", custom_pipeline_fn="my_module.custom_pipeline:my_custom_pipeline"
        ),
        TaskGraph,
    )


@pytest.mark.parametrize(
    ("text", "raised"),
    [
        ("def nothing(config):\n    pass\n", "TypeError: nothing() missing 1 required positional"),
        ("def nothing():\n    return 1 / 0\n", "ZeroDivisionError: division by zero"),
        ("def nothing():\n    raise SystemExit(0)\n", "SystemExit: 0"),
        ("def nothing():\n    raise MemoryError('full')\n", "MemoryError: full"),
        (
            "class Own(BaseException):\n    pass\n\ndef nothing():\n    raise Own('own')\n",
            "Own: own",
        ),
    ],
    ids=["asks for an argument", "raises", "exits", "has no memory", "raises its own"],
)
def test_a_function_that_raises_is_refused_in_a_sentence(my_module, text, raised):
    (my_module / "custom_pipeline.py").write_text(text)
    with pytest.raises(ConfigError, match="is called without arguments, and raised ") as refused:
        load_pipeline(pipeline="grpo", custom_pipeline_fn="my_module.custom_pipeline:nothing")
    assert raised in str(refused.value)


def test_a_module_that_exits_does_not_end_the_command(my_module):
    (my_module / "custom_pipeline.py").write_text("raise SystemExit(0)\n")
    with pytest.raises(ConfigError, match="cannot be imported: SystemExit: 0"):
        load_pipeline(pipeline="grpo", custom_pipeline_fn="my_module.custom_pipeline:nothing")


def test_an_interrupt_of_a_pipeline_function_is_not_its_fault(my_module):
    (my_module / "custom_pipeline.py").write_text("def nothing():\n    raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load_pipeline(pipeline="grpo", custom_pipeline_fn="my_module.custom_pipeline:nothing")


def test_function_that_returns_no_graph_is_refused(my_module):
    (my_module / "custom_pipeline.py").write_text("def nothing():\n    pass\n")
    with pytest.raises(ConfigError, match="returned NoneType, but must return a TaskGraph"):
        load_pipeline(pipeline="grpo", custom_pipeline_fn="my_module.custom_pipeline:nothing")


# The guide's own SRPO and GRPO (section 4.2): id, function, type, role, only a forward pass; each
# depends on the one before.
STAGE = "siirl.dag_worker.dagworker:DAGWorker."
COMMON = [
    ("calculate_advantages", STAGE + "compute_advantage", "COMPUTE", "ADVANTAGE", False),
    ("actor_old_log_prob", STAGE + "compute_old_log_prob", "MODEL_TRAIN", "ACTOR", True),
    ("reference_log_prob", STAGE + "compute_ref_log_prob", "MODEL_TRAIN", "REFERENCE", False),
    ("actor_train", STAGE + "train_actor", "MODEL_TRAIN", "ACTOR", False),
]
ROLLOUT = ("rollout_actor", STAGE + "generate", "MODEL_INFERENCE", "ROLLOUT", False)
FILTER = "siirl.user_interface.filter_interface.embodied.embodied_local_rank_sampling"
CRITIC = [
    ("compute_value", STAGE + "compute_value", "MODEL_TRAIN", "CRITIC", True),
    *COMMON,
    ("critic_train", STAGE + "train_critic", "MODEL_TRAIN", "CRITIC", False),
]
REWARD = ("function_reward", STAGE + "compute_reward", "COMPUTE", "REWARD", False)
GUIDE = {
    "ppo": [ROLLOUT, REWARD, *CRITIC],
    "dapo": [
        ROLLOUT,
        REWARD,
        ("dynamic_sampling", DAPO_FILTER, "COMPUTE", "DYNAMIC_SAMPLING", False),
        *COMMON,
    ],
    "grpo": [ROLLOUT, REWARD, *COMMON],
    "srpo": [
        ROLLOUT,
        ("dynaminc_sampling", FILTER, "COMPUTE", "DYNAMIC_SAMPLING", False),
        ("compute_reward", STAGE + "compute_reward", "COMPUTE", "REWARD", False),
        *COMMON,
    ],
}


@pytest.mark.parametrize("name", sorted(GUIDE))
def test_the_guides_pipelines_build(name):
    pipeline, before = Pipeline(name), []
    for node_id, func, node_type, node_role, forward in GUIDE[name]:
        pipeline.add_node(
            node_id,
            func,
            before,
            node_type=NodeType(node_type),
            node_role=NodeRole(node_role),
            only_forward_compute=forward,
        )
        before = [node_id]
    pipeline.build().check(loader_columns=PROMPT_COLUMNS)


def test_repository_holds_the_pipeline_files(repository):
    assert {path.stem for path in Path(repository / "pipelines").glob("*.py")} - {
        "__init__"
    } == set(PIPELINES)
