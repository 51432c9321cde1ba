"""Receives weights that training ranks send to this rollout rank, and lets them act.

    lockstep   the rank waits for weights, so they replace the acting ones as they arrive: those of
               a module in place (`ModuleInPlace`), those of vLLM bucket by bucket
               (`EngineInPlace`). The additional memory is one bucket.
    stream     the rank rolls out meanwhile, so they arrive in a second copy, which is swapped in
               between two forward passes (`ModuleBeside`, `EngineBeside`)

Both compare the sender's checksum with that of the bits that arrived. If the transfer breaks off,
because its sender or another rank died, this rank asks again: incomplete weights never act. Left
out: sending (`siirl.dag_worker.separate.sent_weights`), and stored weights
(`siirl.dag_worker.separate.received_weights`).
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from siirl.dag_worker.separate.exchange_messages import (
    OVER,
    PublishedWeights,
    Receiver,
    RolloutProcess,
    Round,
    Weights,
)
from siirl.dag_worker.separate.group_buckets import Arriving, TransferBroken, machine_name
from siirl.dag_worker.separate.received_weights import (
    EngineWithWeights,
    HeldRows,
    SecondCopy,
    StoredCopy,
)
from siirl.dag_worker.separate.rollout_ranks import RolloutParts
from siirl.dag_worker.separate.weight_copies import RunEnded, WeightCopies, require_all
from siirl.engine.training.saved_state import saved_weights
from siirl.engine.training.weight_sync import VersionedEngine
from siirl.errors import InvariantError
from siirl.models.checksum import RunningChecksum
from siirl.models.weight_rows import Rows
from siirl.occupation import OCCUPATION

if TYPE_CHECKING:  # imports Ray
    from siirl.dag_worker.separate.ray_exchange import ExchangeLine

Take = Callable[[Iterator[Rows], Weights], int]
"""Takes all rows of weights, and returns the checksum of the bits that arrived."""


class WeightChannel:
    """Asks for weights until they have arrived.

    Args:
        line: Connection to the exchange.
        process: This process.
    """

    def __init__(self, line: "ExchangeLine", process: RolloutProcess) -> None:
        self.line, self.process = line, process
        self.closed = threading.Event()
        """Set: `receive` raises RunEnded."""
        self._machine = machine_name()

    def receive(self, group: int, take: Take, *, whole: Callable[[], bool]) -> PublishedWeights:
        """Receive the newest weights of agent group `group`, and return what they are.

        Args:
            group: Number of the agent group.
            take: Called with the rows; again if a transfer broke off.
            whole: Whether the frozen weights are needed too.

        Raises:
            InvariantError: Other bits arrived than were sent.
            RunEnded: The run or this rank ends.
        """
        while True:
            invitation = self._invitation(whole())
            try:
                with OCCUPATION.doing(f"receives the weights of step {invitation.published.step}"):
                    return self._receive(invitation, invitation.published.of_groups[group], take)
            except TransferBroken:
                continue

    def _receive(self, invitation: Round, weights: Weights, take: Take) -> PublishedWeights:
        members = invitation.members
        arriving = Arriving(
            invitation.host,
            invitation.port,
            rank=1 + members.index(self.process),
            ranks=1 + len(members),
            shared=invitation.shared,
        )
        arrived = take(arriving.rows(), weights)
        sent = arriving.sent_checksum()
        if arrived != sent:
            raise InvariantError(
                f"The weights of step {weights.step} were sent with the checksum {sent} and "
                f"arrived with {arrived}. Report this with the run's config."
            )
        arriving.confirm()
        return invitation.published

    def _invitation(self, whole: bool) -> Round:
        receiver = Receiver(self._machine, whole)
        with OCCUPATION.doing("waits for weights of the training ranks", waiting=True):
            while not self.closed.is_set():
                found = self.line.call("next_round", self.process, receiver)
                if found == OVER:
                    break
                if found is not None:
                    return found
        raise RunEnded


class ModuleBeside(SecondCopy):
    """Second copy of an acting module's weights, in which they arrive.

    Args:
        group: The agent group.
        module: The acting module.
        channel: Receives the weights.
        engine: Gets the version of its weights.
    """

    def __init__(
        self, group: int, module: nn.Module, channel: WeightChannel, engine: VersionedEngine
    ) -> None:
        super().__init__(module, channel.line, engine)
        self.group, self.channel = group, channel
        self._own_whole = self._spare_whole = False
        """Whether all weights have arrived once in each of the two: frozen ones need not again."""

    def arrive(self) -> PublishedWeights:
        """Receive the newest weights."""
        found = self.channel.receive(self.group, self._take, whole=lambda: not self._spare_whole)
        self._spare_whole = True
        return found

    def swap(self, weights: Weights) -> None:
        """Let the received weights act."""
        super().swap(weights)
        self._own_whole, self._spare_whole = self._spare_whole, self._own_whole

    def _take(self, rows: Iterator[Rows], weights: Weights) -> int:
        """Copy rows; returns their checksum where they are."""
        placed = CountedRows(self._placed(rows))
        for _ in placed:
            pass
        if not self._spare_whole:
            require_all(self._spare, placed.names, step=weights.step)
        return placed.checksum

    def _placed(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        for part in rows:
            if part.name not in self._spare:
                yield part
                continue
            place = part.of(self._spare[part.name])
            place.copy_(part.values)
            yield part.with_values(place)


class ModuleInPlace(ModuleBeside):
    """The weights of an acting module, which arriving ones overwrite; the rank waits meanwhile."""

    def _second(self) -> dict[str, torch.Tensor]:
        return {name: tensor.data for name, tensor in self._own.items()}

    def swap(self, weights: Weights) -> None:
        """Note that the weights act."""
        self.acting_step = weights.step
        self.engine.update_weights(weights.version)


class EngineInPlace:
    """Weights of an engine that takes them as they arrive, between two of its passes.

    Args:
        group: The agent group.
        engine: Holds the weights that act.
        channel: Receives the weights.
    """

    nbytes = 0.0

    def __init__(self, group: int, engine: EngineWithWeights, channel: WeightChannel) -> None:
        self.group, self.engine, self.channel = group, engine, channel
        self.acting_step: int | None = None
        """See `SecondCopy`."""
        self.steps_of_versions: dict[int, int] = {}
        self._needed = saved_weights(engine.model).keys()

    def arrive(self) -> PublishedWeights:
        """Receive the newest weights; an engine with merged adapters also needs frozen ones."""
        return self.channel.receive(self.group, self._take, whole=lambda: True)

    def _take(self, rows: Iterator[Rows], weights: Weights) -> int:
        counted = CountedRows(rows)
        self.engine.replace_weights(counted, version=weights.version, probe=weights.probe)
        require_all(self._needed, counted.names, step=weights.step)
        return counted.checksum

    def swap(self, weights: Weights) -> None:
        """Note that the weights act."""
        self.acting_step = weights.step


class EngineBeside(StoredCopy):
    """Arrived weights of an engine, in host memory until it takes them between two of its passes.

    Args:
        group: The agent group.
        engine: Holds the weights that act.
        channel: Receives the weights.
    """

    def __init__(self, group: int, engine: EngineWithWeights, channel: WeightChannel) -> None:
        super().__init__(engine, channel.line)
        self.group, self.channel = group, channel

    def arrive(self) -> PublishedWeights:
        """Receive the newest weights; an engine with merged adapters also needs frozen ones."""
        return self.channel.receive(self.group, self._take, whole=lambda: True)

    def _take(self, rows: Iterator[Rows], weights: Weights) -> int:
        self._changing = HeldRows(())  # before others get memory
        self._changing = HeldRows(part.with_values(part.values.clone()) for part in rows)
        require_all(self._needed, self._changing.by_name, step=weights.step)
        return self._changing.checksum


ArrivingCopy = ModuleBeside | EngineBeside | EngineInPlace


class ArrivingCopies(WeightCopies[ArrivingCopy]):
    """The weights of a rank's only policy.

    Args:
        group: The agent group.
        copy: Where they arrive.
    """

    def __init__(self, group: int, copy: ArrivingCopy) -> None:
        super().__init__({group: copy}, owners={group: group})
        self._copy = copy

    def receive(self, published: PublishedWeights) -> PublishedWeights:
        """Receive weights if these do not act yet: the newest ones, perhaps newer than these."""
        [*new] = self._new(published)
        return self._copy.arrive() if new else published

    def close(self) -> None:
        """See `WeightCopies`."""
        self._copy.channel.closed.set()


class CountedRows:
    """Passes rows on once, with a checksum of their bits and the names of the weights."""

    def __init__(self, rows: Iterable[Rows]) -> None:
        self.rows = rows
        self.names: set[str] = set()
        self._digest = RunningChecksum()

    def __iter__(self) -> Iterator[Rows]:
        for part in self.rows:
            self._digest.add(part)
            self.names.add(part.name)
            yield part

    @property
    def checksum(self) -> int:
        """Of all rows so far."""
        return self._digest.value


def arriving_copies(
    parts: Mapping[int, RolloutParts],
    process: RolloutProcess,
    *,
    line: "ExchangeLine",
    streaming: bool,
) -> ArrivingCopies:
    """Where the weights of the only policy arrive, in a stream beside those that act."""
    [(group, part)] = parts.items()
    channel = WeightChannel(line, process)
    copy: ArrivingCopy
    if isinstance(part.acting, nn.Module):
        kind = ModuleBeside if streaming else ModuleInPlace
        copy = kind(group, part.acting, channel, part.engine)
    elif streaming:
        copy = EngineBeside(group, part.acting, channel)
    else:
        copy = EngineInPlace(group, part.acting, channel)
    return ArrivingCopies(group, copy)
