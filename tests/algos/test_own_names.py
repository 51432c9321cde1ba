"""KL estimators, filters, aggregations and schedules of the user: their arguments, and refused
results.
"""

import os

import pytest
import torch

from siirl.algos.advantages import register_adv_est
from siirl.algos.aggregation import AGGREGATIONS, Aggregation, register_aggregation
from siirl.algos.filters import keep_by_name, register_filter
from siirl.algos.kl import kl_estimate, register_kl_estimator
from siirl.errors import ConfigError, TensorError, UnknownNameError

KL_INPUTS = {
    "log_probs_BT": torch.tensor([[-1.0, -2.0]]),
    "ref_log_probs_BT": torch.tensor([[-1.5, -9.0]]),
    "mask_BT": torch.tensor([[1, 0]]),
}


def test_a_kl_estimator_gets_the_arguments_that_it_names_and_is_0_where_the_mask_is() -> None:
    register_kl_estimator("mine")(
        lambda log_probs_BT, ref_log_probs_BT: log_probs_BT - ref_log_probs_BT + 1.0
    )
    assert kl_estimate(**KL_INPUTS, name="mine").tolist() == [[1.5, 0.0]]


def test_a_users_kl_estimator_may_be_straight_through() -> None:
    register_kl_estimator("mine")(lambda log_ratio_BT: log_ratio_BT + 7.0)
    log_probs = KL_INPUTS["log_probs_BT"].clone().requires_grad_()
    kl_BT = kl_estimate(**{**KL_INPUTS, "log_probs_BT": log_probs}, name="mine+")
    kl_BT.sum().backward()
    assert kl_BT.tolist() == [[7.5, 0.0]]
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [[0.5, 0.0]]  # that of k2: the log-ratio


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (torch.zeros(2, 2), r"has shape \[2, 2\]"),
        (torch.full((1, 2), torch.nan), "KL estimate 'mine' is nan in row 0"),
    ],
)
def test_an_invalid_kl_estimate_is_refused_by_its_name(result: torch.Tensor, told: str) -> None:
    register_kl_estimator("mine")(lambda log_ratio_BT: result)
    with pytest.raises(TensorError, match=told):
        kl_estimate(**KL_INPUTS, name="mine")


def test_a_filter_gets_the_arguments_that_it_names() -> None:
    register_filter("mine")(lambda group_B, low: group_B > low)
    assert keep_by_name("mine", {"group_B": torch.tensor([0, 1]), "low": 0.5}).tolist() == [
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("keep", "told"), [([True], r"has shape \[1\]"), ([0.5, 1.0], "filter 'mine'")]
)
def test_what_a_filter_keeps_must_be_a_bool_for_each_trajectory(
    keep: list[float], told: str
) -> None:
    register_filter("mine")(lambda group_B: keep)
    with pytest.raises(TensorError, match=told):
        keep_by_name("mine", {"group_B": torch.tensor([0, 1])})


def test_a_function_that_takes_nothing_that_a_filter_is_given_is_refused() -> None:
    with pytest.raises(ConfigError, match="filter getcwd takes none of the provided arguments"):
        register_filter("mine")(os.getcwd)


def test_an_unknown_filter_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"'zero_varience'. Did you mean 'zero_variance'\?"):
        keep_by_name("zero_varience", {})


def test_a_name_is_taken_once() -> None:
    register_aggregation("mine")(AGGREGATIONS["token-mean"])
    register_aggregation("mine")(AGGREGATIONS["token-mean"])  # its module was imported twice
    with pytest.raises(ConfigError, match="Aggregation 'mine' is already registered"):
        register_aggregation("mine")(
            Aggregation(rows_B=lambda loss_BT, kept_BT: loss_BT.sum(-1), per_token=True)
        )
    with pytest.raises(ConfigError, match="Filter 'zero_variance' is already zero_variance_keep"):
        register_filter("zero_variance")(lambda group_B: group_B > 0)


def test_what_is_no_function_is_refused_with_its_kind():
    with pytest.raises(
        ConfigError,
        match=r"'text' is of type str and .* the advantage estimator must be a function",
    ):
        register_adv_est("mine")("text")
