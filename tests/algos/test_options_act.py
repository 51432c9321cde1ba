"""Every option of every estimator, loss and selection changes the result. The tests of the
configuration check that keys which nothing reads are refused.
"""

import inspect

import pytest
import torch
from estimator_cases import SHIPPED, columns
from loss_batches import columns_of, loss_batch, loss_of
from paper_losses import LOOPS
from ragged import ragged

from siirl.algos.advantages import ADVANTAGES, estimate_advantages
from siirl.algos.importance import importance_weights
from siirl.algos.policy_losses import POLICY_LOSSES, select_tokens
from siirl.algos.policy_losses.loss_registry import loss_options
from siirl.params.algorithm_args import AlgorithmArguments

OTHER_VALUES = {
    "gamma": 0.5,
    "lam": 0.3,
    "norm_adv_by_std_in_grpo": False,
    "min_group_spread": 100.0,
    "pass_k": 2,
    "weight_factor_in_cpgd": "naive",
    "adv_whitening": "mean",
}
"""Keys of algorithm.* that estimators read, each with another value than its default."""

READ = [
    (name, key)
    for name in sorted(SHIPPED)
    for key in OTHER_VALUES
    if key in inspect.signature(ADVANTAGES[name]).parameters
]


def advantages(name, **options):
    given = columns(ragged(0, rows=20))
    defaults = {key: getattr(AlgorithmArguments(), key) for key in OTHER_VALUES}
    return estimate_advantages(name=name, available={**given, **defaults, **options})[0]


@pytest.mark.parametrize(("name", "key"), READ)
def test_a_key_of_an_estimator_changes_its_advantages(name, key):
    assert not torch.allclose(advantages(name, **{key: OTHER_VALUES[key]}), advantages(name))


def test_every_key_is_read_by_some_estimator():
    assert {key for _, key in READ} == set(OTHER_VALUES)


BOUNDS = ("clip_ratio_low", "clip_ratio_high", "clip_ratio_c")
OTHER_OPTIONS = {
    "clip_ratio_low": 0.05,
    "clip_ratio_high": 0.9,
    "clip_ratio_c": 1.5,
    "behaviour_weight_cap": 1.2,
    "policy_drift_coef": 0.5,
    "policy_drift_cap": 1.1,
    "tau_pos": 2.0,
    "tau_neg": 2.0,
    "ppo_kl_coef": 0.1,
}
OF_SELECTIONS = {"clip_cov_ratio": 0.6, "clip_cov_lb": 0.2, "clip_cov_ub": 0.9, "kl_cov_ratio": 0.6}
WIDE = {
    "clip_cov": {"clip_cov_ratio": 0.3, "clip_cov_lb": -0.5, "clip_cov_ub": 5.0},
    "kl_cov": {"kl_cov_ratio": 0.1},
}


def options_of(name):
    """The options of a loss and of its selection, with the bounds that it reads itself."""
    return [
        *loss_options(name),
        *(bound for bound in BOUNDS if bound in inspect.signature(POLICY_LOSSES[name]).parameters),
    ]


LOSS_OPTIONS = [(name, option) for name in sorted(LOOPS) for option in options_of(name)]


def selected(name, **options):
    batch = loss_batch(1, rows=40)
    own = {
        "place_B": torch.arange(40),
        "generator": torch.Generator().manual_seed(0),
        **WIDE[name],
        **options,
    }
    return select_tokens(name=name, available={**columns_of(batch), **own})


@pytest.mark.parametrize(("name", "option"), LOSS_OPTIONS)
def test_an_option_of_a_loss_changes_it_or_what_it_selects(name, option):
    if option in OF_SELECTIONS:
        assert not torch.equal(selected(name, **{option: OF_SELECTIONS[option]}), selected(name))
        return
    given = columns_of(loss_batch(1, rows=40))
    losses = [
        loss_of(name, given, options).loss_BT for options in ({}, {option: OTHER_OPTIONS[option]})
    ]
    assert not torch.allclose(losses[0], losses[1])


@pytest.mark.parametrize("bound", ["clip_ratio_low", "clip_ratio_high"])
def test_a_bound_of_ppo_changes_what_clip_cov_may_select(bound):
    assert not torch.equal(
        selected("clip_cov", **{bound: OTHER_OPTIONS[bound]}), selected("clip_cov")
    )


@pytest.mark.parametrize(
    "options",
    [
        {"level": "sequence"},
        {"level": "geometric"},
        {"bound": "mask"},
        {"high": 1.1},
        {"bound": "mask", "low": 0.5},
    ],
)
def test_each_setting_of_importance_weights_changes_them(options):
    batch = loss_batch(1)
    plain = {"level": "token", "bound": "truncate", "high": 2.0, "low": 0.0}
    before = {**plain, **({"bound": "mask"} if "low" in options else {})}
    weights = [
        importance_weights(
            old_log_probs_BT=batch.old_log_probs_BT,
            rollout_log_probs_BT=batch.rollout_log_probs_BT,
            mask_BT=batch.mask_BT,
            **settings,
        )
        for settings in (before, {**before, **options})
    ]
    assert not torch.allclose(weights[0], weights[1])
