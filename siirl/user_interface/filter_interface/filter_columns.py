"""Inputs of a rule of `algorithm.filter.name`, gathered over the trajectories of all ranks."""

# B trajectory of all ranks

import itertools
from typing import Any

import torch
from tensordict import TensorDict

from siirl.dag_worker.context import StageContext
from siirl.data_coordinator.protocol.batch import texts
from siirl.engine.training.collectives import Collectives

OF_A_RULE = ("task_name", "env_return", "response_mask")
"""Columns that a filter reads only for a rule of `algorithm.filter.name`."""


def filter_columns(
    batch: TensorDict, context: StageContext, group_B: torch.Tensor
) -> dict[str, Any]:
    """`siirl.algos.filters.FILTER_ARGUMENTS` without `values_B`, which needs the reward first."""
    settings, ranks = context.config.algorithm, context.ranks
    columns = {
        "success_B": batch["complete"],
        "truncated_B": batch["truncated"],
        "return_B": batch["env_return"],
    }
    columns["length_B"] = batch["response_mask"].sum(-1)
    return {
        "group_B": group_B,
        "task_B": task_names_of_all(batch, ranks),
        **{name: ranks.gather_rows(column)[0] for name, column in columns.items()},
        "min_spread": settings.min_group_spread,
        "low": settings.filter.success_low,
        "high": settings.filter.success_high,
    }


def task_names_of_all(batch: TensorDict, ranks: Collectives) -> list[str]:
    """Task of each row of all ranks, in rank order."""
    own = texts(batch, "task_name") if len(batch) else []
    return list(itertools.chain.from_iterable(ranks.gather_objects(own)))
