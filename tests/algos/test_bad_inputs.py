"""Every public function of siirl.algos gets NaN, infinity and wrong shapes, one tensor at a time.
Each is refused with the name of the tensor and the row. A function that is added without an entry
in `GOOD` fails the first test.
"""

# B row, T token, N token, V entry of the vocabulary, D hidden size

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

import siirl.algos
from siirl.algos import (
    aggregation,
    filters,
    groups,
    importance,
    kl,
    linear_log_probs,
    log_probs,
    masked,
    overlong,
    ranks,
    ratios,
    trajectories,
)
from siirl.algos.advantages import (
    ADVANTAGES,
    gae,
    group_relative,
    pass_at_k,
    reinforce,
    samples,
    whitening,
)
from siirl.algos.policy_losses import POLICY_LOSSES, covariance
from siirl.algos.value_loss import clipped_value_loss
from siirl.errors import ConfigError, TensorError

B, T, V, D = 3, 4, 5, 2
NUMBERS_B = torch.tensor([0.5, 2.0, -1.0])
NUMBERS_BT = torch.arange(12.0).view(B, T) / 10
MASK_BT = torch.ones(B, T)
GROUP_B = torch.zeros(B, dtype=torch.long)
FLAGS_B = torch.tensor([1.0, 0.0, 1.0])

GROUP_RELATIVE = {"rewards_B": NUMBERS_B, "group_B": GROUP_B}
OUTCOME = {"token_level_rewards": NUMBERS_BT, "response_mask": MASK_BT, "index": GROUP_B}
TOKEN_LEVEL = {"rewards_BT": NUMBERS_BT, "mask_BT": MASK_BT, "gamma": 0.9}
LOSS = {
    "log_probs_BT": NUMBERS_BT,
    "old_log_probs_BT": NUMBERS_BT,
    "rollout_log_probs_BT": NUMBERS_BT,
    "advantages_BT": NUMBERS_BT,
    "mask_BT": MASK_BT,
    "selected_BT": MASK_BT == 1,
}
SELECTION = {
    **{
        name: LOSS[name]
        for name in ("log_probs_BT", "old_log_probs_BT", "advantages_BT", "mask_BT")
    },
    "place_B": torch.arange(B),
}
VALUES = {"values": NUMBERS_BT, "mask": MASK_BT}


def arguments(function: Callable[..., Any], available: dict[str, Any]) -> dict[str, Any]:
    """Those of `available` that the function takes."""
    return {
        name: value
        for name, value in available.items()
        if name in inspect.signature(function).parameters
    }


GOOD: dict[Callable[..., Any], dict[str, Any]] = {
    aggregation.aggregation_weight: {"mask_BT": MASK_BT, "mode": "token-mean"},
    aggregation.aggregate_loss: {
        "loss_BT": NUMBERS_BT,
        "mask_BT": MASK_BT,
        "mode": "token-mean",
        "denominator": torch.tensor(12.0),
    },
    group_relative.grpo_advantage: GROUP_RELATIVE,
    group_relative.rloo_advantage: GROUP_RELATIVE,
    group_relative.opo_advantage: {**GROUP_RELATIVE, "length_B": torch.tensor([3.0, 1.0, 2.0])},
    group_relative.gpg_advantage: GROUP_RELATIVE,
    group_relative.cpgd_advantage: GROUP_RELATIVE,
    pass_at_k.pass_at_k_advantage: GROUP_RELATIVE,
    gae.gae_advantage: {**TOKEN_LEVEL, "values_BT": NUMBERS_BT, "lam": 0.9},
    reinforce.discounted_returns: TOKEN_LEVEL,
    samples.gather_samples: {
        "rewards_BT": NUMBERS_BT,
        "mask_BT": MASK_BT,
        "index": GROUP_B,
        "ranks": ranks.ALONE,
    },
    whitening.whiten_advantages: {"advantages_BT": NUMBERS_BT, "mask_BT": MASK_BT},
    gae.decision_starts: {"value_mask": MASK_BT, "response_mask": MASK_BT},
    gae.gae_of_decisions: {
        **TOKEN_LEVEL,
        "values_BT": NUMBERS_BT,
        "value_mask_BT": MASK_BT,
        "lam": 0.9,
    },
    gae.compute_gae_advantage_return: {
        **{name: OUTCOME[name] for name in ("token_level_rewards", "response_mask")},
        **{"values": NUMBERS_BT, "gamma": 0.9, "lam": 0.9, "value_mask": MASK_BT},
    },
    **{
        function: arguments(function, {**OUTCOME, "reward_baselines": NUMBERS_B})
        for function in ADVANTAGES.values()
        if function.__name__.endswith("_outcome_advantage")
    },
    groups.group_ids: {"index": GROUP_B},
    groups.group_statistics: {"values_B": NUMBERS_B, "group_B": GROUP_B},
    groups.group_sum: {"values_B": NUMBERS_B, "group_B": GROUP_B},
    groups.distinguishable: {"values_B": NUMBERS_B, "group_B": GROUP_B},
    filters.zero_variance_keep: {"values_B": NUMBERS_B, "group_B": GROUP_B},
    filters.success_band_keep: {
        "success_B": FLAGS_B,
        "group_B": GROUP_B,
        "spared_B": FLAGS_B,
        "low": 0.0,
        "high": 1.0,
    },
    filters.truncation_keep: {"truncated_B": FLAGS_B},
    filters.srpo_keep: {
        **{
            "success_B": FLAGS_B,
            "group_B": GROUP_B,
            "failed_B": 0 * FLAGS_B,
            "truncated_B": 0 * FLAGS_B,
            "task_B": ["a"] * B,
        }
    },
    importance.importance_weights: {
        **arguments(importance.importance_weights, LOSS),
        "level": "token",
        "bound": "truncate",
        "high": 2.0,
    },
    kl.kl_estimate: {
        "log_probs_BT": NUMBERS_BT,
        "ref_log_probs_BT": NUMBERS_BT,
        "mask_BT": MASK_BT,
        "name": "k3",
    },
    masked.masked_sum: VALUES,
    masked.masked_mean: VALUES,
    masked.masked_var: VALUES,
    masked.masked_moments: VALUES,
    masked.masked_whiten: VALUES,
    log_probs.token_scores: {"logits": torch.rand(B, V), "tokens": torch.tensor([0, 1, 4])},
    linear_log_probs.linear_token_scores: {
        "hidden": torch.rand(B, D),
        "weight": torch.rand(V, D),
        "tokens": torch.tensor([0, 1, 4]),
    },
    overlong.overlong_penalty: {
        "length_B": torch.tensor([3.0, 9.0, 10.0]),
        "max_length": 10,
        "buffer": 2,
    },
    ratios.log_ratio: arguments(ratios.log_ratio, LOSS),
    ratios.checked_columns: arguments(ratios.checked_columns, LOSS),
    ratios.checked_ratio: arguments(ratios.checked_ratio, LOSS),
    covariance.token_covariance: arguments(covariance.token_covariance, LOSS),
    covariance.select_clip_cov: {**SELECTION, "generator": torch.Generator()},
    covariance.select_kl_cov: arguments(covariance.select_kl_cov, SELECTION),
    **{
        function: arguments(function, LOSS)
        for function in POLICY_LOSSES.values()
        if function.__module__.startswith("siirl.algos.")
    },
    trajectories.reward_at_finish: {"rewards_B": NUMBERS_B, "mask_BT": MASK_BT},
    clipped_value_loss: {
        **arguments(clipped_value_loss, LOSS),
        "values_BT": NUMBERS_BT,
        "old_values_BT": NUMBERS_BT,
        "returns_BT": NUMBERS_BT,
    },
}

# Functions without numeric parameters to refuse.
OTHERS = {
    **dict.fromkeys(
        (
            "require_same_shape",
            "require_axes",
            "require_finite",
            "require_counts",
            "as_bool_mask",
            "check_tokens",
            "check_scores",
        ),
        "is the check itself",
    ),
    "require_rewards_at_kept_tokens": "is a check, of rows that fit",
    "clipped_loss": "gets what checked_ratio has let through",
    "register_policy_loss": "takes functions",
    "wide_product": "a product of matrices; who makes scores of it refuses them",
    "with_bootstrap": "checks its own values; the estimator that takes its rewards checks those",
    **dict.fromkeys(
        ("check_own", "require_choices", "require_gradient", "require_scores"),
        "is the check itself",
    ),
    **dict.fromkeys(
        ("draw", "in_fixed_point", "most_likely", "nucleus"),
        "acts, on what a policy put out; its log-probs are checked where they are trained on",
    ),
    **dict.fromkeys(
        ("log_slope_of_tanh", "normal_entropy", "normal_log_prob", "standard_normal"),
        "is a term of a distribution, whose log-probs the loss checks",
    ),
}

# How errors call an argument, where not by its name without the axes.
CALLED = {
    "rewards": "token_level_rewards",
    "ref_log_probs": "ref_log_prob",
    "mask": "response_mask",
    "value_mask": "response_mask",
}
# Tensors that may be cut without an error: a smaller vocabulary, shorter rows.
PARTS = {
    ("linear_token_scores", "weight", "rows"),
    ("reward_at_finish", "mask_BT", "columns"),
    ("reward_at_finish", "mask_BT", "one column"),
}


def public_functions() -> dict[str, Callable[..., Any]]:
    """The functions of siirl.algos that take a tensor, by name."""
    names = [module.name for module in pkgutil.walk_packages(siirl.algos.__path__, "siirl.algos.")]
    modules = [importlib.import_module(name) for name in names]
    found = [
        (name, thing)
        for module in modules
        for name, thing in vars(module).items()
        if getattr(thing, "__module__", "") == module.__name__
    ]
    return {
        name: thing
        for name, thing in found
        if inspect.isfunction(thing)
        and not name.startswith("_")
        and any(
            "Tensor" in str(parameter.annotation)
            for parameter in inspect.signature(thing).parameters.values()
        )
    }


def tensors() -> list[tuple[Callable[..., Any], str]]:
    """Each function with each of its tensors."""
    return [
        (function, name)
        for function, given in GOOD.items()
        for name, value in given.items()
        if isinstance(value, torch.Tensor)
    ]


def called(function: Callable[..., Any], name: str) -> str:
    """A pattern for what errors call a tensor."""
    plain = name.removesuffix("_BT").removesuffix("_B")
    return f"({'|'.join({plain, CALLED.get(plain, plain)})})"


def told(pair: object) -> str:
    return getattr(pair, "__name__", str(pair))


def test_every_public_function_has_an_entry():
    assert {name for name in public_functions() if name not in OTHERS} == {
        function.__name__ for function in GOOD
    }


@pytest.mark.parametrize("function", GOOD, ids=told)
def test_valid_inputs_are_accepted(function):
    function(**GOOD[function])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    ("function", "name"),
    [pair for pair in tensors() if GOOD[pair[0]][pair[1]].is_floating_point()],
    ids=told,
)
def test_a_number_that_is_not_finite_is_refused_with_its_tensor_and_row(function, name, bad):
    tensor = GOOD[function][name].clone()
    if tensor.ndim == 0:
        tensor.fill_(bad)
    else:
        tensor[1] = bad
    if bad == -torch.inf and name == "logits":
        return  # forbids an entry
    row = "" if tensor.ndim == 0 else r".*(row 1|\[1)"
    with pytest.raises(TensorError, match=rf"(^| ){called(function, name)} is {bad}{row}"):
        function(**{**GOOD[function], name: tensor})


CUTS = {
    "rows": lambda x: x[:-1],
    "one row": lambda x: x[:1],  # which would be broadcast
    "columns": lambda x: x[..., :-1] if x.ndim > 1 else None,
    "one column": lambda x: x[..., :1] if x.ndim > 1 else None,
    "an axis more": lambda x: x[None],
    "a last axis more": lambda x: x[..., None],
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("function", "name"), tensors(), ids=told)
def test_a_tensor_that_does_not_fit_is_refused_and_never_broadcast(function, name, cut):
    given = GOOD[function]
    others = [
        value
        for key, value in given.items()
        if key != name and isinstance(value, torch.Tensor) and value.ndim
    ]
    tensor = CUTS[cut](given[name]) if given[name].ndim else None
    if tensor is None or (not others and "axis" not in cut) or (told(function), name, cut) in PARTS:
        return  # nothing that it could fail to fit
    with pytest.raises((TensorError, ConfigError), match=r"shape|entries|outside of \[0, \d\)"):
        function(**{**given, name: tensor})
