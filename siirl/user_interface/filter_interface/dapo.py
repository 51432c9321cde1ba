"""DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): fills a step with useful groups.

Groups whose scores before the length penalty are equal teach nothing and are dropped. The share of
groups kept so far determines how many more prompts are rolled out to replace them, at most one
step's worth. After `algorithm.filter.max_refills` rounds the step continues with the groups that it
has; without any, there is no update (`actor/updates` 0).

Groups beyond `data.train_batch_size` are dropped, the latest prompts first: in the next step they
would come from an older policy. Decisions use the groups of all ranks, and no state is kept between
steps.
"""

# B trajectory, G group

import math

import torch
from tensordict import TensorDict

from siirl.algos.filters import (
    MEASURES,
    keep_by_name,
    success_band_keep,
    truncation_keep,
    zero_variance_keep,
)
from siirl.dag_worker.context import StageContext
from siirl.data_coordinator.protocol.batch import select_rows
from siirl.execution.dag import NodeOutput, NodeRole, NodeType, stage
from siirl.reporting.metrics import Value
from siirl.user_interface.filter_interface.filter_columns import OF_A_RULE, filter_columns


@stage(
    NodeType.COMPUTE,
    NodeRole.DYNAMIC_SAMPLING,
    requires=["index", "complete", "truncated", "token_level_scores", "token_level_rewards"],
    optional=OF_A_RULE,
)
def dynamic_sampling(*, batch: TensorDict, context: StageContext) -> NodeOutput:
    """Drop groups without a signal, by default those whose scores before the length penalty are
    equal; request prompts if too few remain and a round is left.
    """
    algorithm = context.config.algorithm
    wanted = context.config.data.train_batch_size
    group_B, mine = context.ranks.gather_rows(batch["index"])
    keep_B = _keep(batch, context, group_B)
    groups_G = group_B[keep_B].unique()  # ascending, the order of the prompts
    reason = "without_signal" if algorithm.filter.name is None else "by_filter"
    dropped: dict[str, Value] = {f"sampling/dropped_{reason}": float((~keep_B[mine]).sum())}
    missing = wanted - len(groups_G)
    if missing > 0 and context.round < algorithm.filter.max_refills:
        more = prompts_to_draw(
            missing=missing,
            kept=len(groups_G),
            drawn=context.drawn_prompts,
            most=wanted,
            ranks=context.ranks.size,
        )
        return NodeOutput(
            batch=select_rows(batch, keep_B[mine]), metrics=dropped, more_prompts=more
        )
    chosen_B = keep_B & torch.isin(group_B, groups_G[:wanted])
    kept = select_rows(batch, chosen_B[mine])
    metrics: dict[str, Value] = {
        **dropped,
        "sampling/dropped_surplus": float((keep_B & ~chosen_B)[mine].sum()),
        "sampling/kept": float(len(kept)),
        "sampling/groups": float(min(len(groups_G), wanted)),
        "sampling/missing_groups": float(max(missing, 0)),
        "sampling/rounds": float(context.round + 1),
    }
    return NodeOutput(batch=kept, metrics=metrics)


def prompts_to_draw(*, missing: int, kept: int, drawn: int, most: int, ranks: int) -> int:
    """Prompts expected to yield `missing` more groups, a multiple of `ranks`.

    Assumes that further prompts yield groups at the rate `kept / drawn`.

    Args:
        missing: Number of groups needed.
        kept: Groups kept of all prompts of the step.
        drawn: Prompts of the step so far.
        most: Upper bound; a multiple of `ranks`.
        ranks: Number of ranks; each gets the same number of prompts.
    """
    expected = most if kept == 0 else min(most, math.ceil(missing * drawn / kept))
    return -(-expected // ranks) * ranks


def _keep(batch: TensorDict, context: StageContext, group_B: torch.Tensor) -> torch.Tensor:
    """Bool [B] over the trajectories of all ranks: rows of groups whose rewards differ."""
    settings, ranks = context.config.algorithm.filter, context.ranks
    value_B, _ = ranks.gather_rows(MEASURES[settings.metric](batch=batch))
    if settings.name is not None:
        return keep_by_name(
            settings.name, {**filter_columns(batch, context, group_B), "values_B": value_B}
        )
    success_B, _ = ranks.gather_rows(batch["complete"])
    truncated_B, _ = ranks.gather_rows(batch["truncated"])
    keep_B = (
        truncation_keep(truncated_B=truncated_B)
        if settings.drop_truncated
        else torch.ones_like(truncated_B, dtype=torch.bool)
    )
    spread = context.config.algorithm.min_group_spread
    there = keep_B.clone()
    keep_B[there] = zero_variance_keep(
        values_B=value_B[there], group_B=group_B[there], min_spread=spread
    ) & success_band_keep(
        success_B=success_B[there],
        group_B=group_B[there],
        low=settings.success_low,
        high=settings.success_high,
    )
    return keep_B
