"""Sends weights to a server by a collective: each bucket is broadcast in a gloo group of this
process and the server's workers.

A group lives for one sync, so a restarted server needs no special case. The run listens at its
address towards the server. Once all have connected, its ports drop further packets, and a
connection that is not a member's ends the sync (`siirl.engine.training.port_guard`). Left out:
NCCL. Weights of a GPU pass through host memory.
"""

import datetime
import json
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import distributed

from siirl.engine.rollout.server.handshake import call_workers
from siirl.engine.rollout.server.server_link import ServerError, ServerLink
from siirl.engine.training.network import own_address_towards
from siirl.engine.training.port_guard import admit_ranks_only, open_sockets
from siirl.engine.training.weight_buckets import Entry, WeightTransport
from siirl.errors import RunFailed

JOIN_WITHIN_S = 30.0  # after the workers were called
LOOK_EVERY_S = 0.002
ROOT = 0  # the run; workers follow
HTTP_PORTS = {"http": 80, "https": 443}


class WeightGroup:
    """A gloo group for one sync.

    Args:
        store: Store through which the members exchange addresses.
        address: Address of this process, at which gloo listens.
        rank: Number of this process.
        ranks: Number of members; all make the group at the same time.
        timeout_s: Longest wait for another member.

    Raises:
        InvariantError: A process outside the group has connected.
        RuntimeError: A member did not connect in time.
    """

    def __init__(
        self, store: distributed.Store, *, address: str, rank: int, ranks: int, timeout_s: float
    ) -> None:
        gloo: Any = distributed.ProcessGroupGloo  # has no type stubs
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=address)]
        options._timeout = datetime.timedelta(seconds=timeout_s)
        self.store = store
        self.group = gloo(store, rank, ranks, options)
        self.group.barrier().wait()  # all have connected: their ports may be closed

    def broadcast(self, buffer: torch.Tensor) -> Any:
        """Begin to copy the run's `buffer` [bytes] into that of every worker; returns the work."""
        options = distributed.BroadcastOptions()
        options.rootRank = ROOT
        return self.group.broadcast([buffer], options)


def open_store(address: str, *, ranks: int) -> tuple[distributed.TCPStore, int]:
    """A store for `ranks` members at `address` of this machine, and its port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family)
    port: int = listener.getsockname()[1]
    store = distributed.TCPStore(
        address,
        port,
        ranks,
        is_master=True,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=JOIN_WITHIN_S),
        master_listen_fd=listener.detach(),
    )
    return store, port


def join_group(host: str, port: int, *, rank: int, ranks: int) -> WeightGroup:
    """A worker's side of the group that a run opens at `host` and `port`.

    Raises:
        RuntimeError: The run does not listen there.
    """
    before = open_sockets()
    store = distributed.TCPStore(
        host, port, ranks, timeout=datetime.timedelta(seconds=JOIN_WITHIN_S)
    )
    address = own_address_towards(host, port)
    group = WeightGroup(store, address=address, rank=rank, ranks=ranks, timeout_s=JOIN_WITHIN_S)
    admit_ranks_only(store, rank=rank, ranks=ranks, before=before)
    return group


class GroupRoute:
    """A `WeightRoute` by a collective.

    Args:
        timeout_s: Seconds for a bucket.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self.timeout_s = timeout_s

    @contextmanager
    def open(self, link: ServerLink) -> Iterator[WeightTransport]:
        """See `WeightRoute`."""
        try:
            group = self._group(link)
            try:
                yield GroupBuckets(group, link)
            finally:  # also ends a broadcast that the workers did not join
                link.wait(call_workers(link, "siirl_leave_group"))
        except ServerError as error:
            raise RunFailed(
                f"{error} With actor_rollout_ref.rollout.server.weights=collective the server's "
                "workers connect to this process: allow this in its firewall, or set "
                "weights=folder."
            ) from error

    def close(self) -> None:
        """See `WeightRoute`."""

    def _group(self, link: ServerLink) -> WeightGroup:
        workers = len(link.wait(call_workers(link, "siirl_describe")))
        place = urlsplit(link.url)
        assert place.hostname is not None
        address = own_address_towards(
            place.hostname, place.port or HTTP_PORTS.get(place.scheme, HTTP_PORTS["http"])
        )
        before = open_sockets()
        ranks = 1 + workers
        store, port = open_store(address, ranks=ranks)
        joining = link.start(call_workers(link, "siirl_join_group", address, str(port), str(ranks)))
        try:
            group = WeightGroup(
                store, address=address, rank=ROOT, ranks=ranks, timeout_s=self.timeout_s
            )
            admit_ranks_only(store, rank=ROOT, ranks=ranks, before=before)
        except RuntimeError as error:
            joining.result()  # its error is more specific
            raise ServerError(
                f"The workers of the inference server at {link.url} did not connect to {address} "
                f"({error})."
            ) from error
        joining.result()
        return group


class GroupBuckets:
    """A `WeightTransport` whose buckets are broadcast.

    Args:
        group: Process group of this process and the server's workers.
        link: Announces each bucket to the workers.
    """

    def __init__(self, group: WeightGroup, link: ServerLink) -> None:
        self.group, self.link = group, link

    def buffer(self, size: int) -> torch.Tensor:
        """See `WeightTransport`."""
        return torch.empty(size, dtype=torch.uint8)

    def deliver(self, entries: Sequence[Entry], buffer: torch.Tensor) -> None:
        """See `WeightTransport`."""
        packed = json.dumps([entry.packed() for entry in entries])
        content = buffer[: entries[-1].end]
        taken = self.link.start(
            call_workers(self.link, "siirl_take_broadcast", str(len(content)), packed)
        )
        _both(self.group.broadcast(content), taken)

    def finish(self) -> None:
        """See `WeightTransport`."""


def _both(sent: Any, taken: "Future[list[Any]]") -> None:
    """Wait for a broadcast and the answer of the workers; an error of theirs ends the wait."""
    while not sent.is_completed() and not taken.done():
        time.sleep(LOOK_EVERY_S)
    taken.result()
    sent.wait()
