"""Messages between the ranks and the exchange.

Left out: the line that carries them (`siirl.dag_worker.separate.ray_exchange`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from siirl.data_coordinator.sample_info import SampleInfo
from siirl.engine.rollout.ledger import FinishedPrompt, Prompt
from siirl.reporting.metrics import Unusable, Value, Weighted

LOST = object()
"""Result of fetching an object whose owner died."""
OVER = "over"
"""Answer to a process that waits for weights when the run has ended."""


class RolloutProcess(NamedTuple):
    """A process that works as a rollout rank."""

    rank: int
    life: int
    """Number of processes of this rank that died before."""


@dataclass(frozen=True)
class EvaluationRequest:
    """A command to evaluate an agent group."""

    group: int
    call: int
    step: int
    greedy: bool
    record: bool


@dataclass(frozen=True)
class Rewards:
    """Rewards by uid since the last call, for recordings."""

    by_uid: Mapping[str, float]
    step: int
    """All rewards up to this step are known."""


@dataclass(frozen=True)
class Work:
    """The next work of a rollout rank, by agent group."""

    prompts: Mapping[int, tuple[Prompt, ...]] = field(default_factory=dict)
    """Those of one group, if `weights_step` is set."""
    weights_step: int | None = None
    """Step whose weights must act on `prompts`; None: the newest."""
    evaluation: EvaluationRequest | None = None
    rewards: Mapping[int, Rewards] = field(default_factory=dict)
    over: bool = False
    """Whether the run has ended."""


Bucket = tuple[tuple[Any, ...], Any]
"""Packed entries and reference of a bucket (siirl.engine.training.weight_buckets)."""


@dataclass(frozen=True)
class Weights:
    """Weights of one agent group: buckets by reference."""

    step: int
    """Training step that made them; the group may not train in every later step."""
    version: int
    """Number of optimiser steps, as recorded in samples."""
    buckets: tuple[Bucket, ...]
    checksum: int
    frozen: tuple[Bucket, ...] = ()
    """Buckets of the weights that were frozen at first, the same ones in every publication. A
    weight that has changed since is in `buckets` too, which are copied after them.
    """
    probe: tuple[list[int], float] | None = None
    """For an engine with its own weights (`siirl.engine.rollout.vllm.vllm_probe.Probe`)."""


@dataclass(frozen=True)
class PublishedWeights:
    """The weights of all agent groups after a training step; they start to act together."""

    step: int
    of_groups: Mapping[int, Weights]


@dataclass(frozen=True)
class Receiver:
    """What a process that waits for weights needs."""

    machine: str
    """Names the memory that it shares with other processes
    (`siirl.dag_worker.separate.group_buckets.machine_name`).
    """
    whole: bool
    """Whether it also needs the frozen weights."""


@dataclass(frozen=True)
class Round:
    """A transfer of weights to the processes that wait for them, in a process group of its own."""

    host: str
    """Address of training rank 0, rank 0 of the group."""
    port: int
    members: tuple[RolloutProcess, ...]
    """Ranks 1, 2, … of the group."""
    shared: bool
    """Whether all are on one machine, and map the bucket."""
    published: PublishedWeights
    """The weights; their buckets are empty."""


@dataclass(frozen=True)
class Report:
    """Metrics of a rollout rank since its last report."""

    metrics: Mapping[str, Value]
    episodes: int = 0
    failed: tuple[str, ...] = ()
    """Reasons of the episodes that could not be simulated."""

    def packed(self) -> tuple[dict[str, Any], int, list[str]]:
        """The report as plain data, for a checkpoint."""
        metrics = {
            name: tuple(value) if isinstance(value, Weighted | Unusable) else value
            for name, value in self.metrics.items()
        }
        return metrics, self.episodes, list(self.failed)

    @classmethod
    def unpacked(cls, metrics: Mapping[str, Any], episodes: int, failed: Sequence[str]) -> "Report":
        """The report that was packed."""
        kinds = {1: Unusable, 2: Weighted}
        values = {
            name: kinds[len(value)](*value) if isinstance(value, tuple) else value
            for name, value in metrics.items()
        }
        return cls(values, episodes, tuple(failed))


@dataclass(frozen=True)
class StepPrompts:
    """Prompts for a training step; `Exchange.references` has the references of their rows."""

    prompts: tuple[FinishedPrompt, ...]
    infos: tuple[SampleInfo, ...]
    """One per prompt."""
    reports: tuple[tuple[int, Report], ...]
    """Rollout rank and report, since the last call."""
    discarded: int
    """Prompts dropped because they were too old, since the last call."""
