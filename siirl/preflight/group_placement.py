"""Placement: how many ranks each resource group gets, where they are and what they run.

`place` fills in the numbers of `dag.groups`. Left out: what separate groups cannot do
(`siirl.preflight.group_checks`), and starting anything (`siirl.jobs.training_run`).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from siirl.dag_worker.stages import compute_reward, generate
from siirl.errors import ConfigError, SiirlError
from siirl.execution.dag import TaskGraph
from siirl.execution.dag.function_names import describe
from siirl.execution.dag.resource_groups import ROLLOUT, TRAIN, acts, cut_graph
from siirl.execution.scheduler.process_group_manager import ProcessGroupManager
from siirl.execution.scheduler.task_scheduler import (
    TaskScheduler,
    estimate_graph_model_params,
    fill_in_sizes,
    ranks_of_groups,
)
from siirl.params import sizes
from siirl.params.dag_args import DagArguments
from siirl.params.data_args import DataArguments
from siirl.params.refusals import refuse
from siirl.params.training_args import SiiRLArguments, TrainingArguments
from siirl.preflight.critic_checks import mini_batches_of
from siirl.preflight.memory import policy_parameters


@dataclass(frozen=True)
class GroupPlan:
    """A resource group in the plan."""

    name: str
    ranks: tuple[int, ...]
    machines: tuple[int, ...]
    nodes: tuple[str, ...]
    why: str
    """Source of the number of ranks."""


def place(config: SiiRLArguments, graph: TaskGraph) -> tuple[GroupPlan, ...]:
    """Fill in the ranks of `dag.groups`, and describe the groups; none if ranks are colocated.

    Raises:
        ConfigError: Numbers that do not add up or divide, or a graph that cannot be cut.
    """
    if not sizes.separate(config.dag):
        return ()
    fill_in_sizes(graph, parameters=policy_parameters(config.actor_rollout_ref.model))
    parts = cut_graph(graph, groups=config.dag.groups)
    _check_rollout_ranks(parts[ROLLOUT])
    if sizes.streams(config.trainer, config.dag, config.actor_rollout_ref.rollout):
        _check_stream(parts[ROLLOUT])
    given = dict(config.dag.groups)
    found = ranks_of_groups(
        parts, given, num_workers=sizes.ranks(config.trainer), strategy=config.dag.apportion
    )
    if set(given.values()) == {None}:
        found = _that_fit(config, found) or found
    config.dag.groups = dict(found)
    refuse(list(_shares(config, found)))
    mapping = scheduled(config.trainer, config.dag, graph)
    groups = ProcessGroupManager(sizes.ranks(config.trainer), mapping)
    return tuple(
        _plan(config.dag, config.trainer, name, part, groups, given) for name, part in parts.items()
    )


def _check_rollout_ranks(part: TaskGraph) -> None:
    """Refuse nodes that need the reward or the process group, which training ranks have."""
    for node in part.nodes.values():
        if node.moves_rows or node.executable is compute_reward:
            work = "moves rows between ranks" if node.moves_rows else "rewards rows"
            raise ConfigError(
                f"Node {node.node_id!r} of the group {ROLLOUT!r} {work}, which only ranks of the "
                f"group {TRAIN!r} can: set group={TRAIN}, or leave its group out."
            )


def _check_stream(part: TaskGraph) -> None:
    """Refuse an own function for episodes, which would wait for those of one prompt at a time."""
    for node in part.nodes.values():
        if acts(node) and node.executable is not None and node.executable is not generate:
            raise ConfigError(
                f"Node {node.node_id!r} plays episodes with {describe(node.executable)}. A stream "
                "of rollouts (trainer.max_staleness above 0 without trainer.deterministic) plays "
                f"them with {describe(generate)} only: take it, or set "
                "actor_rollout_ref.rollout.mode=sync."
            )


def scheduled(
    trainer: TrainingArguments, dag: DagArguments, graph: TaskGraph
) -> dict[int, TaskGraph]:
    """The graph of each rank; called after `place`."""
    parts = cut_graph(graph, groups=dag.groups or {TRAIN: None})
    ranks = {TRAIN: sizes.training_ranks(trainer, dag)}
    if sizes.separate(dag):
        ranks[ROLLOUT] = sizes.rollout_ranks(trainer, dag)
    scheduler = TaskScheduler(trainer.nnodes, trainer.n_gpus_per_node)
    return scheduler.assign_resource_groups(parts, ranks)


def _plan(
    dag: DagArguments,
    trainer: TrainingArguments,
    name: str,
    part: TaskGraph,
    groups: ProcessGroupManager,
    given: Mapping[str, int | None],
) -> GroupPlan:
    ranks = next(
        found
        for found, group in groups.groups.items()
        if group is not groups.world and group in groups.node_groups[next(iter(part.nodes))]
    )
    why = "dag.groups"
    if given[name] is None:
        millions = estimate_graph_model_params(part) / 1e6
        why = f"dag.apportion={dag.apportion}, {millions:.1f} million parameters"
    return GroupPlan(
        name=name,
        ranks=ranks,
        machines=tuple(sorted({rank // trainer.n_gpus_per_node for rank in ranks})),
        nodes=tuple(node.node_id for node in part.get_nodes() if node.skip_reason is None),
        why=why,
    )


def _gets_prompts(data: DataArguments, groups: Mapping[str, int]) -> bool:
    return data.train_batch_size >= groups[ROLLOUT]


def _divides(config: SiiRLArguments, groups: Mapping[str, int]) -> bool:
    train, policy = groups[TRAIN], config.actor_rollout_ref
    numbers = [each * policy.rollout.n for each in mini_batches_of(config).values()]
    return all(number % train == 0 for number in numbers) and train % _copy(config) == 0


def _copy(config: SiiRLArguments) -> int:
    """Ranks that hold one copy of the weights and must divide those that train."""
    return config.actor_rollout_ref.actor.fsdp_size or 1


def _that_fit(config: SiiRLArguments, wanted: Mapping[str, int]) -> dict[str, int] | None:
    """The sizes nearest to `wanted`, of the same sum, that `_shares` accepts, if there are any; of
    two that are equally near, those with fewer training ranks.
    """
    ranks = sum(wanted.values())
    candidates = [{ROLLOUT: ranks - train, TRAIN: train} for train in range(1, ranks)]
    return min(
        (
            groups
            for groups in candidates
            if _gets_prompts(config.data, groups) and _divides(config, groups)
        ),
        key=lambda groups: abs(groups[TRAIN] - wanted[TRAIN]),
        default=None,
    )


def _shares(config: SiiRLArguments, groups: Mapping[str, int]) -> Iterator[SiirlError]:
    data, group_size, train = config.data, config.actor_rollout_ref.rollout.n, groups[TRAIN]
    if not _gets_prompts(data, groups):
        yield ConfigError(
            f"data.train_batch_size={data.train_batch_size} gives some of the {groups[ROLLOUT]} "
            f"ranks of the group {ROLLOUT!r} no prompts: set it to at least {groups[ROLLOUT]}."
        )
    if _divides(config, groups):
        return
    fit = _that_fit(config, groups)
    resized = f"dag.groups={{rollout: {fit[ROLLOUT]}, train: {fit[TRAIN]}}}" if fit else ""
    for key, mini_batch in mini_batches_of(config).items():
        trajectories = mini_batch * group_size
        if trajectories % train:
            others = _batches_that_fit(data, key, mini_batch, group_size=group_size, train=train)
            yield ConfigError(
                f"{key}={mini_batch} x actor_rollout_ref.rollout.n={group_size} = {trajectories} "
                f"trajectories are not divisible by the {train} ranks of the group {TRAIN!r}: set "
                f"{', or '.join(filter(None, (resized, others)))}."
            )
    if train % _copy(config):
        size = f"actor_rollout_ref.actor.fsdp_size={_copy(config)}"
        yield ConfigError(
            f"{size} does not divide the {train} ranks of the group {TRAIN!r}, and each group of "
            f"that size holds one copy of the weights: set {resized or 'it to a divisor'}."
        )


def _batches_that_fit(
    data: DataArguments, key: str, mini_batch: int, *, group_size: int, train: int
) -> str:
    """Overrides of the nearest mini-batch that `train` ranks divide and that divides the batch; if
    there is none, of the nearest batch too.
    """
    batch = data.train_batch_size
    unit = train // math.gcd(train, group_size)
    multiples = range(unit, max(batch, unit) + 1, unit)
    fit = [multiple for multiple in multiples if batch % multiple == 0]
    chosen = min(fit or multiples, key=lambda multiple: abs(multiple - mini_batch))
    words = f"{key}={chosen}"
    if fit:
        return words
    return f"{words} and data.train_batch_size={max(1, round(batch / chosen)) * chosen}"
