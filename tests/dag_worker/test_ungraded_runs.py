"""Ungraded rows, on two real ranks and with vLLM: the numbers of one rank, and a mean
reward of those that are held out.
"""

import importlib.util
import json
import tempfile
from pathlib import Path

import pytest
import torch
from one_process import run

from siirl.dag_worker.dagworker import DAGWorker
from siirl.dag_worker.events import StepDone
from siirl.params.parser import parse_config
from siirl.preflight.configured_graph import load_graph
from siirl.reporting.rollout_files import read_rollouts
from tests.engine.ranks_at_work import work_on_ranks

RANKS = 2
JOB = (
    "env=math", "pipeline=grpo", "cluster=local", "data.train_batch_size=8", "data.max_response_length=6", "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8", "actor_rollout_ref.actor.optim.warmup_steps=0", "env.num_servers=2",
    "env.envs_per_server=8", "env.kwargs={ungraded: true}", "trainer.total_steps=1", "trainer.max_minutes=null", "trainer.save_freq=-1",
    "trainer.threads_per_rank=1", "trainer.save_rollouts=-1", "trainer.val_before_train=false", "data.heldout_share=0.5",
    "custom_reward_function.name=even",
)  # fmt: skip
REWARD = """
def even(data_source, solution_str, ground_truth, extra_info):
    assert (ground_truth is None) == (data_source == "judged")
    return float(solution_str.endswith(("0", "2", "4", "6", "8")))
"""
GRADED = {"data_source": "sums", "reward_model": {"style": "whole", "ground_truth": "0"}}
JUDGED = {"data_source": "judged", "reward_model": {"style": "model", "ground_truth": None}}
CASES = {"mixed": ((GRADED, JUDGED), 3), "one prompt held out": ((JUDGED,), 1)}
"""Kinds of rows, and held-out prompts of each: with one of them the second rank has no episode of
an evaluation.
"""


def words_of(case: str, folder: Path) -> list[str]:
    """The job; its files are written below `folder`."""
    kinds, held_out = CASES[case]
    folder.mkdir(exist_ok=True)
    rows = [
        kind | {"prompt": [{"role": "user", "content": f"{n}+{i}1="}]}
        for n in range(10, 50)
        for i, kind in enumerate(kinds)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(REWARD)
    files = (
        f"data.train_files=[{folder / 'rows.jsonl'}]",
        f"custom_reward_function.path={folder / 'rewards.py'}",
    )
    return [*JOB, *files, f"trainer.val_episodes={held_out}"]


def work(rank: int, folder: str) -> None:
    """One rank's run of every case; its reports are written to a file."""
    torch.set_num_threads(1)
    reported = {}
    for number, case in enumerate(CASES):
        run_folder = Path(folder) / f"{case} on two"
        config = parse_config(
            [*words_of(case, Path(folder) / f"files of rank {rank}"), "trainer.n_gpus_per_node=2"]
        )
        run_folder.mkdir(exist_ok=True)
        meeting = {
            "rank": rank,
            "world_size": RANKS,
            "init_method": f"file://{folder}/rendezvous_{number}",
            "backend": "gloo",
        }
        worker = DAGWorker(
            config=config, graph=load_graph(config), run_folder=run_folder, **meeting
        )
        (event,) = [event for event in worker.run() if isinstance(event, StepDone)]
        reported[case] = event.metrics
    torch.save(reported, Path(folder) / f"reported_{rank}")


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def reports(folder: Path):
    processes = work_on_ranks(work, (str(folder),), ranks=RANKS)
    assert [process.exitcode for process in processes] == [0] * RANKS
    return [torch.load(folder / f"reported_{rank}") for rank in range(RANKS)]


OF_EVERY_ROW = (
    "rollout/ungraded_episodes",
    "rollout/success_rate",
    "reward/mean_score",
    "reward/failed",
)


@pytest.mark.slow  # two processes that each import everything: a quarter of a minute
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_report_of_ungraded_rows_what_one_rank_reports(
    reports, folder: Path, case: str
) -> None:
    one, two = (reports[rank][case] for rank in range(RANKS))
    assert one == two
    (alone,) = run(folder / f"{case} alone", words_of(case, folder / "files"))
    held_out = [name for name in alone.metrics if name.startswith("val/")]
    told = [name for name in (*OF_EVERY_ROW, *held_out) if name in alone.metrics]
    assert {name: one.get(name) for name in told} == pytest.approx(
        {name: alone.metrics[name] for name in told}
    )
    assert sorted(name for name in one if name.startswith("val/")) == sorted(held_out)
    kinds, prompts = CASES[case]
    assert one["val/all/scored_episodes"] == prompts
    assert one["val/judged/ungraded_episodes"] == prompts
    assert "val/judged/success_rate" not in one
    assert ("val/all/success_rate" in one) == (GRADED in kinds)


@pytest.mark.slow  # vLLM takes ten seconds to start
@pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm"
)
def test_ungraded_rows_are_rated_by_the_reward_with_vllm_too(tmp_path: Path) -> None:
    (event,) = run(
        tmp_path / "run",
        [
            *words_of("mixed", tmp_path),
            "rollout=vllm",
            "actor_rollout_ref.rollout.kv_cache_gib=0.05",
        ],
    )
    judged = [
        row
        for row in read_rollouts(tmp_path / "run" / "rollouts", kind="val")
        if row["task"] == "judged"
    ]
    assert {(row["success"], row["verdict"]) for row in judged} == {(None, "not graded")}
    for name, kind in (("mean_score", "sampled"), ("argmax_mean_score", "argmax")):
        rewards = [row["reward"] for row in judged if kind in row["uid"]]
        assert (event.metrics[f"val/judged/{name}"], len(rewards)) == (
            pytest.approx(sum(rewards) / 3),
            3,
        )
    assert event.metrics["actor/updates"] == 1.0
