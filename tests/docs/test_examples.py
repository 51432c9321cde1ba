"""The complete files of the tutorials train, and do what they state."""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import own_advantage
import own_data
import own_environment
import own_gymnasium
import own_pipeline
import own_reward
import own_writer
import pytest
import solver_checker
import torch

from envs.checker import check_env
from siirl.algos.ranks import ALONE
from siirl.execution.dag import load_workflow_file
from siirl.params.parser import parse_config
from siirl.reporting.metric_writers import MetricWriters, RunDescription
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
    line = ("pipeline=grpo", "env=gymnasium", "env.id=own_gymnasium:Dock-v0")
    (metrics,) = steps(tmp_path, *line)
    assert metrics["rollout/episodes"] == 8


def test_the_boat_docks_where_it_stops() -> None:
    env = own_gymnasium.Dock()
    env.reset(seed=0)
    env.position, env.speed, env.dock = 0.0, 0.0, 0.05
    _, reward, terminated, truncated, info = env.step(1)
    assert (reward, terminated, truncated, info) == (1.0, True, False, {"is_success": True})


def test_the_environment_by_siirls_own_contract_trains(tmp_path: Path) -> None:
    check_env(own_environment.Corridor())
    (metrics,) = steps(tmp_path, "pipeline=grpo", "env=custom", "env.name=own_environment:Corridor")
    assert metrics["rollout/episodes"] == 8


def test_the_cart_succeeds_at_the_wall_of_its_task_alone() -> None:
    """From 0.9, a step of 0.2 ends at the right wall."""
    env = own_environment.Corridor()
    for task, reward in (("right", 1.0), ("left", 0.0)):
        asyncio.run(env.reset(seed=0, options={"task": task}))
        env._position = 0.9
        _, earned, terminated, truncated, _ = asyncio.run(env.step([1.0]))
        assert (earned, terminated, truncated) == (reward, True, False)


def test_the_writer_gets_numbers_and_leaves_distributions_out(tmp_path: Path) -> None:
    assert own_writer.Lines.__name__ == "Lines"  # its import has registered the name
    with MetricWriters(["lines"], RunDescription(tmp_path, total_steps=1)) as writers:
        writers.write(step=3, metrics={"actor/ppo_kl": 0.5, "rollout/lengths": [1.0, 2.0]})
    assert (tmp_path / "lines.txt").read_text() == "3 {'actor/ppo_kl': 0.5}\n"


def test_the_reward_trains_and_its_numbers_are_logged(tmp_path: Path) -> None:
    name = "custom_reward_function.name=own_reward:short_and_right"
    (metrics,) = steps(tmp_path, *TEXT, name)
    assert 0 < metrics["reward/part/short_and_right.characters"] <= 8


def test_a_right_answer_loses_a_hundredth_a_character() -> None:
    scored = own_reward.short_and_right("sums", "46", "46", {})
    assert scored == {"score": pytest.approx(0.98), "characters": 2.0}


def test_the_advantage_trains(tmp_path: Path) -> None:
    steps(tmp_path, *TEXT, "algorithm.adv_estimator=own_advantage:median")


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
        "dag.custom_pipeline_fn=own_pipeline:brief_grpo",
        f"dag.workflow_file={EXAMPLES / 'own_pipeline.yaml'}",
    ],
)
def test_the_pipeline_with_a_branch_trains(graph: str, tmp_path: Path) -> None:
    [step] = run(tmp_path, ["env=math", graph, *SMALL])
    assert 0 < step.metrics["brevity/mean"] <= 1
    assert step.warnings == ()  # its metrics are declared


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


def words_of_batch_script(folder: Path, **environment: str) -> list[str]:
    """What the batch script would exec on three nodes, with stand-ins for Slurm's and Ray's
    commands.
    """
    echo = folder / "python"
    echo.write_text('#!/bin/sh\n[ "$1" = -c ] && echo token || printf "%s\\n" "$@"\n')
    address = (
        '#!/bin/sh\ncase "$*" in *"hostname -I") echo 10.0.0.1 fd00::1;; '
        '*hostname*) echo 127.0.0.1;; *"ray start"*) '
        f'echo "$RAY_worker_niceness" >> {folder}/niceness; '
        f'echo "$SRUN_CPUS_PER_TASK" >> {folder}/cores;; esac\n'
    )
    for name in ("srun", "sleep"):
        (folder / name).write_text(address)
    # a node joins each time that the script looks
    (folder / "ray").write_text(
        f"#!/bin/sh\necho look >> {folder}/looks\n"
        f"sed 's/look/ 1 node_aa038e/; 1i Active:' {folder}/looks\n"
    )
    # more than a pipe holds: a reader that stops after a line would end the script
    (folder / "scontrol").write_text("#!/bin/sh\nseq -f n%g 20000\n")
    for file in folder.iterdir():
        file.chmod(0o755)
    activate = folder / "siirl" / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    given = {
        "SHARED": str(folder),
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_JOB_NODELIST": "n[1-3]",
        "SLURM_CPUS_PER_TASK": "64",
    }
    done = subprocess.run(
        [str(shutil.which("bash")), str(EXAMPLES / "slurm.sbatch")],
        env={"PATH": f"{folder}:/usr/bin:/bin", **given, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    return lines[lines.index("siirl.train") + 1 :]


@pytest.mark.parametrize(("nodes", "groups"), [("0", {}), ("1", {"rollout": 8, "train": 16})])
def test_the_batch_script_places_groups_over_nodes(
    tmp_path: Path, nodes: str, groups: dict[str, int]
) -> None:
    config = parse_config(words_of_batch_script(tmp_path, ROLLOUT_NODES=nodes))
    assert (config.cluster.address, config.trainer.nnodes) == ("10.0.0.1:6379", 3)
    assert config.dag.groups == groups
    assert config.trainer.max_staleness == (2 if groups else 0)
    assert set((tmp_path / "niceness").read_text().split()) == {"0"}
    assert set((tmp_path / "cores").read_text().split()) == {"64"}
    assert len((tmp_path / "looks").read_text().split()) == 3  # one node, then all three


def test_the_solver_and_the_checker_keep_the_contract() -> None:
    check_env(solver_checker.SolverChecker(tasks=["sums-2"]), seed=3)


def played(*texts: str) -> tuple[list[float], dict[str, object]]:
    """Rewards of all roles and the last info after these texts in turn; the sum is 46."""

    async def play() -> tuple[list[float], dict[str, object]]:
        env = solver_checker.SolverChecker()
        await env.reset(options={"row": own_data.row(SUM_46)})
        for turn, text in enumerate(texts):
            action = [text if turn == role else None for role in range(3)]
            _, rewards, _, _, info = await env.step(action)
        await env.close()
        return rewards.tolist(), info

    return asyncio.run(play())


SUM_46 = next(
    number
    for number in range(10_000)
    if own_data.row(number)["reward_model"]["ground_truth"] == "46"
)


@pytest.mark.parametrize(
    ("texts", "rewards", "verdict"),
    [
        (("46", "46"), [1.0, 1.0, 0.0], "accepted"),
        (("45", "45"), [0.0, 0.0, 0.0], "accepted"),
        (("45", "46", "46"), [0.0, 1.0, 1.0], "sent back"),
        (("45", "40", "41"), [0.0, 0.5, 0.0], "sent back"),
        (("46", "45", "46"), [1.0, 0.5, 1.0], "sent back"),
    ],
)
def test_answers_are_paid_for_themselves_and_the_checker_for_its_verdict_too(
    texts: tuple[str, ...], rewards: list[float], verdict: str
) -> None:
    found, info = played(*texts)
    assert found == rewards
    assert info["agents"][1]["verdict"] == verdict  # type: ignore[index]
    assert info["success"] == info["agents"][0]["success"] == (texts[-1] == "46")  # type: ignore[index]
