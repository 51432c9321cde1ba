"""The example of a user's algorithm runs as its docstring states, and each part does
what its docstring states.
"""

import math
import shlex
from pathlib import Path
from types import SimpleNamespace

import own_algorithm
import pytest
import torch
from tensordict import TensorDict

from siirl.algos import POLICY_LOSSES, estimate_advantages, policy_loss
from siirl.algos.ranks import ALONE
from siirl.dag_worker.dagworker import DAGWorker
from siirl.dag_worker.events import StepDone
from siirl.params.parser import parse_config
from siirl.preflight.configured_graph import load_graph

SMALL = (
    "cluster=local", "data.train_batch_size=3", "actor_rollout_ref.actor.ppo_mini_batch_size=3", "actor_rollout_ref.actor.ppo_epochs=1",
    "actor_rollout_ref.rollout.n=4", "trainer.total_steps=2", "trainer.max_minutes=null", "trainer.val_episodes=0",
    "trainer.record_episodes=0",
)  # fmt: skip


def documented_command() -> list[str]:
    """The overrides in the example's own docstring."""
    command = own_algorithm.__doc__.split("siirl train ")[1].split("\n\n")[0]
    return shlex.split(command)


def test_the_documented_command_trains(tmp_path: Path):
    config = parse_config([*documented_command(), *SMALL])
    worker = DAGWorker(
        config=config,
        graph=load_graph(config),
        rank=0,
        world_size=1,
        init_method="",
        backend="gloo",
        run_folder=tmp_path,
    )
    steps = [event.metrics for event in worker.run() if isinstance(event, StepDone)]
    assert [step["actor/updates"] for step in steps] == [1.0, 1.0]
    assert all(step["sampling/kept"] in (4.0, 8.0, 12.0) for step in steps)  # whole groups of four


def test_its_advantage_is_the_distance_to_the_median():
    available = {
        "token_level_rewards": torch.tensor([[0.0, 1.0], [0.0, 2.0], [9.0, 0.0], [0.0, 5.0]]),
        "response_mask": torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]]),
        "index": torch.tensor([0, 0, 0, 1]),
        "ranks": ALONE,
    }
    advantages, _ = estimate_advantages(name="median", available=available)
    assert advantages.tolist() == [[-1.0, -1.0], [0.0, 0.0], [7.0, 7.0], [0.0, 0.0]]


def test_its_loss_ignores_worse_samples_and_tokens_that_moved_far():
    log_probs = torch.full((2, 3), -1.0, requires_grad=True)
    given = {
        "log_probs_BT": log_probs,
        "old_log_probs_BT": torch.tensor([[-1.0, -1.0, -2.0], [-1.0, -1.0, -2.0]]),
        "advantages_BT": torch.tensor([[2.0, 2.0, 2.0], [-3.0, -3.0, -3.0]]),
        "mask_BT": torch.tensor([[1, 0, 1], [1, 1, 1]]),
        "clip_ratio_high": 0.2,
    }
    policy_loss(name="only_better", available=given).loss_BT.sum().backward()
    assert log_probs.grad.tolist() == [[-2.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert POLICY_LOSSES["only_better"] is own_algorithm.only_better_loss


def batch(*returns: float) -> TensorDict:
    columns = {
        "index": torch.arange(len(returns)) // 2,
        "env_return": torch.tensor(returns),
        "response_mask": torch.ones(len(returns), 3, dtype=torch.long),
    }
    return TensorDict(columns, batch_size=[len(returns)])


def test_its_filter_keeps_groups_that_vary():
    output = own_algorithm.keep_varied_groups(
        batch=batch(10.0, 11.0, 10.0, 12.0), context=SimpleNamespace(ranks=ALONE)
    )
    assert output.batch["env_return"].tolist() == [10.0, 12.0]


def test_its_reward_is_a_logarithm_at_the_last_token():
    rewarded = own_algorithm.logarithmic_reward(batch=batch(math.e, 1.0)).batch
    assert rewarded["token_level_rewards"].tolist() == [
        [0.0, 0.0, pytest.approx(1.0)],
        [0.0, 0.0, 0.0],
    ]
