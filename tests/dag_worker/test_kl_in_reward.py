"""KL in the reward: every estimator's KL is subtracted from the scores, and the coefficient
follows the mean KL over all ranks.
"""

# B row, T token

import math
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict

from siirl.dag_worker.components import make_kl_controller
from siirl.dag_worker.rewards import less_kl
from siirl.engine.training.collectives import OneProcess
from siirl.params.algorithm_args import KL_ESTIMATORS
from siirl.params.parser import parse_config

VALUES = {
    "k1": lambda r: r,
    "k2": lambda r: r * r / 2,
    "k3": lambda r: math.exp(-r) - 1 + r,
    "abs": abs,
}
RATIOS = [[0.5, -0.25, 0.0], [2.0, 0.0, 0.0]]  # log pi - log ref
MASK = [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]


class TwoRanks(OneProcess):
    """The other rank has the same rows."""

    size = 2

    def sum(self, tensor):
        return 2 * tensor


def context(*overrides, ranks=None):
    config = parse_config(["algorithm.use_kl_in_reward=true", *overrides])
    return SimpleNamespace(
        config=config,
        ranks=ranks or OneProcess(),
        kl_controller=make_kl_controller(config.algorithm.kl_ctrl),
    )


def batch():
    ref_BT = torch.full((2, 3), -1.0)
    return TensorDict(
        {
            "old_log_probs": ref_BT + torch.tensor(RATIOS),
            "ref_log_prob": ref_BT,
            "response_mask": torch.tensor(MASK),
            "token_level_scores": torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]),
        },
        batch_size=[2],
    )


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_every_estimator_subtracts_the_kl_share_from_the_scores(name):
    rewards_BT, metrics = less_kl(
        batch(), context(f"algorithm.kl_penalty={name}", "algorithm.kl_ctrl.kl_coef=0.1")
    )
    value = VALUES[name.removesuffix("+")]
    kl_BT = [
        [value(r) * kept for r, kept in zip(row, mask, strict=True)]
        for row, mask in zip(RATIOS, MASK, strict=True)
    ]
    expected = batch()["token_level_scores"] - 0.1 * torch.tensor(kl_BT)
    torch.testing.assert_close(rewards_BT, expected)
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(sum(map(sum, kl_BT)) / 3)
    assert metrics["actor/kl_coef"] == 0.1


def test_a_fixed_coefficient_stays():
    fixed = context("algorithm.kl_ctrl.kl_coef=0.1")
    less_kl(batch(), fixed)
    assert fixed.kl_controller.value == 0.1


ADAPTIVE = (
    "algorithm.kl_ctrl.type=adaptive",
    "algorithm.kl_ctrl.kl_coef=0.1",
    "algorithm.kl_ctrl.target_kl=0.1",
)


def test_an_adaptive_coefficient_grows_where_the_kl_is_above_its_target():
    adaptive = context(*ADAPTIVE, "algorithm.kl_ctrl.horizon=10")
    _, metrics = less_kl(batch(), adaptive)
    assert metrics["actor/kl_coef"] == 0.1  # what was used
    # two samples of ten
    assert adaptive.kl_controller.value == pytest.approx(0.1 * (1 + 0.2 * 2 / 10))


def test_the_samples_of_all_ranks_move_the_coefficient():
    adaptive = context(*ADAPTIVE, "algorithm.kl_ctrl.horizon=10", ranks=TwoRanks())
    _, metrics = less_kl(batch(), adaptive)
    assert metrics["actor/reward_kl_penalty"] == pytest.approx((0.5 - 0.25 + 2.0) / 3)
    assert adaptive.kl_controller.value == pytest.approx(0.1 * (1 + 0.2 * 4 / 10))


def test_a_rank_without_rows_takes_part():
    rewards_BT, _ = less_kl(batch()[:0], context(*ADAPTIVE))
    assert rewards_BT.shape == (0, 3)
