"""Every policy loss with every aggregation, and every KL in the loss, through real updates: the same gradient however the batch is cut.

Cuts are micro-batches of one and of four rows, and two ranks that are real processes with uneven shares. The learning rate is
so small that the weights stay as they are, so one engine serves all cases.
"""

import itertools

import pytest
from ranks_at_work import run_on_ranks
from tiny_training import largest_difference, make_actor, make_engine, trajectories

from siirl.algos.aggregation import AGGREGATIONS
from siirl.algos.policy_losses import POLICY_LOSSES
from siirl.engine.collectives import OneProcess
from siirl.params import OptimizerArguments
from siirl.params.algorithm_args import KL_ESTIMATORS
from siirl.params.model_args import ImportanceArguments

ROWS, MASKED_ROWS, SHARE = 9, (3, 8), 2  # rank 0 has the first two rows
TOLERANCE = 1e-5  # relative, max norm
STILL = OptimizerArguments(lr=1e-30, weight_decay=0.0, scheduler="constant_with_warmup", warmup_ratio=0.0)
# Options with which the tiny batch has clipped, unclipped and selected tokens.
OPTIONS = {
    "clip_cov": {"clip_cov_ratio": 0.3, "clip_cov_lb": -0.5},
    "kl_cov": {"kl_cov_ratio": 0.3},
}
BUILT_IN = sorted(name for name, function in POLICY_LOSSES.items() if function.__module__.startswith("siirl.algos"))
LOSS_CASES = list(itertools.product(BUILT_IN, AGGREGATIONS))
IMPORTANCE = {
    "token, truncate": ("token", "truncate", 0.0),
    "sequence, mask": ("sequence", "mask", 0.1),
    "geometric": ("geometric", "mask", 0.5),
}


def configurations():
    """Name of a case to the actor's keys."""
    cases = {case: {"loss": case[0], "loss_agg_mode": case[1], "loss_options": OPTIONS.get(case[0], {})} for case in LOSS_CASES}
    cases |= {("kl", name): {"use_kl_loss": True, "kl_loss_coef": 0.3, "kl_loss_type": name} for name in KL_ESTIMATORS}
    for name, (level, bound, low) in IMPORTANCE.items():
        cases["importance", name] = {"importance": ImportanceArguments(level=level, bound=bound, low=low)}
    return cases


def gradients(ranks, micro_batch):
    """Gradient and metrics of an update for each case."""
    engine = make_engine(ranks, micro_batch_size=micro_batch, optim=STILL)
    batch = trajectories(ROWS, masked_rows=MASKED_ROWS)
    if ranks.size > 1:
        batch = batch[:SHARE] if ranks.rank == 0 else batch[SHARE:]
    found = {}
    for case, config in configurations().items():
        metrics = make_actor(engine, **config).update(batch)
        found[case] = (engine.gradients[-1], metrics)
    return found


@pytest.fixture(scope="module")
def alone():
    return gradients(OneProcess(), 4)


@pytest.fixture(scope="module")
def one_row_at_a_time():
    return gradients(OneProcess(), 1)


@pytest.fixture(scope="module")
def two_ranks():
    return run_on_ranks(gradients, 4, ranks=2)


@pytest.mark.parametrize("case", configurations(), ids=str)
def test_every_case_pulls_on_the_weights(alone, case):
    gradient, metrics = alone[case]
    assert max(float(tensor.abs().max()) for tensor in gradient.values()) > 0
    assert metrics["actor/updates"] == 1.0


@pytest.mark.parametrize("case", configurations(), ids=str)
def test_micro_batches_of_one_row_have_the_same_gradient(alone, one_row_at_a_time, case):
    assert largest_difference(alone[case][0], one_row_at_a_time[case][0]) < TOLERANCE


@pytest.mark.parametrize("case", configurations(), ids=str)
def test_two_ranks_have_the_gradient_and_the_metrics_of_one(alone, two_ranks, case):
    for rank in two_ranks:
        assert largest_difference(alone[case][0], rank[case][0]) < TOLERANCE
        assert rank[case][1] == pytest.approx(alone[case][1], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_a_selection_holds_back_some_tokens_and_not_all(alone, name):
    assert 0.1 < alone[name, "token-mean"][1]["actor/selected_share"] < 0.5


def test_cases_differ(alone):
    """Otherwise the tests above would say nothing about each of them."""
    alike = {("kl", name) for name in ("k1+", "k3+", "abs+", "k2+")}  # all have k2's gradient
    alike |= {case for case in alone if case[0] == "gspo_token"}  # advantages are equal in a row
    norms = [round(metrics["actor/grad_norm"], 6) for case, (_, metrics) in alone.items() if case not in alike]
    assert len(set(norms)) == len(norms)
