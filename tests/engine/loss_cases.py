"""Updates with every policy loss, every aggregation, every KL and some importance weights."""

import itertools
from collections.abc import Collection
from typing import Any

import torch
from tensordict import TensorDict
from tiny_training import RecordingEngine, make_actor

from siirl.algos.aggregation import AGGREGATIONS
from siirl.algos.policy_losses import POLICY_LOSSES
from siirl.params import OptimizerArguments
from siirl.params.algorithm_args import KL_ESTIMATORS
from siirl.params.model_args import ImportanceArguments

TOLERANCE = 1e-5  # relative, max norm
STILL = OptimizerArguments(
    lr=1e-30, weight_decay=0.0, scheduler="constant_with_warmup", warmup_ratio=0.0
)
"""A learning rate so small that the weights do not change: one engine serves all cases."""
# Options for which the tiny batches have clipped, unclipped and selected tokens.
OPTIONS = {
    "clip_cov": {"clip_cov_ratio": 0.3, "clip_cov_lb": -0.5},
    "kl_cov": {"kl_cov_ratio": 0.3},
}
BUILT_IN = sorted(
    name
    for name, function in POLICY_LOSSES.items()
    if function.__module__.startswith("siirl.algos")
)
IMPORTANCE = {
    "token, truncate": ("token", "truncate", 0.0),
    "sequence, mask": ("sequence", "mask", 0.1),
    "geometric": ("geometric", "mask", 0.5),
}

Case = tuple[str, str]
Found = dict[Case, tuple[dict[str, torch.Tensor], dict[str, float]]]


def configurations() -> dict[Case, dict[str, Any]]:
    """Name of a case to the actor's keys."""
    losses = itertools.product(BUILT_IN, AGGREGATIONS)
    cases = {
        case: {"loss": case[0], "loss_agg_mode": case[1], "loss_options": OPTIONS.get(case[0], {})}
        for case in losses
    }
    cases |= {
        ("kl", name): {"use_kl_loss": True, "kl_loss_coef": 0.3, "kl_loss_type": name}
        for name in KL_ESTIMATORS
    }
    for name, (level, bound, low) in IMPORTANCE.items():
        cases["importance", name] = {
            "importance": ImportanceArguments(level=level, bound=bound, low=low)
        }
    return cases


def gradients(
    engine: RecordingEngine, batch: TensorDict, cases: Collection[Case] | None = None
) -> Found:
    """Gradient and metrics of an update for each case; the engine's learning rate is `STILL`."""
    found = {}
    for case, config in configurations().items():
        if cases is not None and case not in cases:
            continue
        metrics = make_actor(engine, **config).update(batch)
        found[case] = (engine.gradients[-1], metrics)
    return found


def gradient_norms(found: Found) -> list[float]:
    """Cases whose gradients must differ, or comparisons would be vacuous."""
    alike = {("kl", name) for name in ("k1+", "k3+", "abs+", "k2+")}  # all have k2's gradient
    alike |= {case for case in found if case[0] == "gspo_token"}  # advantages are equal in a row
    return [
        round(metrics["actor/grad_norm"], 6)
        for case, (_, metrics) in found.items()
        if case not in alike
    ]
