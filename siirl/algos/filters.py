"""Filters of samples by metadata: groups, outcomes and failures. They read no trajectory tensors.

Each function returns one boolean per sample and decides over the samples of *all* ranks: the caller
gathers the metadata first. A group is useful if the reward distinguishes its samples. A filter on
0/1 outcomes before a shaped reward would drop the all-failure groups, for which that reward exists;
`srpo_keep` keeps them.
"""

# B sample

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch

from siirl.algos.call import named_arguments, register_in
from siirl.algos.groups import distinguishable, group_statistics
from siirl.algos.tensor_checks import as_bool_mask, require_axes, require_same_shape
from siirl.errors import ConfigError, TensorError, UnknownNameError


def zero_variance_keep(
    *, values_B: torch.Tensor, group_B: torch.Tensor, min_spread: float = 0.0
) -> torch.Tensor:
    """Keep groups whose values differ by more than rounding and at least `min_spread` (DAPO's
    dynamic sampling, arXiv 2503.14476, 3.2).

    A group of one is dropped.
    """
    return distinguishable(values_B=values_B, group_B=group_B, min_spread=min_spread)


def success_band_keep(
    *,
    success_B: torch.Tensor,
    group_B: torch.Tensor,
    low: float,
    high: float,
    spared_B: torch.Tensor | None = None,
) -> torch.Tensor:
    """Keep groups whose share of successes lies in [low, high]: neither hopeless nor solved.

    Args:
        success_B: Bool.
        group_B: int64.
        low: Smallest share that is kept.
        high: Largest share that is kept.
        spared_B: Bool; samples that are kept regardless of their group's share.

    Raises:
        ConfigError: A lower end above the upper one.
        TensorError: Shapes that differ, or a flag that is neither 0 nor 1.
    """
    if not 0.0 <= low <= high <= 1.0:
        raise ConfigError(
            f"success_low={low}, success_high={high}: a band of success rates needs "
            "0 <= low <= high <= 1."
        )
    require_same_shape(
        success=success_B, group=group_B, **({} if spared_B is None else {"spared": spared_B})
    )
    share_B = group_statistics(
        values_B=as_bool_mask(success_B, name="success").double(), group_B=group_B
    ).mean_B
    inside_B = (share_B >= low) & (share_B <= high)
    return inside_B if spared_B is None else inside_B | as_bool_mask(spared_B, name="spared")


def truncation_keep(*, truncated_B: torch.Tensor) -> torch.Tensor:
    """Keep samples whose episode terminated; the return of a truncated episode is incomplete.

    If all failures of a task are time-outs, this drops every failure, and so leaves no group with a
    signal. Use it only for other environments.
    """
    require_axes(1, truncated=truncated_B)
    return ~as_bool_mask(truncated_B, name="truncated")


FILTER_ARGUMENTS = {
    "group_B": "int64, the prompt of each trajectory; like all columns, for the trajectories of "
    "all ranks",
    "success_B": "bool, the environment's own flag",
    "truncated_B": "bool, cut at the limit of steps or tokens",
    "return_B": "sum of the environment's rewards",
    "length_B": "int64, tokens that the policy chose",
    "task_B": "list of names",
    "values_B": "the values of algorithm.filter.metric; in pipeline=dapo, where the reward "
    "precedes the filter",
    "min_spread": "algorithm.min_group_spread",
    "low": "algorithm.filter.success_low",
    "high": "algorithm.filter.success_high",
}

FILTERS: dict[str, Callable[..., torch.Tensor]] = {
    "zero_variance": zero_variance_keep,
    "success_band": success_band_keep,
    "truncation": truncation_keep,
}
"""Rules for `algorithm.filter.name`; each returns a bool per trajectory."""

MEASURES: dict[str, Callable[..., torch.Tensor]] = {
    "score": lambda batch: batch["token_level_scores"].sum(-1),
    "reward": lambda batch: batch["token_level_rewards"].sum(-1),
    "success": lambda batch: batch["complete"].float(),
}
"""Measures for `algorithm.filter.metric`: from a batch to one number per trajectory."""


def register_filter(
    name: str,
) -> Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]:
    """Decorator that registers a filter rule; its arguments are named as in `FILTER_ARGUMENTS`.

    Raises:
        ConfigError: The name is taken by another function, or the function requires an argument
            that is not provided.
    """
    return register_in(FILTERS, name, kind="filter", known=FILTER_ARGUMENTS)


def register_filter_metric(
    name: str,
) -> Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]:
    """Decorator that registers a measure of trajectories, called with `batch`.

    Raises the errors of `register_filter`.
    """
    return register_in(MEASURES, name, kind="metric of a filter", known=("batch",))


def keep_by_name(name: str, available: Mapping[str, object]) -> torch.Tensor:
    """The trajectories that the rule `name` keeps, bool [B].

    Raises:
        UnknownNameError: No such rule.
        ConfigError: It needs a value that is not available.
        TensorError: It returned another shape, or values other than 0 and 1.
    """
    if name not in FILTERS:
        raise UnknownNameError.of(kind="filter (algorithm.filter.name)", name=name, known=FILTERS)
    rule = FILTERS[name]
    keep_B = torch.as_tensor(rule(**named_arguments(rule, available, kind="Filter")))
    require_same_shape(group=torch.as_tensor(available["group_B"]), **{f"filter {name!r}": keep_B})
    return as_bool_mask(keep_B, name=f"filter {name!r}")


@dataclass(frozen=True)
class FilterOutcome:
    """The kept samples, and the counts of dropped ones by reason."""

    keep_B: torch.Tensor
    """Bool."""
    dropped: dict[str, int]
    """Number of samples dropped for each reason; a sample counts for the first reason that applies.
    """


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
    """The filter of embodied jobs: drop failed simulations and groups with identical rewards.

    Rewards differ in a group with successes and failures. They also differ in an all-failure group
    if the reward ranks failures by their distance to successes of the task and a success exists: in
    this step, on any rank, or among the references of earlier steps. Rewards are identical in an
    all-success group (reward 1) and in a group of one. A success band drops more groups, but keeps
    all-failure groups that the reward ranks.

    Args:
        success_B: Bool, the benchmark's own flag.
        group_B: int64.
        task_B: Name or number of each sample's task.
        failed_B: Bool, the episode could not be simulated; its other columns are not read.
        reference_tasks: Tasks for which the reward has successes from earlier steps or from
            demonstrations.
        reward_ranks_failures: False for rewards that are 0 for every failure.
        success_low: Lower end of the band (`algorithm.filter.success_low`); 0 leaves it open.
        success_high: Upper end.
        truncated_B: Bool; if given, truncated samples are dropped too (`truncation_keep`).

    Raises:
        ConfigError: A lower end above the upper one.
        TensorError: Shapes that differ, or a flag that is neither 0 nor 1.
    """
    require_axes(1, success=success_B)
    require_same_shape(success=success_B, group=group_B, failed=failed_B)
    if len(task_B) != len(success_B):
        raise TensorError(
            f"task has {len(task_B)} entries and success {len(success_B)}: each sample needs one."
        )
    success_B = as_bool_mask(success_B, name="success")
    keep_B = ~as_bool_mask(failed_B, name="failed")
    dropped = {"failed_simulation": int((~keep_B).sum())}

    def drop(reason: str, gone_B: torch.Tensor) -> None:
        dropped[reason] = int((gone_B & keep_B).sum())
        keep_B[gone_B] = False

    if truncated_B is not None:
        require_same_shape(success=success_B, truncated=truncated_B)
        drop("truncated", ~truncation_keep(truncated_B=truncated_B))

    share_B, alone_B = _success_shares(success_B=success_B, group_B=group_B, keep_B=keep_B)
    ranked_B = torch.zeros_like(keep_B)
    if reward_ranks_failures:
        ranked_B = _with_reference(task_B, success_B=keep_B & success_B, known=reference_tasks)

    drop("alone_in_group", alone_B)
    drop("all_success", share_B == 1.0)
    drop("all_failure_without_reference", (share_B == 0.0) & ~ranked_B)
    band_B = success_band_keep(
        success_B=success_B[keep_B],
        group_B=group_B[keep_B],
        low=success_low,
        high=success_high,
        spared_B=share_B[keep_B] == 0.0,
    )
    outside_B = torch.zeros_like(keep_B)
    outside_B[keep_B] = ~band_B
    drop("outside_success_band", outside_B)
    return FilterOutcome(keep_B=keep_B, dropped=dropped)


def _success_shares(
    *, success_B: torch.Tensor, group_B: torch.Tensor, keep_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Among the kept samples: success rate of each one's group, and whether it is alone in it."""
    share_B = torch.zeros(len(success_B), dtype=torch.float64)
    alone_B = torch.zeros_like(keep_B)
    statistics = group_statistics(values_B=success_B[keep_B].double(), group_B=group_B[keep_B])
    share_B[keep_B], alone_B[keep_B] = statistics.mean_B, statistics.count_B == 1
    return share_B, alone_B


def _with_reference(
    task_B: Sequence[Hashable], *, success_B: torch.Tensor, known: Collection[Hashable]
) -> torch.Tensor:
    """Whether each sample's task has a success, here or among the `known` tasks."""
    succeeded = {
        task for task, success in zip(task_B, success_B.tolist(), strict=True) if success
    }.union(known)
    return torch.tensor([task in succeeded for task in task_B], dtype=torch.bool)
