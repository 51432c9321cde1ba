"""Values that a node may log: numbers of Python, numpy and torch, and lists of them; others are
named and left out.
"""

import math
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from siirl.dag_worker.metric_worker import MetricWorker, plain, plain_name, plain_record
from siirl.reporting.metrics import Unusable, Weighted


@pytest.mark.parametrize(
    "number",
    [
        *(2, 2.0, True + 1, Fraction(2), Decimal(2)),
        *(
            np.float64(2),
            np.float32(2),
            np.float16(2),
            np.longdouble(2),
            np.int8(2),
            np.uint64(2),
            np.array(2),
        ),
        *(
            torch.tensor(2),
            torch.tensor(2.0, dtype=torch.bfloat16),
            torch.tensor(2.0, requires_grad=True),
        ),
        *(torch.nn.Parameter(torch.tensor(2.0)), torch.tensor([2.0]).sum()),
    ],
)
def test_numbers_of_all_libraries_are_accepted(number: Any) -> None:
    assert (plain(number), type(plain(number))) == (2.0, float)


@pytest.mark.parametrize("truth", [True, np.True_, torch.tensor(True)])
def test_true_counts_as_one(truth: Any) -> None:
    assert plain(truth) == 1.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_number_on_a_gpu_is_accepted() -> None:
    assert plain(torch.tensor(2.0, device="cuda")) == 2.0
    assert plain(torch.tensor([2.0, 3.0], device="cuda")) == [2.0, 3.0]


@pytest.mark.parametrize(
    "values",
    [
        *([1, 2.5], (1, np.float32(2.5)), [torch.tensor(1), 2.5], np.array([1, 2.5])),
        *(torch.tensor([1, 2.5]), torch.tensor([1, 2.5], dtype=torch.bfloat16, requires_grad=True)),
    ],
)
def test_a_list_of_numbers_is_a_distribution(values: Any) -> None:
    assert plain(values) == [1.0, 2.5]


def test_a_name_that_cannot_be_written_is_replaced() -> None:
    assert plain_name(Stubborn(1.0)) == "name of type Stubborn"


def test_a_weighted_mean_takes_numbers_of_all_libraries() -> None:
    assert plain(Weighted(np.float32(0.5), torch.tensor(3))) == Weighted(0.5, 3.0)  # type: ignore[arg-type]


class Stubborn(float):
    """A user's number that can neither be converted nor printed."""

    def __float__(self) -> float:
        raise RuntimeError("not now")

    def __str__(self) -> str:
        raise RuntimeError("not now")

    def __repr__(self) -> str:
        return "Stubborn()"


class StubbornList(list[float]):
    """A user's list that cannot be read."""

    def __iter__(self) -> Iterator[float]:
        raise RuntimeError("not now")


class StubbornMapping(dict[str, float]):
    """A user's mapping that cannot be read."""

    def items(self) -> Any:
        raise RuntimeError("not now")


def test_an_unreadable_container_is_skipped() -> None:
    assert plain(StubbornList([1.0])) == Unusable("of type StubbornList")
    assert plain_record(StubbornMapping(a=1.0)) == {
        "metrics of a node": Unusable("of type StubbornMapping")
    }


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("0.5", "'0.5' of type str"),
        (np.timedelta64(3, "s"), "of type timedelta64"),
        pytest.param(Stubborn(1.0), "of type Stubborn", id="stubborn"),
        (torch.eye(2)[0].to_sparse(), r"a Tensor of shape [2]"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "a Tensor nested"),
        (torch.zeros(2, device="meta"), r"a Tensor of shape [2]"),
        (None, "None"),
        ({"a": 1}, "of type dict"),
        (1j, "1j of type complex"),
        (np.str_("a"), "of type str_"),
        (torch.zeros(2, 3), r"a Tensor of shape [2, 3] and torch.float32"),
        (torch.zeros((), device="meta"), "a Tensor of shape []"),
        ([1.0, "b"], "a list with 'b' of type str"),
        (Weighted("a", 1), "of type Weighted"),  # type: ignore[arg-type]
        (torch.zeros, "of type builtin_function_or_method"),
    ],
)
def test_a_metric_that_is_not_a_number_is_described(value: Any, named: str) -> None:
    found = plain(value)
    assert isinstance(found, Unusable)
    assert named in found.what


def test_a_number_too_large_for_a_float_becomes_infinite() -> None:
    assert (plain(10**5000), plain(-(10**400))) == (math.inf, -math.inf)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.complex_numbers()
    | st.decimals(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=5,
)
NAMES = st.text() | st.sampled_from(
    ["reward/mean_score", "reward/score", "env/steps", "time/a_s", "actor/lr", "env/steps_per_s"]
)


@pytest.mark.odd_metrics
@given(st.lists(st.dictionaries(NAMES, ANYTHING, max_size=3) | ANYTHING, max_size=4))
def test_no_metric_value_ends_a_run(recorded: list[Any]) -> None:
    worker = MetricWorker()
    for metrics in recorded:
        worker.record(metrics)
    reduced = worker.reduce()
    assert all(isinstance(value, float | list) for value in reduced.values())


def test_names_that_are_not_strings_become_strings() -> None:
    assert plain_record({3: 1, "\ud800": 2}) == {"3": 1.0, "?": 2.0}


@pytest.mark.odd_metrics
def test_metrics_that_are_not_a_mapping_are_named() -> None:
    worker = MetricWorker()
    worker.record([1.0])
    worker.record(None)
    assert worker.reduce() == {}
    assert worker.take_warnings() == (
        "Metric 'metrics of a node' is left out: only a number or a list of numbers can be logged, "
        "but this is of type list.",
    )


@pytest.mark.odd_metrics
def test_a_metric_that_turns_from_a_number_to_text_is_warned_of_again_and_then_not() -> None:
    worker, told = MetricWorker(), []
    for value in (1.0, "text", 2.0, "other"):
        worker.record({"own": value})
        worker.reduce()
        told += worker.take_warnings()
    assert [sentence.partition(":")[0] for sentence in told] == [
        "Metric 'own' is not declared",
        "Metric 'own' is left out",
    ]
