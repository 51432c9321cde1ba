"""PPO, DAPO and ReMax on two real ranks: they take the same decisions, report the same numbers, and act with the same weights."""

import tempfile
from pathlib import Path

import pytest
import torch

from siirl.dag_worker.dagworker import DAGWorker
from siirl.dag_worker.events import StepDone
from siirl.dag_worker.prepare import load_graph
from siirl.params.parser import parse_config
from tests.engine.ranks_at_work import work_on_ranks

RANKS, LIMIT_S = 2, 240
SMALL = (
    "env=gymnasium", "env.id=CartPole-v1", "cluster=local", "data.train_batch_size=4", "actor_rollout_ref.rollout.n=3",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.ppo_epochs=1", "actor_rollout_ref.actor.optim.lr=1e-2",
    "env.num_servers=2", "env.envs_per_server=3", "trainer.val_episodes=0", "trainer.record_episodes=0", "trainer.total_steps=2",
    "trainer.max_minutes=null", "trainer.save_freq=-1", "trainer.n_gpus_per_node=2",
    "actor_rollout_ref.model.options={chunk_length: 1, width: 16}",
)  # fmt: skip
CASES = {
    "ppo": ("pipeline=ppo", "trainer.critic_warmup=1"),
    "dapo": ("pipeline=dapo", "env.max_episode_steps=11"),
    "dapo without a group": ("pipeline=dapo", "env.max_episode_steps=8", "algorithm.filter.max_refills=1"),
    "remax": ("pipeline=remax", "actor_rollout_ref.rollout.n=2"),
}


def work(rank: int, folder: str) -> None:
    """One rank's walk through every case; what it reported is left in a file."""
    torch.set_num_threads(1)
    reported = {}
    for number, (name, overrides) in enumerate(CASES.items()):
        config = parse_config([*SMALL, *overrides])
        run_folder = Path(folder) / str(number)
        run_folder.mkdir(exist_ok=True)
        worker = DAGWorker(
            config=config,
            graph=load_graph(config),
            rank=rank,
            world_size=RANKS,
            init_method=f"file://{folder}/rendezvous_{number}",
            backend="gloo",
            run_folder=run_folder,
        )
        reported[name] = [event.metrics for event in worker.run() if isinstance(event, StepDone)]
    torch.save(reported, Path(folder) / f"reported_{rank}")


@pytest.fixture(scope="module")
def reports():
    with tempfile.TemporaryDirectory() as folder:
        processes = work_on_ranks(work, (folder,), ranks=RANKS, limit_s=LIMIT_S)
        assert [process.exitcode for process in processes] == [0] * RANKS
        return [torch.load(Path(folder) / f"reported_{rank}") for rank in range(RANKS)]


pytestmark = pytest.mark.slow  # two processes that each import everything and take eight training steps: half a minute


@pytest.mark.parametrize("name", CASES)
def test_ranks_report_the_same(reports, name):
    assert reports[0][name] == reports[1][name]
    assert len(reports[0][name]) == 2


def test_the_actor_waits_for_the_critic_on_both(reports):
    steps = reports[0]["ppo"]
    assert [step["actor/updates"] for step in steps] == [0.0, 2.0]
    assert [step["critic/updates"] for step in steps] == [2.0, 2.0]


def test_refills_are_asked_for_together(reports):
    for step in reports[0]["dapo"]:
        assert step["sampling/groups"] == 4.0 or step["sampling/rounds"] == 5.0
        assert step["sampling/kept"] == 3 * step["sampling/groups"]
        assert step["rollout/episodes"] % (3 * RANKS) == 0


def test_no_rank_waits_where_nothing_is_left(reports):
    assert [(step["sampling/groups"], step["actor/updates"]) for step in reports[0]["dapo without a group"]] == [(0.0, 0.0)] * 2


def test_greedy_baselines_of_both_ranks_count(reports):
    assert all(step["reward/baseline"] > 8 and step["rollout/episodes"] == 8.0 for step in reports[0]["remax"])
