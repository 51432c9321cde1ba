"""A run in numbers: sizes, length, memory and time, estimated before any process starts.

Left out: computing them (`siirl.preflight.make_plan`), and the plan as text
(`siirl.preflight.plan_text`).
"""

from dataclasses import dataclass

from siirl.preflight.group_placement import GroupPlan
from siirl.preflight.machine import Gpu
from siirl.preflight.memory import total
from siirl.preflight.rank_table import RankMemory


@dataclass(frozen=True)
class Machine:
    """The machine on which a plan is made."""

    free_memory_bytes: float
    cores: int
    speed: float = 1.0
    """Speed relative to the benchmarks' machine (`duration.measured_speed`)."""
    gpu: Gpu | None = None
    """None without a GPU, or if its memory is unknown."""


@dataclass(frozen=True)
class PipelinePlan:
    """The graph of a run."""

    name: str
    nodes: tuple[str, ...]
    """Nodes that run, in order."""
    paths: tuple[str, ...]
    """The graph in lines: one for a chain, else one for each branch and join."""
    skipped: tuple[tuple[str, str], ...]
    """Nodes that do not run, with the reason."""
    trains: bool
    """Whether a node that runs updates a model."""


@dataclass(frozen=True)
class UpdatePlan:
    """How the trajectories of a step become optimiser steps."""

    nodes: int
    """Nodes that update the policy."""
    epochs: int
    mini_batches: int
    """Optimiser steps of one node; the largest number if the number of trajectories varies."""
    trajectories_per_mini_batch: int
    micro_batches: int
    micro_batch_size: int
    micro_batch_tokens: int | None
    """Token budget, which replaces `micro_batch_size`."""
    micro_batch_chunks: int | None
    """Chunk budget, which replaces `micro_batch_size`."""
    rate: str
    """Learning rate of the policy, its schedule, and the KL that it is adjusted to."""
    loss: str
    """The resolved policy loss with its bounds, options and aggregation."""
    critic: str | None
    """The critic's update and learning rate; None without a critic."""


@dataclass(frozen=True)
class ResumePoint:
    """Start of a run with `trainer.resume`."""

    words: str
    """Text with checkpoint and step, or that there is no checkpoint and the run is new."""
    step: int = 0
    """Number of completed steps."""
    changed: tuple[str, ...] = ()
    """Keys that have another value than in the run that is continued, with both values."""


@dataclass(frozen=True)
class LengthPlan:
    """When a run ends, and how often it is evaluated."""

    steps: int | None
    """Steps of the whole run."""
    done: int
    """Those that a resumed run has completed already."""
    critic_warmup: int
    """First steps of the run, which train the critic alone."""
    max_minutes: float | None
    file_epochs: int | None
    """Passes over the prompt files; None without files."""
    val_episodes: int
    """Episodes of one evaluation, over all tasks."""
    evaluations: int | None
    """Remaining evaluations; None if the number of steps is open."""


@dataclass(frozen=True)
class Needs:
    """Estimated memory, disk space and duration of a run."""

    memory_parts: tuple[tuple[str, float], ...]
    rank_memory: RankMemory | None
    """GPU memory of a rank; None for a model of unknown shape, or without a GPU."""
    disk_bytes: float
    minutes: float | None
    """Minutes of training and evaluation; None without a comparable measurement."""

    @property
    def memory_bytes(self) -> float:
        """Sum of all parts."""
        return total(self.memory_parts)


@dataclass(frozen=True)
class Plan:
    """A run in numbers."""

    pipeline: PipelinePlan
    policy: str
    """The policy with its options, initial weights and adapters, in words."""
    env: str
    tasks: tuple[str, ...]
    roles: tuple[tuple[str, int], ...]
    """Agents with roles, and the agent group that plays each."""
    task_sampling: str
    ranks: int
    machines: int
    cluster: str
    num_servers: int
    envs_per_server: int
    prompts: int
    group_size: int
    agents: int
    """Agents of an episode whose trajectories are trained on here."""
    varies: bool
    """Whether an agent may have no turn, and so no trajectory, in an episode."""
    episodes_of: int | None
    """Agent group whose episodes it trains on; None: its own."""
    update: UpdatePlan
    groups: tuple[GroupPlan, ...]
    """Resource groups; none if every rank does everything."""
    max_staleness: int
    streams: bool
    """Whether episodes are started continuously."""
    begins: ResumePoint | None
    """None without `trainer.resume`."""
    start: str | None
    """Warning about tasks that the initial weights were not trained on; None if there is none."""
    length: LengthPlan
    machine: Machine
    needs: Needs
    ungraded: bool
    """Whether the run includes rows that the environment cannot grade."""
    servers: tuple[str, ...] = ()
    """Addresses of the inference servers; none if the ranks generate themselves."""
    way_of_weights: str = ""
    """Description of the transport of new weights to the servers."""
    decisions: int | None = None
    """Decisions of an environment in a step; None if rows are whole episodes."""
    agents_of_run: "tuple[tuple[str, Plan], ...]" = ()
    """Names and plans of the agent groups; none if the run has one policy."""

    @property
    def trajectories(self) -> int:
        """Trajectories of a step, over all ranks; the largest number if it varies."""
        return self.prompts * self.group_size * self.agents

    @property
    def optimiser_steps(self) -> int:
        """Optimiser steps of a training step; the largest number if the number of trajectories
        varies.
        """
        return self.update.nodes * self.update.mini_batches * self.update.epochs
