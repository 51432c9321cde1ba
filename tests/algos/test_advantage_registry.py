"""Registration of estimators, and calls by name."""

import enum

import pytest
import torch

from siirl.algos.advantages import ADVANTAGES, estimate_advantages, register_adv_est
from siirl.errors import ConfigError, TensorError, UnknownNameError


def test_unknown_estimator_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"'grpp'.*'grpo'.*gae, gpg, grpo"):
        estimate_advantages(name="grpp", available={})


def test_an_estimator_names_the_argument_that_it_lacks():
    available = {
        "token_level_rewards": torch.ones(1, 1),
        "response_mask": torch.ones(1, 1),
        "gamma": 1.0,
        "lam": 1.0,
    }
    with pytest.raises(ConfigError, match="needs 'values', which this job does not have"):
        estimate_advantages(name="gae", available=available)


@pytest.fixture
def registry():
    before = dict(ADVANTAGES)
    yield ADVANTAGES
    ADVANTAGES.clear()
    ADVANTAGES.update(before)


def test_a_users_estimator_in_the_documents_form_is_called_by_name(registry):
    @register_adv_est("my_custom_adv")
    def compute_my_custom_advantage(token_level_rewards, response_mask, **kwargs):
        return token_level_rewards * response_mask, token_level_rewards

    available = {
        "token_level_rewards": torch.ones(1, 2),
        "response_mask": torch.ones(1, 2),
        "gamma": 0.9,
    }
    advantages, _ = estimate_advantages(name="my_custom_adv", available=available)
    assert advantages.tolist() == [[1.0, 1.0]]


def test_an_enum_member_registers_under_its_value(registry):
    class Estimators(enum.Enum):
        MINE = "mine"

    register_adv_est(Estimators.MINE)(
        lambda token_level_rewards: (token_level_rewards, token_level_rewards)
    )
    assert "mine" in registry


def test_a_taken_name_is_refused(registry):
    with pytest.raises(ConfigError, match="'grpo' is already compute_grpo_outcome_advantage"):
        register_adv_est("grpo")(
            lambda token_level_rewards: (token_level_rewards, token_level_rewards)
        )


def test_an_unknown_argument_is_refused_when_registered(registry):
    with pytest.raises(ConfigError, match=r"'reward_model'.*Give it a default"):
        register_adv_est("odd")(lambda reward_model: (reward_model, reward_model))


def test_an_estimator_that_returns_one_number_per_row_is_refused(registry):
    register_adv_est("narrow")(
        lambda token_level_rewards: (token_level_rewards[:, :1], token_level_rewards[:, :1])
    )
    available = {"token_level_rewards": torch.ones(2, 3), "response_mask": torch.ones(2, 3)}
    with pytest.raises(TensorError, match=r"advantages has shape \[2, 1\]"):
        estimate_advantages(name="narrow", available=available)


def test_advantages_that_are_not_finite_are_refused_with_the_estimators_name(registry):
    register_adv_est("dividing")(
        lambda token_level_rewards: (token_level_rewards / 0, token_level_rewards)
    )
    available = {"token_level_rewards": torch.zeros(2, 3), "response_mask": torch.ones(2, 3)}
    with pytest.raises(TensorError, match="Advantage estimator 'dividing': advantages is nan"):
        estimate_advantages(name="dividing", available=available)
