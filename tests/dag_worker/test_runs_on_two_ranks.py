"""PPO, DAPO, ReMax and prompts that follow success, on two real ranks: both take the same decisions
and report the same numbers.
"""

import tempfile
from pathlib import Path

import pytest
import torch

from siirl.dag_worker.dagworker import DAGWorker
from siirl.dag_worker.events import StepDone
from siirl.params.parser import parse_config
from siirl.preflight.configured_graph import load_graph
from tests.engine.ranks_at_work import work_on_ranks

RANKS = 2
SMALL = (
    "env=gymnasium", "env.id=CartPole-v1", "cluster=local", "data.train_batch_size=4", "actor_rollout_ref.rollout.n=3",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.ppo_epochs=1", "actor_rollout_ref.actor.optim.lr=1e-2",
    "env.num_servers=2", "env.envs_per_server=3", "trainer.val_episodes=0", "trainer.record_episodes=0", "trainer.total_steps=2",
    "trainer.max_minutes=null", "trainer.save_freq=-1", "trainer.n_gpus_per_node=2",
    "actor_rollout_ref.model.options={chunk_length: 1, width: 16}",
)  # fmt: skip
SUMS = (
    "env=math", "env.tasks=[sums-1,sums-2]", "cluster=local", "data.train_batch_size=8", "data.max_response_length=6",
    "actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "env.num_servers=2", "env.envs_per_server=16",
    "trainer.val_episodes=0", "trainer.total_steps=3", "trainer.max_minutes=null", "trainer.save_freq=-1", "trainer.n_gpus_per_node=2",
)  # fmt: skip
SEGMENTS = (
    "env=gymnasium", "env.id=Pendulum-v1", "pipeline=ppo", "trainer=mujoco_control", "cluster=local", "data.train_batch_size=4",
    "actor_rollout_ref.rollout.n_steps=16", "actor_rollout_ref.actor.ppo_mini_batch_size=32", "actor_rollout_ref.actor.ppo_epochs=1",
    "env.num_servers=2", "env.envs_per_server=2", "trainer.val_episodes=4", "trainer.val_before_train=false", "trainer.total_steps=2",
    "trainer.save_freq=-1", "trainer.n_gpus_per_node=2",
)  # fmt: skip
CASES = {
    "segments": SEGMENTS,
    "ppo": (*SMALL, "pipeline=ppo", "trainer.critic_warmup=1"),
    "dapo": (*SMALL, "pipeline=dapo", "env.max_episode_steps=11"),
    "dapo without a group": (
        *SMALL,
        "pipeline=dapo",
        "env.max_episode_steps=8",
        "algorithm.filter.max_refills=1",
    ),
    "remax": (*SMALL, "pipeline=remax", "actor_rollout_ref.rollout.n=2"),
    "learnable": (*SUMS, "pipeline=grpo", "data.task_sampling=learnable"),
}


def work(rank: int, folder: str) -> None:
    """One rank's run of every case; its reports are written to a file."""
    torch.set_num_threads(1)
    reported, streams = {}, {}
    for number, (name, overrides) in enumerate(CASES.items()):
        config = parse_config(overrides)
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
        steps = [
            (event.metrics, worker.components.context.require_loader().state_dict())
            for event in worker.run()
            if isinstance(event, StepDone)
        ]
        reported[name], streams[name] = (
            [metrics for metrics, _ in steps],
            [stream for _, stream in steps],
        )
    torch.save((reported, streams), Path(folder) / f"reported_{rank}")


@pytest.fixture(scope="module")
def walks():
    """Each rank's metrics by case and step, and the position of its prompts after each step."""
    with tempfile.TemporaryDirectory() as folder:
        processes = work_on_ranks(work, (folder,), ranks=RANKS)
        assert [process.exitcode for process in processes] == [0] * RANKS
        return [torch.load(Path(folder) / f"reported_{rank}") for rank in range(RANKS)]


@pytest.fixture
def reports(walks):
    return [reported for reported, _ in walks]


# two processes that each import everything and take eleven training steps: half a minute
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", CASES)
def test_ranks_report_the_same(reports, name):
    assert reports[0][name] == reports[1][name]
    assert len(reports[0][name]) == (3 if name == "learnable" else 2)


def test_segments_of_both_ranks_make_a_step(reports):
    for step in reports[0]["segments"]:
        assert (step["data/decisions"], step["env/steps"]) == (64.0, 64.0)
        assert (step["actor/updates"], step["critic/updates"]) == (2.0, 2.0)


def test_the_actor_waits_for_the_critic_on_both(reports):
    steps = reports[0]["ppo"]
    assert [step["actor/updates"] for step in steps] == [0.0, 2.0]
    assert [step["critic/updates"] for step in steps] == [2.0, 2.0]


def test_ranks_request_refills_together(reports):
    for step in reports[0]["dapo"]:
        assert step["sampling/groups"] == 4.0 or step["sampling/rounds"] == 5.0
        assert step["sampling/kept"] == 3 * step["sampling/groups"]
        assert step["rollout/episodes"] % (3 * RANKS) == 0


def test_no_rank_waits_for_rows_if_none_are_left(reports):
    assert [
        (step["sampling/groups"], step["actor/updates"])
        for step in reports[0]["dapo without a group"]
    ] == [(0.0, 0.0)] * 2


def test_greedy_baselines_of_both_ranks_count(reports):
    assert all(
        step["reward/baseline"] > 8 and step["rollout/episodes"] == 8.0
        for step in reports[0]["remax"]
    )


def test_prompts_follow_the_success_of_both_ranks_and_both_draw_the_same_stream(walks):
    (reports, one), (_, other) = walks
    assert one["learnable"] == other["learnable"]
    drawn, episodes = zip(
        *((sum(state["drawn"]), sum(state["episodes"])) for state in one["learnable"]), strict=True
    )
    assert drawn == (8, 16, 24)
    # of both ranks; those of earlier steps fade
    assert episodes == pytest.approx((32, 32 * 1.8, 32 * (1 + 0.8 * 1.8)))
    first, *_, last = [step["data/sums-1/share"] for step in reports["learnable"]]
    assert first == 0.5 != last
