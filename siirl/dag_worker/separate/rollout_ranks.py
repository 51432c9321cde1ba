"""Collectives and recorder of rollout ranks, which replace those of a colocated rank.

Rollout ranks share no lasting process group: a dead rank is replaced while the others continue, and
its replacement restarts the current evaluation. Collectives of small objects go through the run's
exchange. Rewards arrive later, from the training ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from siirl.dag_worker.context import StageContext
from siirl.dag_worker.separate.exchange_messages import RolloutProcess
from siirl.dag_worker.validator import Validator
from siirl.engine.rollout.rollout import Rollout
from siirl.engine.rollout.workflow import Trajectory
from siirl.occupation import OCCUPATION

if TYPE_CHECKING:  # imports Ray
    from siirl.dag_worker.separate.ray_exchange import ExchangeLine

Thing = TypeVar("Thing")


class RolloutRanks:
    """Collectives (`siirl.engine.training.collectives`) of the rollout ranks in an evaluation.

    Args:
        line: Connection to the exchange.
        rank: This rank's number in the group.
        size: Number of rollout ranks.
    """

    group = None

    def __init__(self, line: "ExchangeLine", *, rank: int, size: int) -> None:
        self.line = line
        self.rank = rank
        self.size = size
        self._process = RolloutProcess(rank, 0)
        self._call = self._number = 0

    def begin(self, process: RolloutProcess, call: int) -> None:
        """Begin evaluation number `call` as `process` of this rank."""
        self._process, self._call, self._number = process, call, 0

    def gather_objects(self, thing: Thing) -> list[Thing]:
        """See Collectives."""
        if self.size == 1:
            return [thing]
        self._number += 1
        with OCCUPATION.doing("waits for the other rollout ranks", waiting=True):
            found: list[Thing] | None = None
            while found is None:
                found = self.line.call("gather", self._process, self._call, self._number, thing)
        return found

    def broadcast_object(self, thing: Thing) -> Thing:
        """See Collectives."""
        return self.gather_objects(thing)[0]

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """See Ranks."""
        return torch.stack(self.gather_objects(tensor)).sum(0)

    def maximum(self, tensor: torch.Tensor) -> torch.Tensor:
        """See Collectives."""
        return torch.stack(self.gather_objects(tensor)).amax(0)

    def gather_rows(self, rows: torch.Tensor) -> tuple[torch.Tensor, slice]:
        """See Ranks."""
        parts = self.gather_objects(rows)
        start = sum(len(part) for part in parts[: self.rank])
        return torch.cat(parts), slice(start, start + len(rows))


class Recording:
    """Recordings of training episodes whose rewards arrive later from another process.

    Args:
        recorder: Writes the recordings; has a list `waiting` of (trajectory, kind, step).
    """

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder

    def keep(self, trajectories: Sequence[Trajectory], *, kind: str, step: int) -> None:
        """See `Recorder`."""
        self.recorder.keep(trajectories, kind=kind, step=step)

    def write(self, rewards: Any) -> None:
        """Write episodes of evaluations, whose rewards are complete."""
        self._write(rewards, [entry for entry in self.recorder.waiting if entry[1] == "val"])

    def write_up_to(self, step: int, rewards: Any) -> None:
        """Write training episodes that have a reward, and episodes up to step `step`, which will
        get none.
        """
        ready = [
            entry
            for entry in self.recorder.waiting
            if entry[1] == "train" and (entry[0].row["uid"] in rewards or entry[2] <= step)
        ]
        self._write(rewards, ready)

    def _write(self, rewards: Any, ready: list[Any]) -> None:
        chosen = {id(entry[0]) for entry in ready}
        rest = [entry for entry in self.recorder.waiting if id(entry[0]) not in chosen]
        self.recorder.waiting = ready
        self.recorder.write(rewards)
        self.recorder.waiting = rest


@dataclass
class RolloutParts:
    """Components of an agent group on a rollout rank."""

    context: StageContext
    rollout: Rollout
    engine: Any
    """Acts with the weights of the group; `rollout.engine` may also play other agents."""
    validator: Validator
    recording: Recording
    acting: Any
    """The module that acts, or an engine with its own weights."""
    owner: int
    """The agent group whose weights act: itself, or the one whose weights it shares."""
    closes: Sequence[Any]
    """Further objects with `close`."""
