"""Dynamic sampling of embodied jobs: keeps groups in which rewards can differ.

The rule is `siirl.algos.filters.srpo_keep`. This node gathers its metadata from all ranks and drops
this rank's rows. It reads only outcomes and runs before the reward, so it never drops an
all-failure group that the trajectory reward ranks.
"""

# B trajectory

import torch
from tensordict import TensorDict

from siirl.algos.filters import keep_by_name, srpo_keep
from siirl.dag_worker.context import StageContext
from siirl.dag_worker.rewards import gather_outcomes
from siirl.data_coordinator.protocol.batch import select_rows
from siirl.execution.dag import NodeOutput, NodeRole, NodeType, stage
from siirl.user_interface.filter_interface.filter_columns import (
    OF_A_RULE,
    filter_columns,
    task_names_of_all,
)


@stage(
    NodeType.COMPUTE,
    NodeRole.DYNAMIC_SAMPLING,
    requires=["uid", "index", "task_name", "complete", "truncated", "env_return"],
    optional=OF_A_RULE,
)
def embodied_local_rank_sampling(*, batch: TensorDict, context: StageContext) -> NodeOutput:
    """Drop this rank's useless rows; the decision uses the rows of all ranks."""
    settings, ranks = context.config.algorithm.filter, context.ranks
    if settings.name is not None:
        return _by_own_rule(settings.name, batch, context)
    success_B, mine = ranks.gather_rows(batch["complete"])
    group_B, _ = ranks.gather_rows(batch["index"])
    task_B = task_names_of_all(batch, ranks)
    truncated_B, _ = ranks.gather_rows(batch["truncated"])
    outcome = srpo_keep(
        success_B=success_B,
        group_B=group_B,
        task_B=task_B,
        failed_B=torch.zeros_like(success_B),  # failed simulations have no rows
        reference_tasks=[name for name in set(task_B) if context.reward.has_reference(name)],
        reward_ranks_failures=context.reward.ranks_failures,
        success_low=settings.success_low,
        success_high=settings.success_high,
        truncated_B=truncated_B if settings.drop_truncated else None,
    )
    kept = select_rows(batch, outcome.keep_B[mine])
    context.reward.remember(gather_outcomes(select_rows(batch, ~outcome.keep_B[mine]), ranks=ranks))
    share = len(batch) / max(len(success_B), 1)
    metrics: dict[str, float] = {"sampling/kept": float(len(kept))}
    # The counts are over all ranks; each rank reports its share, so that the sum over ranks is the
    # count.
    metrics |= {
        f"sampling/dropped_{reason}": count * share for reason, count in outcome.dropped.items()
    }
    return NodeOutput(batch=kept, metrics=metrics)


def _by_own_rule(name: str, batch: TensorDict, context: StageContext) -> NodeOutput:
    """Rule of `algorithm.filter.name` in place of SRPO's; the reward may still use dropped rows."""
    group_B, mine = context.ranks.gather_rows(batch["index"])
    keep_B = keep_by_name(name, filter_columns(batch, context, group_B))[mine]
    kept, dropped = select_rows(batch, keep_B), select_rows(batch, ~keep_B)
    context.reward.remember(gather_outcomes(dropped, ranks=context.ranks))
    metrics = {"sampling/kept": float(len(kept)), "sampling/dropped_by_filter": float(len(dropped))}
    return NodeOutput(batch=kept, metrics=metrics)
