"""The example that trains on the pool through Gymnasium's interface."""

import importlib.util
import sys

import numpy as np
import pytest
import torch

from siirl.env_server.pool import EnvPool
from siirl.env_server.vector_env import PoolVectorEnv


@pytest.fixture(scope="module")
def example(repository):
    spec = importlib.util.spec_from_file_location(
        "cleanrl_ppo_on_pool", repository / "docs/examples/cleanrl_ppo_on_pool.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_advantages_of_the_example_by_hand(example):
    """Two steps, then the episode ends: delta_1 = 2 - 0.5, A_0 = (1 + 0.5 * 0.5 - 0) + 0.5 * 0.5 *
    1.5.
    """
    column = torch.zeros(2, 1)
    rollout = example.Rollout(
        observations=column,
        actions=column,
        log_probs=column,
        rewards=torch.tensor([[1.0], [2.0]]),
        ended=column,
        values=torch.tensor([[0.0], [0.5]]),
    )
    advantages = example.generalised_advantages(
        rollout, torch.tensor([9.0]), torch.tensor([1.0]), gamma=0.5, lam=0.5
    )
    assert advantages.flatten().tolist() == [1.625, 1.5]


@pytest.mark.slow
def test_the_example_learns_to_balance_the_pole(example):
    torch.set_num_threads(1)
    envs = PoolVectorEnv(
        EnvPool("gymnasium", {"id": "CartPole-v1"}, 2, 4, cluster="local", deadline_s=600)
    )
    settings = example.Settings(total_steps=12_288, learning_rate=1e-3)
    returns = example.train(envs, settings, lambda steps, mean_return, steps_per_s: None)
    envs.close()
    assert np.mean(returns[:20]) < 30.0
    assert np.mean(returns[-20:]) > 70.0  # measured 98 to 106 on three seeds
