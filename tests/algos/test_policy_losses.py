"""PPO's loss by hand, the registry of policy losses, their options, and refusals. Formulas:
`test_loss_formulas`.
"""

import math

import pytest
import torch

from siirl.algos.policy_losses import (
    LOSS_TRAITS,
    POLICY_LOSSES,
    PolicyLoss,
    check_loss_options,
    policy_loss,
    register_policy_loss,
    vanilla_policy_loss,
)
from siirl.errors import ConfigError, TensorError, UnknownNameError


def one_token(ratio, advantage, **options):
    return vanilla_policy_loss(
        log_probs_BT=torch.tensor([[math.log(ratio)]]),
        old_log_probs_BT=torch.zeros(1, 1),
        advantages_BT=torch.tensor([[advantage]]),
        mask_BT=torch.ones(1, 1),
        **options,
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.0, 2.0, -2.0),  # on policy
        (1.5, 2.0, -2.4),  # clipped above at 1.2
        (0.5, 2.0, -1.0),  # a good action that became rarer is not clipped
        (0.5, -2.0, 1.6),  # clipped below at 0.8
        (1.5, -2.0, 3.0),  # a bad action that became likelier is not clipped ...
        (9.0, -2.0, 6.0),  # ... until the dual clip at 3
    ],
)
def test_vanilla_by_hand(ratio, advantage, loss):
    assert one_token(ratio, advantage).loss_BT.item() == pytest.approx(loss, rel=1e-6)


def test_low_and_high_bounds_are_separate():
    assert one_token(
        1.5, 1.0, clip_ratio_low=0.1, clip_ratio_high=0.28
    ).loss_BT.item() == pytest.approx(-1.28)
    assert one_token(
        0.5, -1.0, clip_ratio_low=0.1, clip_ratio_high=0.28
    ).loss_BT.item() == pytest.approx(0.9)


def test_without_a_dual_clip_a_bad_action_is_pushed_down_however_likely_it_became():
    assert one_token(9.0, -2.0, clip_ratio_c=None).loss_BT.item() == pytest.approx(18.0)


def test_clip_shares_mark_where_the_clip_is_active():
    assert one_token(1.5, 1.0).metrics_BT["pg_clipfrac"].item() == 1.0
    assert one_token(1.1, 1.0).metrics_BT["pg_clipfrac"].item() == 0.0
    assert one_token(9.0, -1.0).metrics_BT["pg_clipfrac_lower"].item() == 1.0
    assert one_token(2.0, -1.0).metrics_BT["pg_clipfrac_lower"].item() == 0.0


def test_a_ratio_that_is_held_at_its_limit_has_no_gradient():
    log_probs = torch.tensor([[0.0]], requires_grad=True)
    result = vanilla_policy_loss(
        log_probs_BT=log_probs,
        old_log_probs_BT=torch.full((1, 1), -500.0),
        advantages_BT=torch.full((1, 1), -1.0),
        mask_BT=torch.ones(1, 1),
    )
    result.loss_BT.sum().backward()
    assert result.loss_BT.item() == pytest.approx(3.0)
    assert log_probs.grad.item() == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_ratio_low": 1.5}, r"clip_ratio_low=1.5.*\[0, 1\]"),
        ({"clip_ratio_high": -0.1}, "clip_ratio_high=-0.1.*not be negative"),
        ({"clip_ratio_c": 1.0}, "clip_ratio_c=1.0.*larger than 1"),
    ],
)
def test_invalid_bounds_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        one_token(1.0, 1.0, **options)


def test_unknown_loss_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"'vanila'. Did you mean 'vanilla'\? Known: .*gspo"):
        policy_loss(name="vanila", available={})


# Options


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "sapo",
            {"tau_negative": 1.0},
            r"option of the policy loss sapo \(loss_options\) 'tau_negative'. Did you mean 'tau_neg'\?",
        ),
        ("vanilla", {"tau_neg": 1.0}, r"'tau_neg'.*Known: \(none\)"),
        (
            "sapo",
            {"tau_neg": "cold"},
            "loss_options.tau_neg='cold' .* must be a number, such as 1.05",
        ),
        ("sapo", {"tau_neg": 0.0}, "tau_neg=0.0 must be positive"),
        ("cpgd", {"policy_drift_cap": 0.5}, "policy_drift_cap=0.5 > 1"),
        ("decoupled", {"behaviour_weight_cap": 0.5}, "high=0.5 is below 1"),
        ("clip_cov", {"clip_cov_lb": 7.0}, "clip_cov_lb=7.0 < clip_cov_ub=5.0"),
        ("kl_cov", {"kl_cov_ratio": 2.0}, "kl_cov_ratio=2.0 is a share"),
        ("kl_cov", {"ppo_kl_coef": -1.0}, "ppo_kl_coef=-1.0"),
    ],
)
def test_options_that_cannot_work_are_refused_before_anything_runs(name, options, message):
    with pytest.raises(ConfigError, match=message):
        check_loss_options(name, options)


def test_options_of_a_loss_and_of_its_selection_are_taken():
    check_loss_options("kl_cov", {"kl_cov_ratio": 0.5, "ppo_kl_coef": 2})


# Registry


@pytest.fixture
def registry():
    before = [(registry, dict(registry)) for registry in (POLICY_LOSSES, LOSS_TRAITS)]
    yield
    for registry, entries in before:
        registry.clear()
        registry.update(entries)


def test_a_loss_with_four_scalars_is_refused_with_the_other_decorator(registry):
    with pytest.raises(ConfigError, match=r"'old_log_prob' of policy loss .* is not provided"):
        register_policy_loss("mine")(lambda old_log_prob, log_prob: None)


def test_a_misspelt_argument_is_refused_with_its_place_and_the_nearest_name(registry):
    with pytest.raises(
        ConfigError,
        match=r"not provided \(.*test_policy_losses\.py, line \d+\)\. Did you mean 'log_probs_BT'\?",
    ):
        register_policy_loss("mine")(lambda log_probs_B, advantages_BT: None)


def test_a_users_loss_has_options_and_importance_weights(registry):
    @register_policy_loss("mine", aggregation="seq-mean-token-sum", own_bounds=True)
    def my_loss(*, log_probs_BT, mask_BT, strength=2.0):
        return PolicyLoss(loss_BT=-strength * log_probs_BT * mask_BT)

    check_loss_options("mine", {"strength": 3.0})
    one = torch.ones(1, 2)
    available = {
        "log_probs_BT": -one,
        "mask_BT": one,
        "strength": 3.0,
        "importance_weights_BT": torch.tensor([[1.0, 0.5]]),
    }
    assert policy_loss(name="mine", available=available).loss_BT.tolist() == [[3.0, 1.5]]


def test_a_loss_that_asks_for_importance_weights_is_not_multiplied_by_them_again(registry):
    @register_policy_loss("mine")
    def my_loss(*, log_probs_BT, mask_BT, importance_weights_BT=None):
        return PolicyLoss(loss_BT=importance_weights_BT * log_probs_BT)

    one = torch.ones(1, 1)
    available = {"log_probs_BT": one, "mask_BT": one, "importance_weights_BT": 3 * one}
    assert policy_loss(name="mine", available=available).loss_BT.item() == 3.0


def test_a_loss_of_another_shape_than_the_mask_is_refused(registry):
    @register_policy_loss("mine")
    def my_loss(*, log_probs_BT):
        return PolicyLoss(loss_BT=log_probs_BT.sum(-1))

    with pytest.raises(TensorError, match=r"loss has shape \[2\]"):
        policy_loss(
            name="mine", available={"log_probs_BT": torch.ones(2, 3), "mask_BT": torch.ones(2, 3)}
        )


def test_a_loss_that_is_not_finite_is_refused_by_its_name(registry):
    @register_policy_loss("mine")
    def my_loss(*, log_probs_BT):
        # the first row's NaN is masked
        return PolicyLoss(loss_BT=log_probs_BT + torch.tensor([[0.0, torch.nan], [torch.nan, 0.0]]))

    mask_BT = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    with pytest.raises(
        TensorError, match=r"^policy loss 'mine' is nan in row 1, place \[0\] \(1 such rows of 2\)"
    ):
        policy_loss(name="mine", available={"log_probs_BT": torch.zeros(2, 2), "mask_BT": mask_BT})


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (torch.zeros(2, 2), r"returned a Tensor\."),
        (None, r"returned a NoneType\."),
        (PolicyLoss(loss_BT=0.5), r"returned a PolicyLoss of a float\."),
    ],
)
def test_a_loss_that_is_no_policy_loss_is_refused_with_what_to_return(registry, result, told):
    register_policy_loss("mine")(lambda *, log_probs_BT: result)
    with pytest.raises(
        ConfigError, match=rf"^Policy loss 'mine' must return PolicyLoss\(loss_BT=\.\.\.\).*{told}"
    ):
        policy_loss(
            name="mine", available={"log_probs_BT": torch.ones(2, 2), "mask_BT": torch.ones(2, 2)}
        )


def test_a_loss_without_a_gradient_is_refused_where_the_log_probs_have_one(registry):
    @register_policy_loss("mine")
    def my_loss(*, log_probs_BT):
        return PolicyLoss(loss_BT=-log_probs_BT.detach())

    log_probs_BT, mask_BT = torch.zeros(1, 1, requires_grad=True), torch.ones(1, 1)
    available = {"log_probs_BT": log_probs_BT, "mask_BT": mask_BT}
    with pytest.raises(TensorError, match=r"^Policy loss 'mine' has no gradient.*without detach"):
        policy_loss(name="mine", available=available)
    with torch.no_grad():
        assert policy_loss(name="mine", available=available).loss_BT.item() == 0.0


@pytest.mark.parametrize(
    ("metric", "at_each_token"),
    [
        (torch.tensor([[1.0, 2.0], [3.0, torch.inf]]), [[1.0, 2.0], [3.0, torch.inf]]),
        (2, [[2.0, 2.0], [2.0, 2.0]]),
        (torch.tensor(2.0, dtype=torch.bfloat16), [[2.0, 2.0], [2.0, 2.0]]),
        (torch.tensor([1, 2, 3]), [[2.0, 2.0], [2.0, 2.0]]),
        ([1.0, 3.0], [[2.0, 2.0], [2.0, 2.0]]),
    ],
)
def test_a_metric_of_a_loss_is_taken_in_any_shape(registry, metric, at_each_token):
    @register_policy_loss("mine")
    def my_loss(*, log_probs_BT):
        return PolicyLoss(loss_BT=log_probs_BT, metrics_BT={"drift": metric})

    result = policy_loss(
        name="mine", available={"log_probs_BT": torch.zeros(2, 2), "mask_BT": torch.ones(2, 2)}
    )
    assert result.metrics_BT["drift"].tolist() == at_each_token


@pytest.mark.parametrize("metric", ["high", None, {}, [1.0, "b"]])
def test_a_metric_of_a_loss_that_is_not_a_number_is_nan(registry, metric):
    @register_policy_loss("mine")
    def my_loss(*, log_probs_BT):
        return PolicyLoss(loss_BT=log_probs_BT, metrics_BT={"drift": metric})

    result = policy_loss(
        name="mine", available={"log_probs_BT": torch.zeros(1, 1), "mask_BT": torch.ones(1, 1)}
    )
    assert result.metrics_BT["drift"].isnan().all()


def test_a_name_is_taken_once(registry):
    with pytest.raises(ConfigError, match="'gspo' is already gspo_policy_loss"):
        register_policy_loss("gspo")(lambda *, log_probs_BT: None)
