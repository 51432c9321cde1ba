"""Separate groups as real processes: a killed rollout rank is replaced, and a killed training rank
or exchange ends the run with a sentence, after which it can be resumed.
"""

import os
import re
import signal

import pytest
import torch
from real_run import descendants_of, living_processes

from tests.two_agents import two_chains

GROUPS = ("trainer.n_gpus_per_node=2", "dag.groups={rollout: 1, train: 1}")
STREAM = (*GROUPS, "trainer.max_staleness=1")


def kill_one(run, title: str) -> None:
    """Kill the process of the run whose title has `title`."""
    [pid] = [pid for pid, name in run.processes().items() if title in name]
    os.kill(pid, signal.SIGKILL)


def after_step(run, step: int) -> None:
    """Wait until `step` is reported."""
    run.wait_until(lambda: re.search(rf"^ +{step}/", run.text, re.MULTILINE) is not None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "sentence"),
    [("ray::_Rank", "The process of rank 0 died"), ("ray::Exchange", "passes rows and weights")],
)
def test_a_killed_training_rank_or_exchange_ends_the_run_which_resumes(start_run, title, sentence):
    run = start_run(*STREAM, "trainer.total_steps=400")
    after_step(run, 3)
    kill_one(run, title)
    assert run.wait() == 1, run.text
    assert sentence in " ".join(run.text.split())
    assert "Traceback" not in run.text
    assert "worker died" not in run.text
    again = start_run(*STREAM, "trainer.total_steps=12", "trainer.resume=auto")
    assert again.wait() in (0, 2), again.text
    assert "Traceback" not in again.text


AGENTS = (
    "{0: {}, 1: {env: math, data.train_batch_size: 2, data.max_response_length: 6, "
    "actor_rollout_ref.rollout.n: 3, actor_rollout_ref.actor.ppo_mini_batch_size: 1}}"
)


@pytest.mark.parametrize(
    "agents",
    [
        pytest.param((0,), id="one policy", marks=pytest.mark.slow),
        pytest.param((0, 1), id="two agents"),
    ],
)
def test_a_killed_rollout_rank_is_replaced_and_training_goes_on_with_every_prompt_accounted_for(
    start_run, tmp_path, agents
):
    """Two prompts of each agent in a step."""
    words = (*STREAM, "trainer.total_steps=12")
    if len(agents) > 1:
        words = (*words, two_chains(tmp_path), f"agents={AGENTS}")
    run = start_run(*words)
    after_step(run, 3)
    kill_one(run, "ray::_ReplaceableRank")
    assert run.wait() == 0, run.text
    assert "and is replaced" in run.text
    assert "worker died" not in run.text
    assert re.search(r"^ +12/12", run.text, re.MULTILINE)
    [checkpoint] = run.outputs.glob("*/*/checkpoints/step_00000012")
    rollouts = torch.load(checkpoint / "state.pt", weights_only=False)["rollouts"]
    for agent in agents:
        of_agent = rollouts["agents"][agent] if len(agents) > 1 else rollouts
        accounted(of_agent["ledger"], used=12 * 2)


def accounted(ledger, *, used: int) -> None:
    """Every prompt that was started is used, discarded, or waits."""
    assert ledger["used"] == used
    waiting = len(ledger["pending"]) + len(ledger["finished"])
    assert ledger["started"] == ledger["position"] == used + ledger["discarded"] + waiting


FOUR_RANKS = (
    *("env=math", "data.max_response_length=6", "env.envs_per_server=16", "trainer.val_episodes=2"),
    *("data.train_batch_size=4", "actor_rollout_ref.rollout.n=4", "trainer.n_gpus_per_node=4"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=2", "dag.groups={rollout: 2, train: 2}"),
    "actor_rollout_ref.model.options={}",
)


def ranks_of(ray_home, title: str) -> list[int]:
    """Numbers of the cluster's processes with `title`; on a foreign cluster ranks are not in the
    session of the command.
    """
    servers = {pid for pid, name in living_processes() if str(ray_home) in name}
    own = descendants_of(servers)
    return sorted(pid for pid, name in living_processes() if pid in own and title in name)


def last_saved(run) -> int:
    """Step of the newest checkpoint."""
    return int(run.checkpoints()[-1].removeprefix("step_"))


@pytest.mark.slow  # a cluster and two runs of four ranks
@pytest.mark.parametrize("staleness", [0, 1])
def test_of_several_ranks_a_rollout_rank_is_replaced_and_a_training_rank_ends_the_run_which_resumes(
    cluster, ray_home, start_run, staleness
):
    words = (*FOUR_RANKS, f"cluster.address={cluster}", f"trainer.max_staleness={staleness}")
    environment = {"RAY_TMPDIR": str(ray_home)}
    run = start_run(*words, "trainer.total_steps=2000", environment=environment)
    after_step(run, 2)
    os.kill(ranks_of(ray_home, "ray::_ReplaceableRank")[-1], signal.SIGKILL)
    run.wait_until(lambda: "and is replaced" in run.text)
    done = last_saved(run)
    run.wait_until(lambda: last_saved(run) > done + 3)  # training continues
    os.kill(ranks_of(ray_home, "ray::_Rank")[-1], signal.SIGKILL)
    assert run.wait() == 1, run.text
    assert re.search(r"The process of rank [01] died", " ".join(run.text.split()))
    last = last_saved(run) + 3
    again = start_run(
        *words, f"trainer.total_steps={last}", "trainer.resume=auto", environment=environment
    )
    assert again.wait() == 0, again.text
    [checkpoint] = run.outputs.glob(f"*/*/checkpoints/step_{last:08d}")
    ledger = torch.load(checkpoint / "state.pt", weights_only=False)["rollouts"]["ledger"]
    accounted(ledger, used=last * 4)
