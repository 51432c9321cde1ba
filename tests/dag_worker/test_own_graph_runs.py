"""A user's graph, by configuration alone, replaces a pipeline and its defaults. Two steps of the
command.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensordict import TensorDict

from siirl.errors import SiirlError
from siirl.execution.dag import NodeOutput
from siirl.reporting.jsonl import read_rows
from siirl.train import main
from tests.dag_worker.one_process import run

WORKFLOW = """
nodes:
  - {node_id: rollout_actor, node_type: MODEL_INFERENCE, node_role: ROLLOUT}
  - {node_id: reward, node_type: COMPUTE, node_role: REWARD, dependencies: [rollout_actor]}
  - {node_id: advantages, node_type: COMPUTE, node_role: ADVANTAGE, dependencies: [reward]}
  - {node_id: actor_train, node_type: MODEL_TRAIN, node_role: ACTOR, dependencies: [advantages]}
  - {node_id: sync_weights, node_type: BARRIER_SYNC, node_role: ROLLOUT, dependencies: [actor_train]}
"""
FUNCTION = """
from siirl.execution.dag import load_workflow_file

def own_graph():
    return load_workflow_file("own.yaml")
"""
SMALL = (
    "cluster=local", "data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.rollout.n=2",
    "trainer.total_steps=2", "trainer.max_minutes=null", "trainer.val_episodes=0", "trainer.record_episodes=0", "trainer.save_freq=-1",
    "trainer.logger=[]", "env.num_servers=1",
)  # fmt: skip
ENVIRONMENTS = {
    "math": ("env=math", "data.max_response_length=16"),
    "metaworld": (
        "env=metaworld",
        "env.envs_per_server=2",
        "env.max_episode_steps=16",
        "env.tasks=[button-press]",
    ),
    "gymnasium": (
        "env=gymnasium",
        "env.id=CartPole-v1",
        "env.envs_per_server=2",
        "env.max_episode_steps=16",
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own.yaml").write_text(WORKFLOW)
    (tmp_path / "own_graph_of_a_test.py").write_text(FUNCTION)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def steps(folder: Path, name: str) -> list[int]:
    (run,) = (folder / "outputs" / name).iterdir()
    return [row["step"] for row in read_rows(run / "metrics.jsonl")]


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_workflow_file_alone_trains(folder: Path, environment: str) -> None:
    assert main([*ENVIRONMENTS[environment], "dag.workflow_file=own.yaml", *SMALL]) == 0
    assert steps(folder, "own") == [1, 2]


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_users_pipeline_function_trains(folder: Path, environment: str) -> None:
    assert (
        main(
            [
                *ENVIRONMENTS[environment],
                "dag.custom_pipeline_fn=own_graph_of_a_test:own_graph",
                *SMALL,
            ]
        )
        == 0
    )
    assert steps(folder, "own_graph") == [1, 2]


def test_a_pipeline_option_beside_a_graph_gives_defaults_only(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ENVIRONMENTS["math"], "pipeline=dapo", "dag.workflow_file=own.yaml", *SMALL]) == 0
    assert steps(folder, "own") == [1, 2]
    plan = " ".join(capsys.readouterr().out.split())
    assert (
        "own.yaml (defaults of pipeline=dapo): rollout_actor -> reward -> advantages -> "
        "actor_train -> sync_weights" in plan
    )
    assert "clip_ratio_high=0.28" in plan


def test_the_configuration_of_such_a_run_is_read_back(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ENVIRONMENTS["math"], "dag.workflow_file=own.yaml", *SMALL]) == 0
    (run,) = (folder / "outputs" / "own").iterdir()
    capsys.readouterr()
    assert main(["--plan", "--config", str(run / "config.yaml")]) == 0
    assert "own.yaml: rollout_actor -> " in capsys.readouterr().out


def narrow(batch: TensorDict) -> TensorDict:
    batch["response_mask"] = batch["response_mask"][:, :-1]
    return batch


def without_rows(batch: TensorDict) -> TensorDict:
    return TensorDict(dict(batch.items()), batch_size=[])


def in_a_dict(batch: TensorDict) -> dict[str, Any]:
    return dict(batch.items())


def insatiable(batch: TensorDict) -> NodeOutput:
    return NodeOutput(batch=batch, more_prompts=1)


@pytest.mark.parametrize(
    ("function", "words", "sentence"),
    [
        (narrow, (), r"differ in width: .*'response_mask': 3,.*\(while .*'mine'"),
        (without_rows, (), r"batch_size=\[\], which is not its number of rows.*\(while .*'mine'"),
        (in_a_dict, (), r"returns a TensorDict, .* this one returned a dict\..*\(while .*'mine'"),
        (insatiable, (), "Node 'mine' still requests more prompts after 4 refills in step 1"),
        (insatiable, ("algorithm.filter.max_refills=1",), "max_refills=1 permits no more"),
    ],
)
def test_a_node_that_would_break_the_step_is_named(
    tmp_path: Path, function: Callable[..., Any], words: tuple[str, ...], sentence: str
) -> None:
    node = f"""
  - {{node_id: mine, node_type: CUSTOM, func: "{__name__}:{function.__name__}",
     node_role: DYNAMIC_SAMPLING, dependencies: [rollout_actor]}}"""
    (tmp_path / "own.yaml").write_text(WORKFLOW.replace("[rollout_actor]", "[mine]") + node + "\n")
    graph = f"dag.workflow_file={tmp_path / 'own.yaml'}"
    with pytest.raises(SiirlError) as error:
        run(tmp_path / "run", (*ENVIRONMENTS["math"], graph, *SMALL, *words))
    told = " ".join([str(error.value), *getattr(error.value, "__notes__", ())])
    assert re.search(sentence, told), told
