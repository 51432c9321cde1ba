"""DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): a step is filled with groups that the
reward can tell apart.

Groups whose rewards are all alike have advantage 0 and teach nothing. They are dropped, and as many
further prompts are rolled out as should make up for them, going by how many groups were kept so
far, and never more than a whole step's. After `algorithm.filter.max_refills` such rounds the step
goes on with what there is, if need be with nothing: no update (`actor/updates` 0).

What comes out beyond `data.train_batch_size` groups is dropped, the latest prompts first: kept for
the next step, they would be of an older policy. All of it is decided over the groups of all ranks,
and nothing is remembered between steps.
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
    """Drop groups that teach nothing; ask for more prompts where too few are left and another round
    is allowed.
    """
    algorithm, wanted = context.config.algorithm, context.config.data.train_batch_size
    group_B, mine = context.ranks.gather_rows(batch["index"])
    keep_B = _keep(batch, context, group_B)
    groups_G = group_B[keep_B].unique()  # ascending, which is the order of the prompts
    dropped: dict[str, Value] = {"sampling/dropped_without_signal": float((~keep_B[mine]).sum())}
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
    """Prompts that should give `missing` groups more, a multiple of `ranks`: as many for each as
    `kept` of `drawn` prompts took.

    Args:
        missing: Groups.
        kept: Groups that were kept of all prompts of the step.
        drawn: Prompts of the step so far.
        most: Never more than these; a multiple of `ranks`.
        ranks: Each gets as many.
    """
    expected = most if kept == 0 else min(most, math.ceil(missing * drawn / kept))
    return -(-expected // ranks) * ranks


def _keep(batch: TensorDict, context: StageContext, group_B: torch.Tensor) -> torch.Tensor:
    """Bool [B] over the trajectories of all ranks: those of groups that teach something."""
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
