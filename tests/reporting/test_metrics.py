"""Metrics: declared names and others, and reductions over ranks that can be checked by hand."""

import math
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siirl.dag_worker.metric_worker import MetricWorker, Record
from siirl.errors import ConfigError, UnknownNameError
from siirl.reporting import metrics
from siirl.reporting.metric_reduction import complaints, reduce_metrics
from siirl.reporting.metrics import (
    METRICS,
    Reduction,
    Unusable,
    Weighted,
    declaration,
    register_metric,
)

NUMBERS = st.floats(-1e6, 1e6)


@pytest.fixture
def own_metrics(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A table that a test may add to."""
    monkeypatch.setattr(metrics, "METRICS", dict(METRICS))
    yield


def test_a_mean_is_weighted_by_what_each_rank_has() -> None:
    # 3 trajectories of mean 1 and 1 of mean 5: (3 x 1 + 1 x 5) / 4
    ranks: list[Record] = [
        {"reward/mean_score": Weighted(1.0, 3)},
        {"reward/mean_score": Weighted(5.0, 1)},
    ]
    assert reduce_metrics(ranks) == {"reward/mean_score": 2.0}


def test_each_reduction_of_two_ranks() -> None:
    reduced = reduce_metrics(
        [
            {
                "env/steps": 10,
                "env/busy_share": 0.5,
                "time/generate_s": 2.0,
                "actor/lr": 0.1,
                "reward/score": [0.0, 1.0],
            },
            {
                "env/steps": 30,
                "env/busy_share": 1.0,
                "time/generate_s": 3.0,
                "actor/lr": 0.1,
                "reward/score": [0.5],
            },
        ]
    )
    assert reduced == {
        "env/steps": 40,
        "env/busy_share": 0.75,
        "time/generate_s": 3.0,
        "actor/lr": 0.1,
        "reward/score": [0.0, 1.0, 0.5],
    }


def test_rounds_of_a_step_follow_each_other_on_a_rank_and_ranks_work_side_by_side() -> None:
    one = [
        {"env/steps_per_s": 10.0, "time/generate_s": 2.0, "env/steps": 20, "actor/updates": 1.0},
        {"env/steps_per_s": 20.0, "time/generate_s": 1.0, "env/steps": 20, "actor/updates": 2.0},
    ]
    other = [{"env/steps_per_s": 5.0, "time/generate_s": 2.5, "env/steps": 1, "actor/updates": 3.0}]
    worker = MetricWorker(gather=lambda records: [records, other])
    for record in one:
        worker.record(record)
    assert worker.reduce() == {
        "env/steps_per_s": 15.0 + 5.0,
        "time/generate_s": 3.0,
        "env/steps": 41.0,
        "actor/updates": 1.0 + 2.0,  # both ranks took part in the same three
    }


def test_the_smallest_value_is_kept_where_that_is_declared(own_metrics: None) -> None:
    register_metric("reward/worst", reduction=Reduction.MIN, meaning="smallest reward")
    assert reduce_metrics([{"reward/worst": 3.0}, {"reward/worst": -1.0}]) == {"reward/worst": -1.0}


def test_a_rank_without_a_metric_takes_no_part_in_it() -> None:
    assert reduce_metrics([{"env/busy_share": 0.5}, {}]) == {"env/busy_share": 0.5}


def test_a_mean_over_nothing_is_left_out() -> None:
    assert reduce_metrics([{"reward/mean_score": Weighted(math.nan, 0)}]) == {}
    assert reduce_metrics(
        [{"reward/mean_score": Weighted(math.nan, 0)}, {"reward/mean_score": Weighted(2.0, 5)}]
    ) == {"reward/mean_score": 2.0}


@given(st.lists(st.lists(NUMBERS, max_size=5), min_size=1, max_size=5))
def test_the_mean_does_not_depend_on_how_ranks_share_the_values(shares: list[list[float]]) -> None:
    values = [value for share in shares for value in share]
    ranks: list[Record] = [
        {"reward/mean_score": Weighted(math.fsum(s) / max(len(s), 1), len(s))} for s in shares
    ]
    expected = (
        {"reward/mean_score": pytest.approx(math.fsum(values) / len(values), abs=1e-6)}
        if values
        else {}
    )
    assert reduce_metrics(ranks) == expected


def test_an_undeclared_metric_is_averaged_over_ranks() -> None:
    assert reduce_metrics([{"own": 1.0}, {"own": 4.0}, {}]) == {"own": 2.5}


def test_an_undeclared_list_has_all_values_and_an_undeclared_weighted_mean_its_weights() -> None:
    assert reduce_metrics([{"own": [1.0, 2.0]}, {"own": 4.0}]) == {"own": [1.0, 2.0, 4.0]}
    # (3 x 1 + 5) / 4
    assert reduce_metrics([{"own": Weighted(1.0, 3)}, {"own": 5.0}]) == {"own": 2.0}


@pytest.mark.odd_metrics
def test_rounds_of_a_rank_count_as_one_in_a_mean_over_ranks() -> None:
    worker = MetricWorker(gather=lambda own: [own, [{"env/busy_share": 0.0, "own": 0.0}]])
    for share in (0.5, 1.0):
        worker.record({"env/busy_share": share, "own": share})
    assert worker.reduce() == {"env/busy_share": 0.375, "own": 0.375}  # (0.75 + 0) / 2


def test_a_value_of_another_kind_counts_as_what_it_is_nearest_to() -> None:
    ranks: list[Record] = [
        {
            "reward/mean_score": 1.0,
            "reward/score": 0.5,
            "env/steps": [1.0, 3.0],
            "actor/lr": Weighted(0.1, 7),
        },
        {"reward/mean_score": [2.0, 6.0], "reward/score": [1.0], "env/steps": []},
    ]
    # (1 + 2 + 6) / 3; a distribution of one; the mean of the list; the mean alone
    assert reduce_metrics(ranks) == {
        "reward/mean_score": 3.0,
        "reward/score": [0.5, 1.0],
        "env/steps": 2.0,
        "actor/lr": 0.1,
    }


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("own", 1.0, "Metric 'own' is not declared: its mean over ranks is logged"),
        ("reward/mean_score", 1.0, "takes Weighted.* counts as one item per rank"),
        ("env/steps", [1.0], "takes a number; got .* counts as its mean"),
        ("reward/score", 1.0, "takes a list of numbers; got 1.0, which counts as one value"),
        ("actor/lr", Unusable("a dict"), "Metric 'actor/lr' is left out: .* this is a dict"),
    ],
)
def test_an_odd_metric_is_reported(name: str, value: metrics.Value, sentence: str) -> None:
    told = complaints([{"env/episodes": 1.0}, {name: value}])
    [of_it] = [text for (metric, _), text in told.items() if metric == name]
    assert re.search(sentence, of_it)


def test_a_value_that_is_not_a_number_is_left_out() -> None:
    assert reduce_metrics(
        [{"env/steps": Unusable("None"), "own": Unusable("None")}, {"env/steps": 2.0}]
    ) == {"env/steps": 2.0}


def test_infinities_and_nan_are_logged_as_they_are() -> None:
    reduced = reduce_metrics(
        [
            {"own": math.inf, "env/steps": 1e308, "other": math.nan},
            {"own": -math.inf, "env/steps": 1e308},
        ]
    )
    assert math.isnan(float(reduced["own"])) and math.isnan(float(reduced["other"]))  # type: ignore[arg-type]
    assert reduced["env/steps"] == math.inf


def test_a_name_in_angle_brackets_stands_for_one_part() -> None:
    assert declaration("time/actor_train_s") is METRICS["time/<node>_s"]
    assert declaration("val/drawer-open/success_rate") is METRICS["val/<task>/success_rate"]
    with pytest.raises(UnknownNameError):
        declaration("val/drawer/open/success_rate")


def test_every_declared_name_has_an_area_and_a_meaning() -> None:
    assert all("/" in name and metric.meaning for name, metric in METRICS.items())


def test_a_metric_of_the_users_own_is_reduced_as_declared(own_metrics: None) -> None:
    register_metric("robot/jerk", reduction=Reduction.MAX, meaning="largest jerk")
    assert reduce_metrics([{"robot/jerk": 1.0}, {"robot/jerk": 4.0}]) == {"robot/jerk": 4.0}


@pytest.mark.parametrize(
    ("name", "message"), [("jerk", "area/name"), ("env/steps", "already declared")]
)
def test_a_bad_declaration_is_refused(own_metrics: None, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        register_metric(name, reduction=Reduction.MAX, meaning="largest jerk")


def test_the_worker_reduces_over_all_ranks_and_starts_anew() -> None:
    other_rank: list[Record] = [{"env/steps": 5.0}]
    worker = MetricWorker(gather=lambda own: [own, other_rank])
    worker.record({"env/steps": 1.0, "time/generate_s": 2.0})
    worker.record({"time/actor_train_s": 1.0})
    assert worker.reduce() == {"env/steps": 6.0, "time/generate_s": 2.0, "time/actor_train_s": 1.0}
    assert worker.reduce() == {"env/steps": 5.0}


@pytest.mark.odd_metrics
def test_the_worker_warns_once_per_name_of_what_any_rank_records() -> None:
    other_rank: list[Record] = [{"theirs": Unusable("a dict")}]
    worker = MetricWorker(gather=lambda own: [own, other_rank])
    warned = []
    for _ in range(3):
        worker.record({"mine": 1.0})
        assert worker.reduce() == {"mine": 1.0}
        warned.append([sentence.split(" is ")[0] for sentence in worker.take_warnings()])
    assert warned == [["Metric 'mine'", "Metric 'theirs'"], [], []]


def test_the_other_ranks_do_not_warn() -> None:
    worker = MetricWorker(warns=False)
    worker.record({"mine": 1.0})
    assert (worker.reduce(), worker.take_warnings()) == ({"mine": 1.0}, ())
