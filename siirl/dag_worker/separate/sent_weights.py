"""Sends published weights to the rollout ranks that ask for them, out of the trained module.

    sync    the version is published, unless it is the published one; nothing is sent or stored
    serve   rank 0 invites the rollout ranks that wait (`Exchange.receivers`), and all training
            ranks gather the weights, which go to them bucket by bucket

Training ranks serve at the end of a step, and whenever they wait for rollouts: then the module
still has the published weights. A rollout rank that dies ends the transfer; the others, and its
replacement, ask again. The additional memory is one bucket. Only the newest version can be sent: a
schedule that rolls out ahead, and a run of several agents, store weights instead
(`siirl.dag_worker.separate.published_weights`). Left out: receiving
(`siirl.dag_worker.separate.arriving_weights`).
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from torch.profiler import record_function

from siirl.dag_worker.separate.exchange_messages import Receiver, RolloutProcess, Weights
from siirl.dag_worker.separate.group_buckets import OpenGroup, SentBuckets, machine_name
from siirl.dag_worker.separate.published_weights import WeightPublisher
from siirl.engine.training.weight_buckets import ALIGNMENT, send
from siirl.engine.training.weight_sync import SYNCED, CheckedWeights
from siirl.errors import InvariantError, RunFailed
from siirl.models.checksum import RunningChecksum, joined_checksum
from siirl.models.stored_tensors import local_part
from siirl.models.weight_rows import in_rows
from siirl.occupation import OCCUPATION
from siirl.params import sizes
from siirl.reporting.metrics import Value

logger = logging.getLogger(__name__)

BUCKET_BYTES = sizes.WEIGHT_BUCKET_BYTES
ATTEMPTS = 3  # a death breaks off one transfer; a closed network breaks off all of them


@dataclass(frozen=True)
class Opened:
    """A transfer that rank 0 has opened."""

    whole: bool
    """Whether a rollout rank needs the frozen weights."""
    members: str
    """The rollout ranks, in words."""


class WeightSender(WeightPublisher):
    """Publishes versions, and sends the weights to those that ask; see `WeightPublisher`."""

    _expected = False
    """Whether weights were published that the rollout ranks have not been offered."""
    _sent_bytes = 0
    """Bytes sent since the last `transfers`; to several rollout ranks they count once."""
    _reported_s = 0.0
    """The part of `sending_s` that `transfers` has reported."""
    _broken = 0
    """Number of the last transfers that all broke off."""

    def sync(self) -> None:
        """Publish the current weights as those of the running step. If they are the published ones,
        rollout ranks that have those keep them, and only others get them.

        Raises:
            InvariantError: The weights are not finite.
        """
        version = self.trained.steps
        if self._checksum is None:
            self._frozen.begin()
        state = self.trained.module.state_dict().items()
        parts = ((name, local_part(each)) for name, each in state)
        own = CheckedWeights(in_rows(parts, dtypes=self.acting_dtypes()))
        checksum = RunningChecksum(own).value
        own.require_finite(self.ranks, version=version)
        checksum = joined_checksum(self.ranks.gather_objects(checksum))
        same = checksum == self._checksum
        self.unchanged = version > self.version and same
        if same and version == self.version:
            return
        probe = None if self.probe is None else self.probe()
        if self.ranks.rank == 0:
            published = Weights(self.step, version, buckets=(), checksum=checksum, probe=probe)
            self.line.call("publish", self.group, published)
        self._checksum = checksum
        self.version = version
        self._expected = True

    def serve(self) -> None:
        """Send the weights to the rollout ranks that wait for them; every training rank calls it.

        Raises:
            RunFailed: Several transfers have broken off, one after another.
        """
        receivers = self._receivers() if self.ranks.rank == 0 else {}
        self._expected = False
        begin = time.perf_counter()
        opened, sent = self._open(receivers) if receivers else (None, None)
        opened = self.ranks.broadcast_object(opened)
        if opened is None:
            return
        if self.ranks.rank != 0:
            begin = time.perf_counter()
        if self.trained.steps != self.version:
            raise InvariantError(
                f"Rollout ranks ask for the weights after {self.version} updates, but the policy "
                f"was updated {self.trained.steps} times: let a sync_weights node follow each "
                "node that trains."
            )
        doing = f"sends the weights of step {self.step} to {opened.members}"
        with OCCUPATION.doing(doing), record_function(SYNCED):
            self._send(opened, sent)
        self.sending_s += time.perf_counter() - begin
        problem = self.ranks.broadcast_object(None if sent is None else sent.problem)
        self._note(problem, opened)

    def transfers(self) -> dict[str, Value]:
        """See `WeightPublisher`; transfers that broke off are counted up to their last bucket."""
        seconds, num_bytes = self.sending_s - self._reported_s, self._sent_bytes
        self._reported_s, self._sent_bytes = self.sending_s, 0
        return {"sync/seconds": seconds, "sync/bytes": float(num_bytes)}

    def _receivers(self) -> dict[RolloutProcess, Receiver]:
        found: dict[RolloutProcess, Receiver]
        if not self._expected:  # does not wait
            found = self.line.call("receivers", False)
            return found
        with OCCUPATION.doing("waits for rollout ranks to ask for weights", waiting=True):
            found = self.line.call("receivers", True)
        return found

    def _open(self, receivers: Mapping[RolloutProcess, Receiver]) -> tuple[Opened, SentBuckets]:
        members = sorted(receivers)
        own = machine_name()
        shared = all(each.machine == own for each in receivers.values())
        numbers = ", ".join(str(process.rank) for process in members)
        with OCCUPATION.doing(f"connects to rollout rank {numbers}"):
            group = OpenGroup(self.line.address(), members=len(members))
            self.line.call("open_round", group.address, group.port, members, shared)
            sent = SentBuckets(group, shared=shared, pins=self.trained.device.type == "cuda")
        whole = any(each.whole for each in receivers.values())
        return Opened(whole, f"rollout rank {numbers}"), sent

    def _send(self, opened: Opened, sent: SentBuckets | None) -> None:
        """All training ranks gather the weights, and rank 0 sends them."""
        still = self._frozen.names(self.ranks)
        names = self.trained.module.state_dict()
        without = frozenset() if opened.whole else still
        weights = CheckedWeights(
            self.trained.weights_in_turn(without=without, dtypes=self.acting_dtypes())
        )
        if sent is None:
            for _ in weights:
                pass
            return
        size = sum(
            each.numel() * each.element_size() + ALIGNMENT
            for name, each in names.items()
            if name not in without
        )
        checksum = send(weights, sent, bucket_bytes=min(BUCKET_BYTES, size + 1))
        sent.commit(checksum)
        self._sent_bytes += sent.delivered_bytes

    def _note(self, problem: str | None, opened: Opened) -> None:
        """Count transfers that broke off; raise RunFailed after several."""
        self._broken = 0 if problem is None else self._broken + 1
        if problem is None:
            return
        what = f"The transfer of the weights of step {self.step} to {opened.members} broke off"
        if self._broken == ATTEMPTS:
            raise RunFailed(
                f"{what}, like the {ATTEMPTS - 1} before it: {problem} Rollout ranks connect to "
                "ephemeral ports of training rank 0: open them between the machines "
                "(docs/clusters.md)."
            )
        if self.ranks.rank == 0:
            logger.warning("%s: %s The ranks that live ask again.", what, problem)
