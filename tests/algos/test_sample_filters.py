"""Filters of samples, and their reasons."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ragged import QUICK, SEEDS

from siirl.algos.filters import srpo_keep, success_band_keep, truncation_keep, zero_variance_keep
from siirl.errors import ConfigError, TensorError

# Four groups of two: all succeed, mixed, all fail, and one whose second episode could not be
# simulated.
SUCCESS = torch.tensor([1, 1, 1, 0, 0, 0, 1, 0]).bool()
GROUP = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
TASK = ["a", "a", "a", "a", "b", "b", "c", "c"]
FAILED = torch.tensor([0, 0, 0, 0, 0, 0, 0, 1]).bool()


def keep(**options):
    return srpo_keep(
        **{"success_B": SUCCESS, "group_B": GROUP, "task_B": TASK, "failed_B": FAILED, **options}
    )


def test_zero_variance_groups_are_dropped_whatever_the_rounding():
    values, groups = (
        torch.tensor([0.1 + 0.2, 0.3, 0.0, 1.0, 5.0], dtype=torch.float64),
        torch.tensor([0, 0, 1, 1, 2]),
    )
    assert zero_variance_keep(values_B=values, group_B=groups).tolist() == [
        False,
        False,
        True,
        True,
        False,
    ]


@QUICK
@given(seed=SEEDS, levels=st.integers(1, 3))
def test_zero_variance_keeps_the_groups_in_which_two_values_differ(seed, levels):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, levels, (12,), generator=generator) * 0.1
    groups = torch.randint(0, 5, (12,), generator=generator)
    pairs = list(zip(groups.tolist(), values.tolist(), strict=True))
    expected = [
        any(other == group and apart != value for other, apart in pairs) for group, value in pairs
    ]
    assert zero_variance_keep(values_B=values, group_B=groups).tolist() == expected


def test_zero_variance_keeps_no_group_of_sums_that_differ_in_rounding_only():
    # a thousand times 0.1 in float32, one after the other and pairwise
    sums = torch.tensor([100.0, 100.00000762939453])
    assert sums[0] != sums[1]
    assert zero_variance_keep(values_B=sums, group_B=torch.zeros(2).long()).tolist() == [
        False,
        False,
    ]


def test_zero_variance_drops_differences_below_the_configured_spread():
    values, groups = torch.tensor([0.0, 0.04, 0.0, 0.06]), torch.tensor([0, 0, 1, 1])
    assert zero_variance_keep(values_B=values, group_B=groups, min_spread=0.05).tolist() == [
        False,
        False,
        True,
        True,
    ]


def test_a_nan_is_refused_with_its_row():
    with pytest.raises(TensorError, match="values is nan in row 1"):
        zero_variance_keep(values_B=torch.tensor([0.0, torch.nan]), group_B=torch.zeros(2).long())


@QUICK
@given(
    seed=SEEDS,
    bounds=st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=2).map(sorted),
)
def test_success_band_is_that_of_a_loop(seed, bounds):
    generator = torch.Generator().manual_seed(seed)
    success, groups = (
        torch.randint(0, 2, (12,), generator=generator),
        torch.randint(0, 4, (12,), generator=generator),
    )
    expected = []
    for group in groups.tolist():
        members = success[groups == group].tolist()
        expected.append(bounds[0] <= sum(members) / len(members) <= bounds[1])
    assert (
        success_band_keep(success_B=success, group_B=groups, low=bounds[0], high=bounds[1]).tolist()
        == expected
    )


def test_success_band_keeps_groups_by_their_share():
    success, groups = torch.tensor([1, 0, 0, 0, 1, 1, 1, 0]), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    kept = success_band_keep(success_B=success, group_B=groups, low=0.5, high=0.9)
    assert kept.tolist() == [False] * 4 + [True] * 4


def test_success_band_keeps_spared_rows():
    spared = torch.tensor([True, False])
    kept = success_band_keep(
        success_B=torch.zeros(2), group_B=torch.zeros(2).long(), low=0.5, high=1.0, spared_B=spared
    )
    assert kept.tolist() == [True, False]


def test_a_band_with_its_ends_swapped_is_refused():
    with pytest.raises(ConfigError, match=r"success_low=0.9, success_high=0.1"):
        success_band_keep(
            success_B=torch.zeros(2), group_B=torch.zeros(2).long(), low=0.9, high=0.1
        )


def test_truncated_samples_are_dropped_one_by_one():
    assert truncation_keep(truncated_B=torch.tensor([True, False])).tolist() == [False, True]


def test_srpo_keeps_groups_that_the_reward_can_rank():
    outcome = keep()
    assert outcome.keep_B.tolist() == [False, False, True, True, False, False, False, False]
    assert outcome.dropped == {
        "failed_simulation": 1,
        "alone_in_group": 1,
        "all_success": 2,
        "all_failure_without_reference": 2,
        "outside_success_band": 0,
    }


def test_srpo_keeps_failures_where_an_earlier_step_left_a_reference():
    assert keep(reference_tasks={"b"}).keep_B.tolist()[4:6] == [True, True]


def test_srpo_keeps_failures_where_another_group_of_the_task_succeeded():
    assert keep(task_B=["b"] * 8).keep_B.tolist()[4:6] == [True, True]


def test_a_reference_may_come_from_a_group_that_is_itself_dropped():
    outcome = keep(success_B=torch.tensor([1, 1, 0, 0, 0, 0, 0, 0]).bool(), task_B=["a"] * 8)
    assert outcome.keep_B.tolist()[:4] == [False, False, True, True]


def test_a_success_that_could_not_be_simulated_is_not_a_reference():
    outcome = keep(
        success_B=torch.tensor([1, 0, 0, 0, 0, 0, 0, 0]).bool(),
        failed_B=torch.tensor([1] + [0] * 7).bool(),
        task_B=["a"] * 8,
    )
    assert not outcome.keep_B.any()


def test_a_reward_that_is_0_for_every_failure_needs_no_reference():
    outcome = keep(reference_tasks={"b"}, reward_ranks_failures=False)
    assert outcome.keep_B.tolist()[4:6] == [False, False]


def test_the_band_spares_all_failure_groups_that_the_reward_ranks():
    outcome = keep(reference_tasks={"b"}, success_low=0.6)
    assert outcome.keep_B.tolist() == [False] * 4 + [True, True, False, False]
    assert outcome.dropped["outside_success_band"] == 2


def test_truncated_samples_are_dropped_before_groups_are_judged():
    outcome = keep(truncated_B=torch.tensor([0, 0, 0, 1, 0, 0, 0, 0]).bool())
    assert not outcome.keep_B.any()
    assert (outcome.dropped["truncated"], outcome.dropped["alone_in_group"]) == (1, 2)


def test_a_batch_without_samples_is_accepted():
    empty = torch.zeros(0).bool()
    assert (
        srpo_keep(success_B=empty, group_B=empty.long(), task_B=[], failed_B=empty).keep_B.tolist()
        == []
    )


def test_every_sample_needs_a_task():
    with pytest.raises(TensorError, match="task has 1 entries and success 8"):
        keep(task_B=["a"])


@QUICK
@given(seed=SEEDS)
def test_every_dropped_sample_has_one_reason_and_mixed_groups_stay(seed):
    generator = torch.Generator().manual_seed(seed)
    success, failed = (torch.rand(24, generator=generator) < share for share in (0.4, 0.1))
    groups = torch.arange(24) // 4
    outcome = srpo_keep(
        success_B=success, group_B=groups, task_B=(groups // 2).tolist(), failed_B=failed
    )
    assert sum(outcome.dropped.values()) == int((~outcome.keep_B).sum())
    for group in range(6):
        rows = (groups == group) & ~failed
        if len(set(success[rows].tolist())) == 2:
            assert bool(outcome.keep_B[rows].all())
