"""The components of every agent group of a rank. Each group has its own policy, optimiser,
reference, critic, rollout, environments and prompts, or shares the weights of another group.

Agent groups share ranks, redistribution, checkpoints and the length of the run. The lowest group
uses the names of a run without agents. Other groups prefix their metrics with `agent_N/`, record
into the folder `agent_N`, and save weights in `actor_N` of a checkpoint.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.mistakes import describe_error
from siirl.dag_worker import stages
from siirl.dag_worker.checkpoint import CheckpointManager
from siirl.dag_worker.components import Updates, WorkerComponents
from siirl.dag_worker.critic_components import needs_critic
from siirl.dag_worker.placed_rollouts import PlacedRollouts
from siirl.engine.rollout.engine_of_agents import assign_engines
from siirl.engine.training.collectives import Collectives
from siirl.errors import CheckpointError, ConfigError, SiirlError
from siirl.execution.dag import TaskGraph
from siirl.execution.dag.task_loader import update_nodes
from siirl.params import SiiRLArguments, sizes
from siirl.params.agents import config_of_group, owners, rows_of_step
from siirl.params.critic_sizes import critic_steps
from siirl.reporting.metrics import Value

AGENTS = "agents"  # in the state of a checkpoint
ROLLOUTS = "rollouts"  # with rollout ranks: running prompts and waiting rows
REDISTRIBUTION = "redistribution"  # one for all groups
OLD_LEFTOVERS = "compute_reward"  # key of all leftover rows in older checkpoints


@dataclass(frozen=True)
class AgentPlace:
    """Number and folders of an agent group in a run."""

    group: int
    folder: Path
    """Folder for recordings and saved texts."""
    checkpoints: Path
    ending: str
    """Suffix of its weights' folders in a checkpoint."""

    @classmethod
    def of(cls, group: int, *, run_folder: Path, groups: Collection[int]) -> "AgentPlace":
        """The place of one of `groups`; creates its folder."""
        ending = _ending(group, groups=groups)
        folder = run_folder / f"agent{ending}" if ending else run_folder
        folder.mkdir(exist_ok=True)
        return cls(group, folder, run_folder / "checkpoints", ending)


def _ending(group: int, *, groups: Collection[int]) -> str:
    return "" if group == min(groups) else f"_{group}"


@dataclass
class AgentGroups:
    """Components by agent group."""

    groups: Mapping[int, WorkerComponents]
    checkpoints: CheckpointManager
    rolling_out: frozenset[int]
    """Groups that draw prompts and play episodes; the others train on rows of these."""
    rollouts: PlacedRollouts
    dropped_prompts: int = 0
    """Prompts that the resumed run had started in stream mode and that this run skips."""

    @property
    def first(self) -> WorkerComponents:
        """Components of the lowest group."""
        return self.groups[min(self.groups)]

    def of(self, group: int) -> WorkerComponents:
        """Components of one group.

        Raises:
            ConfigError: No node of the graph has it.
        """
        if group not in self.groups:
            raise ConfigError(f"No node of the graph has agent_group={group}.")
        return self.groups[group]

    def prefix(self, group: int) -> str:
        """Prefix of the names of a group's metrics."""
        return "" if group == min(self.groups) else f"agent_{group}/"

    def start(self, step: int) -> None:
        """Start the environments, and act with the current weights (those of `step`)."""
        for components in self.players():
            components.rollout.start()
        for components in self.groups.values():
            components.context.weights.sync()
        loaded = self.checkpoints.loaded
        self.rollouts.open(
            step=step,
            positions=self._positions(),
            resumed=None if loaded is None else loaded.state,
        )

    def begin_step(self, step: int) -> None:
        """Record the step that begins."""
        for components in self.groups.values():
            context = components.context
            context.step, context.round = step, 0
            context.refills.clear()
            context.drawn_prompts = context.config.data.train_batch_size
        self.rollouts.begin_step(step)

    def end_step(self) -> dict[str, Value]:
        """Let separate rollout ranks act with the weights of the step from now on; returns metrics
        of sending them.
        """
        return self.rollouts.step_done()

    def players(self) -> list[WorkerComponents]:
        """Components of the groups that roll out."""
        return [self.groups[group] for group in sorted(self.rolling_out)]

    def _positions(self) -> dict[int, int]:
        """Prompts drawn so far by each group that draws."""
        return {
            group: int(self.groups[group].context.require_loader().state_dict()["position"])
            for group in sorted(self.rolling_out)
        }

    def set_progress(self, progress: float) -> None:
        """See `WorkerComponents.set_progress`."""
        for components in self.groups.values():
            components.set_progress(progress)

    def passes(self) -> float:
        """Largest number of passes over the prompts, over the groups."""
        return max(components.context.require_loader().passes() for components in self.players())

    def state(self) -> dict[str, Any]:
        """State that the next step depends on; with one group, that group's own state."""
        if len(self.groups) == 1:
            return self.first.state()
        states = {group: entry.state() for group, entry in self.groups.items()}
        leftovers = [state.pop(REDISTRIBUTION) for state in states.values()]
        return {AGENTS: states, REDISTRIBUTION: leftovers[0]}

    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse of `state`.

        Raises:
            CheckpointError: The state is of other groups.
        """
        states = state.get(AGENTS, {min(self.groups): state})
        if set(states) != set(self.groups):
            raise CheckpointError(
                f"The checkpoint holds the agent groups {sorted(states)}, and the graph has "
                f"{sorted(self.groups)}. Resume with the graph that saved it."
            )
        leftovers = {REDISTRIBUTION: state.get(REDISTRIBUTION, {})}
        for group, entry in self.groups.items():
            own = states[group]
            position = self._after_stream(group, state)
            if position is not None and self.rollouts.colocated:
                own = own | {"loader": own["loader"] | {"position": position}}
            entry.load_state(own | leftovers)

    def _after_stream(self, group: int, state: Mapping[str, Any]) -> int | None:
        """Position after the last prompt that a stream had started. Rollout ranks finish prompts
        out of order, so the stream may have used later prompts and skipped earlier ones. None if no
        stream had started a prompt, or if this run streams too.
        """
        rollouts, config = state.get(ROLLOUTS, {}), self.groups[group].context.config
        ledger = rollouts.get(AGENTS, {group: rollouts}).get(group, {}).get("ledger", {})
        if not ledger.get("streaming") or sizes.streams(
            config.trainer, config.dag, config.actor_rollout_ref.rollout
        ):
            return None
        self.dropped_prompts += len(ledger["pending"]) + len(ledger["finished"])
        return int(ledger["position"])

    def close(self) -> None:
        """Close every group; safe to call twice."""
        self.checkpoints.close(within_s=self.first.context.config.trainer.grace_s)
        for components in self.groups.values():
            components.close()


def load_state(
    components: AgentGroups, state: dict[str, Any], *, folder: Path, graph: TaskGraph
) -> None:
    """Load a checkpoint's state into the components.

    Raises:
        CheckpointError: The state is of another job or another version of siirl.
    """
    try:
        components.load_state(_with_leftovers_of_nodes(state, graph))
    except SiirlError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"{folder} holds a state that this job cannot load ({describe_error(error)}). Resume "
            "with the configuration and version that saved it, or start a new run from its "
            "weights: actor_rollout_ref.model.path=<checkpoint>/actor."
        ) from error


def _with_leftovers_of_nodes(state: dict[str, Any], graph: TaskGraph) -> dict[str, Any]:
    """Move leftover rows of older checkpoints from `compute_reward` to the rebalance node's id."""
    shares = [
        node.node_id for node in graph.get_nodes() if node.executable is stages.data_rebalance
    ]
    old = state.get("redistribution", {})
    if OLD_LEFTOVERS not in old or len(shares) != 1:
        return state
    return {
        **state,
        "redistribution": {
            shares[0] if name == OLD_LEFTOVERS else name: rows for name, rows in old.items()
        },
    }


def build_groups(
    *,
    config: SiiRLArguments,
    graph: TaskGraph,
    run_folder: Path,
    ranks: Collectives,
    rollouts: PlacedRollouts,
    build: Callable[..., WorkerComponents],
) -> AgentGroups:
    """Build all agent groups of the graph, and their common checkpoints.

    `build` makes the components of one, with arguments of `assembly.build_components`.
    """
    numbers = graph.agent_groups()
    drawing = frozenset(graph.drawing_nodes().values())
    owner_of = owners(config.agents)
    groups: dict[int, WorkerComponents] = {}
    for group in sorted(numbers, key=lambda number: (number in owner_of, number)):
        sharing = [number for number in numbers if owner_of.get(number) == group]
        groups[group] = build(
            config=config_of_group(config, group),
            place=AgentPlace.of(group, run_folder=run_folder, groups=numbers),
            with_critic=any(needs_critic(graph, group=each) for each in (group, *sharing)),
            shares=groups[owner_of[group]] if group in owner_of else None,
            updates=updates_of(config, graph, groups=(group, *sharing)),
        )
    groups = {number: groups[number] for number in numbers}
    if len(groups) == 1:
        [alone] = groups.values()
        return AgentGroups(groups, alone.checkpoints, drawing, rollouts)
    assign_seats(
        {group: each.rollout for group, each in groups.items()},
        played_by={group: config_of_group(config, group).env.played_by for group in groups},
        lockstep=config.trainer.deterministic,
    )
    checkpoints = _joint_checkpoints(groups.values(), run_folder, ranks)
    return AgentGroups(groups, checkpoints, drawing, rollouts)


def trained_engines(graph: TaskGraph, agents: Mapping[Any, Any]) -> list[str]:
    """Names of the engines in a checkpoint of the graph's job; `agents` is the key of the
    configuration.
    """
    numbers, owner_of = graph.agent_groups(), owners(agents)
    names = set()
    for group in numbers:
        ending = _ending(owner_of.get(group, group), groups=numbers)
        names.add(f"actor{ending}")
        if needs_critic(graph, group=group):
            names.add(f"critic{ending}")
    return sorted(names)


def updates_of(config: SiiRLArguments, graph: TaskGraph, *, groups: Iterable[int]) -> Updates:
    """The graph's updates of weights that `groups` share."""
    policy = critic = 0
    for group in groups:
        own = config_of_group(config, group)
        playing = config_of_group(config, graph.playing_group(group))
        rows = rows_of_step(own, group=group, playing=playing)
        steps = sizes.optimiser_steps(own.actor_rollout_ref, rows=rows)
        policy += len(update_nodes(graph, ("policy", group))) * steps
        critic += len(update_nodes(graph, ("critic", group))) * critic_steps(own, rows=rows)
    return Updates(policy=policy, critic=critic)


def assign_seats(
    rollouts: Mapping[int, Any], *, played_by: Mapping[int, Collection[int]], lockstep: bool
) -> None:
    """Let agent groups play their roles in each other's environments.

    Args:
        rollouts: Rollouts by agent group; a training rank without rollouts has others in their
            place.
        played_by: For each agent group, the groups that play in its environments
            (`env.played_by`).
        lockstep: Deterministic mode.
    """
    engines = {
        group: engine
        for group, rollout in rollouts.items()
        if (engine := rollout.engine_with_tokenizer()) is not None
    }
    for group, rollout in rollouts.items():
        # a rank has the players of those environments in which it plays episodes
        if played_by[group] and set(played_by[group]) <= set(engines):
            players = [engines[player] for player in played_by[group]]
            assign_engines(rollout, players, lockstep=lockstep)


def _joint_checkpoints(
    groups: Iterable[WorkerComponents], run_folder: Path, ranks: Collectives
) -> CheckpointManager:
    managers = [components.checkpoints for components in groups]
    engines: dict[str, Any] = {}
    for manager in managers:
        engines |= manager.engines

    def export(folder: Path) -> None:
        for manager in managers:
            if manager.engines:
                manager.export(folder)

    return CheckpointManager(
        folder=run_folder / "checkpoints",
        engines=engines,
        ranks=ranks,
        export=export,
        more_state=managers[0].more_state,  # belongs to the run, not to an agent group
    )
