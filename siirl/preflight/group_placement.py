"""Placement of resource groups: their number of ranks, machines and nodes.

`place` fills in the numbers of `dag.groups`. Left out: limits of separate groups
(`siirl.preflight.group_checks`), and starting anything (`siirl.jobs.training_run`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from siirl.dag_worker.stages import compute_reward, generate
from siirl.errors import ConfigError, SiirlError, refuse
from siirl.execution.dag import TaskGraph
from siirl.execution.dag.function_names import describe
from siirl.execution.dag.resource_groups import ROLLOUT, TRAIN, acts, cut_graph
from siirl.execution.scheduler.enums import ApportionStrategy
from siirl.execution.scheduler.process_group_manager import ProcessGroupManager
from siirl.execution.scheduler.task_scheduler import (
    TaskScheduler,
    estimate_graph_model_params,
    fill_in_sizes,
    ranks_of_groups,
)
from siirl.params import sizes
from siirl.params.agents import config_of_group
from siirl.params.dag_args import DagArguments
from siirl.params.data_args import DataArguments
from siirl.params.training_args import SiiRLArguments, TrainingArguments
from siirl.preflight.agent_checks import by_group
from siirl.preflight.critic_checks import mini_batches_of
from siirl.preflight.memory import policy_parameters


@dataclass(frozen=True)
class GroupPlan:
    """A resource group in the plan."""

    name: str
    ranks: tuple[int, ...]
    machines: tuple[int, ...]
    nodes: Mapping[int, tuple[str, ...]]
    """Nodes by agent group."""
    why: str
    """Origin of the number of ranks, as text."""


def place(config: SiiRLArguments, graph: TaskGraph) -> tuple[GroupPlan, ...]:
    """Fill in the ranks of `dag.groups`, and return the groups' plans; none if ranks are colocated.

    Raises:
        ConfigError: Numbers that do not add up or divide, or a graph that cannot be cut.
    """
    if not sizes.separate(config.dag):
        return ()
    configs = {group: config_of_group(config, group) for group in graph.agent_groups()}
    fill_in_sizes(
        graph,
        parameters={
            group: policy_parameters(own.actor_rollout_ref.model) for group, own in configs.items()
        },
    )
    parts = cut_graph(graph, groups=config.dag.groups)
    _check_rollout_ranks(parts[ROLLOUT])
    if any(
        sizes.streams(config.trainer, config.dag, own.actor_rollout_ref.rollout)
        for own in configs.values()
    ):
        _check_stream(parts[ROLLOUT])
    given = dict(config.dag.groups)
    wanted = ranks_of_groups(
        parts, given, num_workers=sizes.ranks(config.trainer), strategy=config.dag.apportion
    )
    fit = _that_fit(list(configs.values()), wanted)
    found = (fit or wanted) if set(given.values()) == {None} else wanted
    config.dag.groups = dict(found)
    refuse(by_group(config, lambda own: list(_shares(own, found, fit=fit))))
    mapping = scheduled(config.trainer, config.dag, graph)
    groups = ProcessGroupManager(sizes.ranks(config.trainer), mapping)
    return tuple(
        _plan(name, part, groups, config.trainer, why=_why(name, parts, given, wanted, config))
        for name, part in parts.items()
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
    """Refuse a custom function for episodes: it would wait for the episodes of one prompt at a
    time.
    """
    for node in part.nodes.values():
        if acts(node) and node.executable is not None and node.executable is not generate:
            raise ConfigError(
                f"Node {node.node_id!r} plays episodes with {describe(node.executable)}. A stream "
                "of rollouts (trainer.max_staleness above 0 without trainer.deterministic) plays "
                f"them only with {describe(generate)}: use it, or set "
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
    name: str,
    part: TaskGraph,
    groups: ProcessGroupManager,
    trainer: TrainingArguments,
    *,
    why: str,
) -> GroupPlan:
    ranks = next(
        found
        for found, group in groups.groups.items()
        if group is not groups.world and group in groups.node_groups[next(iter(part.nodes))]
    )
    nodes = [node for node in part.get_nodes() if node.skip_reason is None]
    return GroupPlan(
        name=name,
        ranks=ranks,
        machines=tuple(sorted({rank // trainer.n_gpus_per_node for rank in ranks})),
        nodes={
            agent: tuple(node.node_id for node in nodes if node.agent_group == agent)
            for agent in part.agent_groups()
        },
        why=why,
    )


def _why(
    name: str,
    parts: Mapping[str, TaskGraph],
    given: Mapping[str, int | None],
    wanted: Mapping[str, int],
    config: SiiRLArguments,
) -> str:
    """Reason for a group's number of ranks."""
    dag, found = config.dag, config.dag.groups[name]
    if given[name] is not None:
        return "set by dag.groups"
    if set(given.values()) != {None}:
        return "the rest of dag.groups"
    ranks = f"{wanted[name]} of {sum(wanted.values())} ranks"
    if dag.apportion == ApportionStrategy.EVEN:
        why = f"dag.apportion=even: {ranks}"
    else:
        own = estimate_graph_model_params(parts[name])
        total = sum(map(estimate_graph_model_params, parts.values()))
        why = (
            f"dag.apportion={dag.apportion}: {ranks} for {own / 1e6:.1f} of {total / 1e6:.1f} "
            "million parameters"
        )
    moved = "; changed to the nearest number that divides prompts and mini-batches"
    return why if wanted[name] == found else why + moved


def _gets_prompts(data: DataArguments, groups: Mapping[str, int]) -> bool:
    return data.train_batch_size >= groups[ROLLOUT]


def _divides(config: SiiRLArguments, groups: Mapping[str, int]) -> bool:
    train, policy = groups[TRAIN], config.actor_rollout_ref
    numbers = [each * policy.rollout.n for each in mini_batches_of(config).values()]
    return all(number % train == 0 for number in numbers) and train % _copy(config) == 0


def _copy(config: SiiRLArguments) -> int:
    """Number of ranks that hold one copy of the weights; must divide the training ranks."""
    return config.actor_rollout_ref.actor.fsdp_size or 1


def _that_fit(
    configs: Sequence[SiiRLArguments], wanted: Mapping[str, int]
) -> dict[str, int] | None:
    """The sizes nearest to `wanted`, with the same sum, that `_shares` accepts for every agent
    group, if there are any; of two equally near ones, the sizes with fewer training ranks.
    """
    ranks = sum(wanted.values())
    candidates = [{ROLLOUT: ranks - train, TRAIN: train} for train in range(1, ranks)]
    fitting = [
        groups
        for groups in candidates
        if all(_gets_prompts(own.data, groups) and _divides(own, groups) for own in configs)
    ]
    return min(fitting, key=lambda groups: abs(groups[TRAIN] - wanted[TRAIN]), default=None)


def _shares(
    config: SiiRLArguments, groups: Mapping[str, int], *, fit: Mapping[str, int] | None
) -> Iterator[SiirlError]:
    """Refuse sizes that do not divide a job, or an agent group's part; `fit`: sizes that do."""
    data = config.data
    group_size = config.actor_rollout_ref.rollout.n
    train = groups[TRAIN]
    if not _gets_prompts(data, groups):
        yield ConfigError(
            f"data.train_batch_size={data.train_batch_size} leaves some of the {groups[ROLLOUT]} "
            f"ranks of the group {ROLLOUT!r} without prompts: set it to at least {groups[ROLLOUT]}."
        )
    if _divides(config, groups):
        return
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
            f"{size} does not divide the {train} ranks of the group {TRAIN!r}; each group of that "
            f"size holds one copy of the weights: set {resized or 'it to a divisor'}."
        )


def _batches_that_fit(
    data: DataArguments, key: str, mini_batch: int, *, group_size: int, train: int
) -> str:
    """Overrides for the nearest mini-batch that `train` ranks divide and that divides the batch; if
    there is none, also for the nearest batch.
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
