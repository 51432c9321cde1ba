"""The names and argument lists of siiRL's documentation work as it writes them."""

import inspect
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from siirl.compat import core_algos
from siirl.compat.core_algos import (
    AdaptiveKLController,
    FixedKLController,
    agg_loss,
    apply_kl_penalty,
    compute_entropy_loss,
    compute_gae_advantage_return,
    compute_grpo_outcome_advantage,
    compute_log_prob_from_logits,
    compute_policy_loss,
    compute_policy_loss_cispo,
    compute_policy_loss_cpgd,
    compute_policy_loss_gspo,
    compute_policy_loss_vanilla,
    compute_value_loss,
    kl_penalty,
    masked_mean,
)
from siirl.errors import ConfigError, TensorError, UnknownNameError

CONFIG = SimpleNamespace(
    clip_ratio=0.2, clip_ratio_low=None, clip_ratio_high=0.28, clip_ratio_c=3.0
)
ONES_12 = torch.ones(1, 2)
LOSS_ARGUMENTS = [
    "old_log_prob",
    "log_prob",
    "advantages",
    "response_mask",
    "loss_agg_mode",
    "config",
    "rollout_is_weights",
]


def documented(*names):
    """The positional arguments, in order."""
    return list(names)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (
            "compute_gae_advantage_return",
            documented("token_level_rewards", "values", "response_mask", "gamma", "lam"),
        ),
        (
            "compute_grpo_outcome_advantage",
            documented(
                "token_level_rewards",
                "response_mask",
                "index",
                "epsilon",
                "norm_adv_by_std_in_grpo",
            ),
        ),
        (
            "compute_cpgd_outcome_advantage",
            documented(
                "token_level_rewards", "response_mask", "index", "epsilon", "weight_factor_in_cpgd"
            ),
        ),
        (
            "compute_remax_outcome_advantage",
            documented("token_level_rewards", "reward_baselines", "response_mask"),
        ),
        ("compute_policy_loss_vanilla", LOSS_ARGUMENTS),
        ("compute_policy_loss_cpgd", LOSS_ARGUMENTS),
        ("compute_policy_loss_gspo", LOSS_ARGUMENTS),
        ("compute_policy_loss_gpg", LOSS_ARGUMENTS),
        (
            "compute_policy_loss",
            documented(
                "old_log_prob",
                "log_prob",
                "advantages",
                "response_mask",
                "cliprange",
                "loss_agg_mode",
            ),
        ),
        ("compute_log_prob_from_logits", documented("logits", "responses", "response_mask")),
        ("compute_entropy_loss", documented("logits", "response_mask")),
        ("register_adv_est", documented("name_or_enum")),
        ("register_policy_loss", documented("name")),
        ("masked_whiten", documented("values", "mask", "shift_mean")),
        ("agg_loss", documented("loss_mat", "loss_mask", "loss_agg_mode")),
        ("AdaptiveKLController", documented("init_kl_coef", "target_kl", "horizon")),
        ("apply_kl_penalty", documented("data", "kl_ctrl", "kl_penalty")),
    ],
)
def test_argument_lists_equal_those_of_the_documents(name, arguments):
    parameters = inspect.signature(getattr(core_algos, name)).parameters.values()
    assert [p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY] == arguments


def listing_of_vanilla(old_log_prob, log_prob, advantages, mask):
    """The architecture guide's section 8.2, token-mean."""
    ratio = torch.exp(log_prob - old_log_prob)
    losses1, losses2 = -advantages * ratio, -advantages * torch.clamp(ratio, 0.8, 1.28)
    clipped = torch.maximum(losses1, losses2)
    losses = torch.where(advantages < 0, torch.min(-advantages * 3.0, clipped), clipped)
    lower = (clipped > -advantages * 3.0) * (advantages < 0)
    return [
        masked_mean(x.float(), mask)
        for x in (losses, losses2 > losses1, old_log_prob - log_prob, lower)
    ]


def test_the_vanilla_loss_equals_that_of_the_documents():
    generator = torch.Generator().manual_seed(0)
    old, shift, advantages = (torch.randn(6, 8, generator=generator) for _ in range(3))
    mask = (torch.arange(8) < torch.tensor([1, 8, 3, 5, 8, 2])[:, None]).float()
    found = compute_policy_loss_vanilla(old, old + shift, advantages, mask, "token-mean", CONFIG)
    torch.testing.assert_close(list(found), listing_of_vanilla(old, old + shift, advantages, mask))


def test_the_actors_listing_is_vanilla_with_one_clip_range():
    generator = torch.Generator().manual_seed(0)
    old, shift, advantages = (torch.randn(6, 8, generator=generator) for _ in range(3))
    mask = (torch.arange(8) < torch.tensor([1, 8, 3, 5, 8, 2])[:, None]).float()
    config = SimpleNamespace(
        clip_ratio=0.2, clip_ratio_low=None, clip_ratio_high=None, clip_ratio_c=3.0
    )
    found = compute_policy_loss(
        old_log_prob=old,
        log_prob=old + shift,
        advantages=advantages,
        response_mask=mask,
        cliprange=0.2,
    )
    torch.testing.assert_close(
        found, compute_policy_loss_vanilla(old, old + shift, advantages, mask, "token-mean", config)
    )


def test_log_probs_and_entropy_from_logits_leave_masked_tokens_out():
    logits = torch.tensor([[[0.0, 0.0], [0.0, math.log(3)], [math.nan, 0.0]]], requires_grad=True)
    mask = torch.tensor([[1, 1, 0]])
    log_probs = compute_log_prob_from_logits(logits, torch.tensor([[0, 1, 0]]), mask)
    assert log_probs.tolist() == [pytest.approx([math.log(1 / 2), math.log(3 / 4), 0.0])]
    entropy = compute_entropy_loss(logits, mask)
    assert entropy.item() == pytest.approx((math.log(2) + math.log(4) - 3 / 4 * math.log(3)) / 2)
    (log_probs.sum() + entropy).backward()
    assert bool(torch.isfinite(logits.grad).all())
    assert logits.grad[0, 2].tolist() == [0.0, 0.0]


def test_logits_of_whole_sequences_are_refused():
    with pytest.raises(
        TensorError, match=r"places_of_logits has shape \[1, 5\] and responses has shape \[1, 3\]"
    ):
        compute_log_prob_from_logits(
            torch.zeros(1, 5, 2), torch.zeros(1, 3, dtype=torch.long), torch.ones(1, 3)
        )


def test_an_estimator_is_registered_by_the_documents_enum():
    assert (
        core_algos.ADV_ESTIMATOR_REGISTRY[core_algos.AdvantageEstimator.GAE.value]
        is compute_gae_advantage_return
    )


def listing_of_cpgd(old_log_prob, log_prob, advantages, mask):
    """siiRL's CPGD: the log-prob itself is clipped, against the old one; token-mean."""
    above, below = math.log(1.28) + old_log_prob, math.log(0.8) + old_log_prob
    clipped = torch.where(
        advantages > 0, torch.minimum(log_prob, above), torch.maximum(log_prob, below)
    )
    return masked_mean(-clipped * advantages, mask)


def test_cpgd_has_the_gradient_of_the_documents_listing_but_for_its_drift():
    generator = torch.Generator().manual_seed(0)
    old, shift, advantages = (torch.randn(6, 8, generator=generator) for _ in range(3))
    mask = (torch.arange(8) < torch.tensor([1, 8, 3, 5, 8, 2])[:, None]).float()
    one, other = (old + shift).requires_grad_(), (old + shift).requires_grad_()
    compute_policy_loss_cpgd(old, one, advantages, mask, "token-mean", CONFIG)[0].backward()
    listing_of_cpgd(old, other, advantages, mask).backward()
    drift = 0.01 * (shift.exp().clamp(max=3.0) - 1) * mask / mask.sum()
    torch.testing.assert_close(one.grad, other.grad + drift)


@pytest.mark.parametrize("name", sorted(core_algos.POLICY_LOSS_REGISTRY))
def test_a_loss_in_the_documents_form_is_four_scalars_and_has_a_gradient(name):
    generator = torch.Generator().manual_seed(0)
    old, shift, advantages = (torch.randn(6, 8, generator=generator) for _ in range(3))
    log_prob = (old + 0.1 * shift).requires_grad_()
    found = core_algos.POLICY_LOSS_REGISTRY[name](
        old, log_prob, advantages, torch.ones(6, 8), "token-mean", CONFIG
    )
    assert [value.shape for value in found] == [torch.Size([])] * 4
    found[0].backward()
    assert log_prob.grad.count_nonzero() > 0


def test_a_configured_bound_overrides_that_of_the_loss_and_clip_ratio_does_not():
    old, log_prob, advantages, mask = (
        torch.zeros(1, 1),
        torch.full((1, 1), 2.0),
        torch.ones(1, 1),
        torch.ones(1, 1),
    )
    own, set_ = SimpleNamespace(clip_ratio=0.2, clip_ratio_low=None, clip_ratio_high=None), CONFIG
    losses = [
        compute_policy_loss_cispo(old, log_prob, advantages, mask, config=config)[0].item()
        for config in (None, own, set_)
    ]
    # minus clipped ratio times log-prob
    assert losses == pytest.approx([-5.0 * 2.0, -5.0 * 2.0, -1.28 * 2.0])


def covariance_loss(name, **options):
    """The loss of two tokens with log-ratios 0.1 and -0.3 and advantages 1 and 2, under
    `config.policy_loss` of these options.
    """
    config = SimpleNamespace(
        clip_ratio=0.2,
        clip_ratio_low=None,
        clip_ratio_high=None,
        policy_loss=SimpleNamespace(**options),
    )
    loss, *_ = getattr(core_algos, name)(
        torch.zeros(1, 2),
        torch.tensor([[0.1, -0.3]]),
        torch.tensor([[1.0, 2.0]]),
        ONES_12,
        config=config,
    )
    return float(loss)


def test_kl_cov_reads_its_share_and_coefficient_from_policy_loss():
    plain = -(math.exp(0.1) + 2 * math.exp(-0.3)) / 2
    found = covariance_loss("compute_policy_loss_kl_cov", kl_cov_ratio=1.0, ppo_kl_coef=0.5)
    assert found == pytest.approx(plain + 0.5 * (0.1 + 0.3) / 2)
    # one token of the two by default: their covariances are equal, -0.1, so the first
    assert covariance_loss("compute_policy_loss_kl_cov", kl_cov_ratio=None) == pytest.approx(
        plain + 0.1 / 2
    )


def test_clip_cov_reads_its_share_and_bounds_from_policy_loss():
    # neither ratio is outside of the clip for these advantages
    clipped = -(math.exp(0.1) + 2 * math.exp(-0.3)) / 2
    # -0.1 is not above 1
    assert covariance_loss("compute_policy_loss_clip_cov") == pytest.approx(clipped)
    assert (
        covariance_loss("compute_policy_loss_clip_cov", clip_cov_lb=-1.0, clip_cov_ratio=1.0) == 0.0
    )
    assert covariance_loss(
        "compute_policy_loss_clip_cov", clip_cov_lb=-1.0, clip_cov_ub=-0.2
    ) == pytest.approx(clipped)


def test_policy_loss_may_be_a_class_with_defaults_or_slots_and_its_values_are_checked():
    class Defaults:
        kl_cov_ratio = 1.0
        ppo_kl_coef = 0.5

        def describe(self):
            return "none of the options"

    class Slots:
        __slots__ = ("kl_cov_ratio", "ppo_kl_coef")

        def __init__(self):
            self.kl_cov_ratio, self.ppo_kl_coef = 1.0, 0.5

    arguments = torch.zeros(1, 2), torch.tensor([[0.1, -0.3]]), torch.tensor([[1.0, 2.0]]), ONES_12
    for options in (Defaults(), Slots()):
        loss, *_ = core_algos.compute_policy_loss_kl_cov(
            *arguments, config=SimpleNamespace(**vars(CONFIG), policy_loss=options)
        )
        assert float(loss) == pytest.approx(
            -(math.exp(0.1) + 2 * math.exp(-0.3)) / 2 + 0.5 * (0.1 + 0.3) / 2
        )
    with pytest.raises(ConfigError, match=r"kl_cov_ratio='0.1' .* must be a number"):
        covariance_loss("compute_policy_loss_kl_cov", kl_cov_ratio="0.1")


def test_an_unknown_key_of_policy_loss_is_refused_and_another_losss_key_is_not():
    with pytest.raises(UnknownNameError, match=r"kl_cov_share.*kl_cov_ratio"):
        covariance_loss("compute_policy_loss_kl_cov", kl_cov_share=0.5)
    mapping = SimpleNamespace(
        **vars(CONFIG),
        policy_loss={"_target_": "verl.PolicyLossConfig", "loss_mode": "kl_cov"}
        | {"clip_cov_ratio": 0.1, "ppo_kl_coef": 0.0},
    )
    arguments = torch.zeros(1, 2), torch.tensor([[0.1, -0.3]]), torch.tensor([[1.0, 2.0]]), ONES_12
    loss, *_ = core_algos.compute_policy_loss_kl_cov(*arguments, config=mapping)
    assert float(loss) == pytest.approx(-(math.exp(0.1) + 2 * math.exp(-0.3)) / 2)


def test_importance_weights_multiply_the_token_losses():
    one, mask = torch.ones(1, 2), torch.ones(1, 2)
    loss, *_ = compute_policy_loss_vanilla(
        one, one, one, mask, config=CONFIG, rollout_is_weights=torch.tensor([[1.0, 0.5]])
    )
    assert loss.item() == -0.75


def test_gspo_on_policy_is_minus_the_mean_advantage_of_rows():
    log_probs, mask = -torch.ones(2, 3), torch.tensor([[1, 1, 1], [1, 0, 0]])
    loss, clipfrac, kl, lower = compute_policy_loss_gspo(
        log_probs, log_probs, torch.tensor([[1.0] * 3, [4.0] * 3]), mask, config=CONFIG
    )
    assert (loss.item(), clipfrac.item(), kl.item(), lower.item()) == (-2.5, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("loss", [compute_policy_loss_vanilla, compute_policy_loss_gspo])
def test_a_bound_of_0_is_a_bound_and_not_the_default(loss):
    old, half = torch.zeros(1, 1), torch.full((1, 1), math.log(0.5))
    config = SimpleNamespace(
        clip_ratio=0.2, clip_ratio_low=0.0, clip_ratio_high=0.0, clip_ratio_c=3.0
    )
    advantage, mask = torch.ones(1, 1), torch.ones(1, 1)
    assert loss(old, half, -advantage, mask, config=config)[0].item() == 1.0  # clipped at 1 - 0
    assert loss(old, -half, advantage, mask, config=config)[0].item() == -1.0  # clipped at 1 + 0


@pytest.mark.parametrize("loss", [compute_policy_loss_vanilla, compute_policy_loss_gspo])
def test_a_loss_without_its_config_says_which_keys_it_reads(loss):
    one = torch.ones(1, 1)
    with pytest.raises(ConfigError, match="reads clip_ratio"):
        loss(one, one, one, one)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 3.0),
        ("seq-mean-token-sum", 4.5),
        ("seq-mean-token-mean", 3.75),
        ("seq-mean-token-sum-norm", 2.25),
    ],
)
def test_agg_loss_takes_its_rows_for_the_whole_batch(mode, expected):
    assert (
        agg_loss(
            torch.tensor([[1.0, 2.0], [6.0, 99.0]]), torch.tensor([[1, 1], [1, 0]]), mode
        ).item()
        == expected
    )


def test_agg_loss_of_nothing_is_zero():
    assert agg_loss(torch.full((2, 2), torch.nan), torch.zeros(2, 2), "token-mean").item() == 0.0


def test_grpo_takes_an_index_of_numpy_integers():
    advantages, _ = compute_grpo_outcome_advantage(
        torch.tensor([[0.0], [2.0]]), torch.ones(2, 1), np.array([4, 4]), 1e-6, False
    )
    assert advantages.flatten().tolist() == [-1.0, 1.0]


def test_gae_is_called_by_position():
    _, returns = compute_gae_advantage_return(
        torch.tensor([[0.0, 1.0]]), torch.zeros(1, 2), torch.ones(1, 2), 0.5, 1.0
    )
    assert returns.tolist() == [[0.5, 1.0]]


def test_value_loss_returns_the_share_of_clipped_tokens():
    loss, clipped = compute_value_loss(
        vpreds=torch.tensor([[2.0, 0.0]]),
        returns=torch.tensor([[3.0, 0.0]]),
        values=torch.zeros(1, 2),
        response_mask=torch.ones(1, 2),
        cliprange_value=0.5,
    )
    assert (loss.item(), clipped.item()) == (0.5 * 2.5**2 / 2, 0.5)


def kl_batch():
    return TensorDict(
        {
            "token_level_scores": torch.tensor([[0.0, 1.0], [0.0, 0.0]]),
            "old_log_probs": torch.tensor([[-1.0, -1.0], [-1.0, torch.nan]]),
            "ref_log_prob": torch.tensor([[-1.5, -2.0], [-1.0, 0.0]]),
            "response_mask": torch.tensor([[1, 1], [1, 0]]),
        },
        batch_size=[2],
    )


def test_the_kl_is_subtracted_from_a_copy_of_the_scores():
    batch = kl_batch()
    rewarded, metrics = apply_kl_penalty(batch, FixedKLController(0.1))
    torch.testing.assert_close(
        rewarded["token_level_rewards"], torch.tensor([[-0.05, 0.9], [0.0, 0.0]])
    )
    assert metrics == {"actor/reward_kl_penalty": pytest.approx(0.5), "actor/kl_coef": 0.1}
    assert "token_level_rewards" not in batch


def test_the_controller_sees_the_kl_and_the_number_of_rows():
    controller = AdaptiveKLController(init_kl_coef=1.0, target_kl=0.5 / 1.1, horizon=10)
    apply_kl_penalty(kl_batch(), controller, kl_penalty="k1")
    assert controller.value == pytest.approx(1.0 + 0.1 * 2 / 10)


def test_kl_penalty_by_name():
    assert kl_penalty(torch.tensor([[-1.0]]), torch.tensor([[-3.0]]), "mse").item() == 2.0
