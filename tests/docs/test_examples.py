"""The complete files of the tutorials train, and do what their sentences say."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from docs.examples import own_advantage, own_data, own_gymnasium, own_pipeline, own_reward
from siirl.algos.ranks import ALONE
from siirl.execution.dag import load_workflow_file
from siirl.params.parser import parse_config
from tests.dag_worker.one_process import run

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "docs" / "examples"
SMALL = (
    *("cluster=local", "trainer=smoke", "trainer.total_steps=1", "trainer.val_episodes=0"),
    *("trainer.record_episodes=0", "env.envs_per_server=8"),
)
TEXT = ("pipeline=grpo", "env=math")


def steps(folder: Path, *line: str) -> list[dict[str, object]]:
    """Metrics of each step of a job in this process."""
    return [step.metrics for step in run(folder, [*line, *SMALL])]


def test_the_gymnasium_environment_trains(tmp_path: Path) -> None:
    line = ("pipeline=grpo", "env=gymnasium", "env.id=docs.examples.own_gymnasium:Dock-v0")
    (metrics,) = steps(tmp_path, *line)
    assert metrics["rollout/episodes"] == 8


def test_the_boat_docks_where_it_stops() -> None:
    env = own_gymnasium.Dock()
    env.reset(seed=0)
    env.position, env.speed, env.dock = 0.0, 0.0, 0.05
    _, reward, terminated, truncated, info = env.step(1)
    assert (reward, terminated, truncated, info) == (1.0, True, False, {"is_success": True})


def test_the_reward_trains_and_its_numbers_are_logged(tmp_path: Path) -> None:
    name = "custom_reward_function.name=docs.examples.own_reward:short_and_right"
    (metrics,) = steps(tmp_path, *TEXT, name)
    assert 0 < metrics["reward/part/short_and_right.characters"] <= 8


def test_a_right_answer_loses_a_hundredth_a_character() -> None:
    scored = own_reward.short_and_right("sums", "46", "46", {})
    assert scored == {"score": pytest.approx(0.98), "characters": 2.0}


def test_the_advantage_trains(tmp_path: Path) -> None:
    steps(tmp_path, *TEXT, "algorithm.adv_estimator=docs.examples.own_advantage:median")


def test_the_advantage_is_the_distance_to_the_median() -> None:
    advantages_BT, _ = own_advantage.median(
        token_level_rewards=torch.tensor([[0.0, 1.0], [0.0, 2.0], [9.0, 0.0]]),
        response_mask=torch.tensor([[1, 1], [1, 0], [1, 1]]),
        index=torch.tensor([0, 0, 0]),
        ranks=ALONE,
    )
    assert advantages_BT.tolist() == [[-1.0, -1.0], [0.0, 0.0], [7.0, 7.0]]


@pytest.mark.parametrize(
    "graph",
    [
        "dag.custom_pipeline_fn=docs.examples.own_pipeline:brief_grpo",
        f"dag.workflow_file={EXAMPLES / 'own_pipeline.yaml'}",
    ],
)
def test_the_pipeline_with_a_branch_trains(graph: str, tmp_path: Path) -> None:
    (metrics,) = steps(tmp_path, "env=math", graph)
    assert 0 < metrics["brevity/mean"] <= 1


def test_the_yaml_file_declares_the_graph_of_the_python_file() -> None:
    declared, written = (
        own_pipeline.brief_grpo(),
        load_workflow_file(EXAMPLES / "own_pipeline.yaml"),
    )
    assert {
        node.node_id: (node.dependencies, node.executable) for node in declared.get_nodes()
    } == {node.node_id: (node.dependencies, node.executable) for node in written.get_nodes()}


def test_jsonl_and_parquet_hold_the_same_questions(tmp_path: Path) -> None:
    from pyarrow import parquet

    own_data.main(tmp_path, train=3, test=2)
    lines = (tmp_path / "train.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == parquet.read_table(
        tmp_path / "train.parquet"
    ).to_pylist()
    assert parquet.read_table(tmp_path / "test.parquet").num_rows == 2


@pytest.mark.parametrize("file", ["train.jsonl", "train.parquet"])
def test_the_data_trains(file: str, tmp_path: Path) -> None:
    own_data.main(tmp_path / "data", train=40, test=10)
    steps(tmp_path, *TEXT, f"data.train_files=[{tmp_path / 'data' / file}]")


def test_the_batch_script_is_bash_and_its_command_can_be_parsed() -> None:
    script = EXAMPLES / "slurm.sbatch"
    assert (
        subprocess.run([str(shutil.which("bash")), "-n", str(script)], check=False).returncode == 0
    )
    command = script.read_text().split("exec python -m siirl.train ")[1].replace("\\\n", " ")
    values = {"$address": "10.0.0.1", "$SLURM_JOB_NUM_NODES": "2", "$SHARED": "/shared"}
    for name, value in values.items():
        command = command.replace(name, value)
    config = parse_config([word.replace('"', "") for word in command.split()])
    assert (config.cluster.address, config.trainer.nnodes) == ("10.0.0.1:6379", 2)
