"""Which samples are worth training on, from their metadata alone: groups, outcomes, failures. No tensor of a trajectory is read.

Each function answers with one boolean a sample. They decide over *all* ranks' samples, so the caller gathers the metadata first.
What counts is whether the reward can tell the samples of a group apart: a filter that runs on 0/1 outcomes before a shaped reward
would throw away the very groups that the reward exists for, hence `srpo_keep`.
"""

# B sample

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import torch

from siirl.algos.checks import as_bool_mask, require_axes, require_same_shape
from siirl.algos.groups import distinguishable, group_statistics
from siirl.errors import ConfigError, TensorError


def zero_variance_keep(*, values_B: torch.Tensor, group_B: torch.Tensor, min_spread: float = 0.0) -> torch.Tensor:
    """Keep groups whose values differ by more than rounding and at least `min_spread` (DAPO's dynamic sampling, arXiv 2503.14476, 3.2).

    A group of one has nothing to differ from and is dropped.
    """
    return distinguishable(values_B=values_B, group_B=group_B, min_spread=min_spread)


def success_band_keep(
    *, success_B: torch.Tensor, group_B: torch.Tensor, low: float, high: float, spared_B: torch.Tensor | None = None
) -> torch.Tensor:
    """Keep groups whose share of successes lies in [low, high]: neither hopeless nor solved.

    Args:
        success_B: Bool.
        group_B: int64.
        low: Smallest share that is kept.
        high: Largest share that is kept.
        spared_B: Bool; samples that are kept whatever their group's share is.

    Raises:
        ConfigError: A band upside down.
        TensorError: Shapes that differ, or a flag that is neither 0 nor 1.
    """
    if not 0.0 <= low <= high <= 1.0:
        raise ConfigError(f"success_low={low}, success_high={high}: a band of success rates needs 0 <= low <= high <= 1.")
    require_same_shape(success=success_B, group=group_B, **({} if spared_B is None else {"spared": spared_B}))
    share_B = group_statistics(values_B=as_bool_mask(success_B, name="success").double(), group_B=group_B).mean_B
    inside_B = (share_B >= low) & (share_B <= high)
    return inside_B if spared_B is None else inside_B | as_bool_mask(spared_B, name="spared")


def truncation_keep(*, truncated_B: torch.Tensor) -> torch.Tensor:
    """Keep samples that came to an end of their own: the return of a truncated one is not its return.

    In tasks that fail by running out of time this drops every failure, and then all groups; it is for other environments.
    """
    require_axes(1, truncated=truncated_B)
    return ~as_bool_mask(truncated_B, name="truncated")


@dataclass(frozen=True)
class FilterOutcome:
    """Which samples stay, and why the others go."""

    keep_B: torch.Tensor
    """Bool."""
    dropped: dict[str, int]
    """Number of samples dropped for each reason; a sample counts for the first reason that applies."""


def srpo_keep(
    *,
    success_B: torch.Tensor,
    group_B: torch.Tensor,
    task_B: Sequence[Hashable],
    failed_B: torch.Tensor,
    reference_tasks: Collection[Hashable] = (),
    reward_ranks_failures: bool = True,
    success_low: float = 0.0,
    success_high: float = 1.0,
    truncated_B: torch.Tensor | None = None,
) -> FilterOutcome:
    """The filter of embodied jobs: drop failed simulations, and groups that the reward cannot tell apart.

    A group with successes and failures is always told apart. One of failures alone is, if the reward ranks failures by their
    distance to successes of the task and there is one: in this step, on any rank, or among the references of earlier steps. One of
    successes alone never is (they all get reward 1), nor is a group of one. A success band narrows this further; it
    spares all-failure groups that the reward ranks.

    Args:
        success_B: Bool, the benchmark's own flag.
        group_B: int64.
        task_B: Name or number of each sample's task.
        failed_B: Bool, the episode could not be simulated; its other columns are not read.
        reference_tasks: Tasks for which the reward has successes from earlier steps or from demonstrations.
        reward_ranks_failures: False for rewards that say 0 of every failure.
        success_low: Lower end of the band (`algorithm.filter.success_low`); 0 leaves it open.
        success_high: Upper end.
        truncated_B: Bool; given, truncated samples are dropped as well (`truncation_keep`).

    Raises:
        ConfigError: A band upside down.
        TensorError: Shapes that differ, or a flag that is neither 0 nor 1.
    """
    require_axes(1, success=success_B)
    require_same_shape(success=success_B, group=group_B, failed=failed_B)
    if len(task_B) != len(success_B):
        raise TensorError(f"task has {len(task_B)} entries and success {len(success_B)}: one a sample is expected.")
    success_B, keep_B = as_bool_mask(success_B, name="success"), ~as_bool_mask(failed_B, name="failed")
    dropped = {"failed_simulation": int((~keep_B).sum())}

    def drop(reason: str, gone_B: torch.Tensor) -> None:
        dropped[reason] = int((gone_B & keep_B).sum())
        keep_B[gone_B] = False

    if truncated_B is not None:
        require_same_shape(success=success_B, truncated=truncated_B)
        drop("truncated", ~truncation_keep(truncated_B=truncated_B))

    share_B = torch.zeros(len(success_B), dtype=torch.float64)
    alone_B = torch.zeros_like(keep_B)
    statistics = group_statistics(values_B=success_B[keep_B].double(), group_B=group_B[keep_B])
    share_B[keep_B], alone_B[keep_B] = statistics.mean_B, statistics.count_B == 1
    with_reference = {task for task, succeeded in zip(task_B, (keep_B & success_B).tolist(), strict=True) if succeeded}.union(
        reference_tasks
    )
    ranked_B = torch.tensor([reward_ranks_failures and task in with_reference for task in task_B], dtype=torch.bool)

    drop("alone_in_group", alone_B)
    drop("all_success", share_B == 1.0)
    drop("all_failure_without_reference", (share_B == 0.0) & ~ranked_B)
    band_B = success_band_keep(
        success_B=success_B[keep_B], group_B=group_B[keep_B], low=success_low, high=success_high, spared_B=share_B[keep_B] == 0.0
    )
    outside_B = torch.zeros_like(keep_B)
    outside_B[keep_B] = ~band_B
    drop("outside_success_band", outside_B)
    return FilterOutcome(keep_B=keep_B, dropped=dropped)
