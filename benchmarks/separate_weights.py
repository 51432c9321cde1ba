"""A sync of weights to separate rollout ranks on one machine: the object store against transfers.

    python -m benchmarks.separate_weights
    python -m benchmarks.separate_weights --millions 50 --ranks 1      # a quick look

A training process has a module of float32 weights, and each rollout process another one that acts;
none of them does anything else. In turn:

- `store`: rank 0 stores the weights in Ray's object store, and each rollout process copies them
  into a second copy (schedules that roll out ahead, runs of several agents).
- `sent`: the rollout processes map rank 0's bucket and copy it in place (lockstep).
- `sent_beside`: the same into a second copy (a stream).
- `broadcast`: in place, by gloo over the loopback, as between machines.

Measured: seconds until the weights act on all rollout processes; seconds in which the training
process is occupied; peaks of /dev/shm and of the processes' own memory beyond the modules
themselves, in bytes per weight of a module. The mapped bucket has 64 MiB, and is added.

Left out: GPUs, networks between machines, and several training ranks.
"""

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.env_throughput import RESULTS
from benchmarks.measured_on import describe_machine
from siirl.dag_worker.separate import arriving_weights
from siirl.dag_worker.separate.edge import Edge
from siirl.dag_worker.separate.published_weights import WeightPublisher
from siirl.dag_worker.separate.ray_exchange import ExchangeLine, start_exchange
from siirl.dag_worker.separate.received_weights import stored_copies
from siirl.dag_worker.separate.rollout_ranks import RolloutParts
from siirl.dag_worker.separate.sent_weights import BUCKET_BYTES, WeightSender
from siirl.dag_worker.separate.weight_copies import WeightCopies
from siirl.engine.rollout.ledger import RolloutLedger
from siirl.engine.training.collectives import OneProcess
from siirl.models.weight_rows import in_rows

WAYS = ("store", "sent", "sent_beside", "broadcast")
WIDTH = 1000
LOOK_EVERY_S = 0.01


def policy(millions: int) -> nn.Sequential:
    """A layer for each million weights."""
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(millions)))


class Engine:
    """Gets the version of the weights."""

    def update_weights(self, version: int) -> None:
        """Set it."""
        self.version = version


class Rollout:
    """A rollout process."""

    def __init__(self, exchange: Any, rank: int, way: str, millions: int) -> None:
        torch.set_num_threads(1)
        if way == "broadcast":
            arriving_weights.machine_name = lambda: "another machine"
        self.line = ExchangeLine(exchange)
        self.process = self.line.call("join", rank)
        self.module = policy(millions)
        nothing: Any = None
        part = RolloutParts(
            *(nothing, nothing, Engine(), nothing, nothing), self.module, owner=0, closes=()
        )
        self.copies: WeightCopies[Any] = (
            stored_copies({0: part}, self.process, line=self.line)
            if way == "store"
            else arriving_weights.arriving_copies(
                {0: part}, self.process, line=self.line, streaming=way == "sent_beside"
            )
        )

    def ready(self) -> int:
        """The process id."""
        self.line.call("ready", self.process)
        return os.getpid()

    def receive(self) -> float:
        """Act with the newest weights; returns one of them."""
        published = None
        while published is None:
            published = self.line.call("weights", None, self.copies.step)
        self.copies.swap(self.copies.receive(published))
        return float(next(self.module[-1].parameters())[-1, -1])


class Trained:
    """The part of a TrainEngine that a sync uses."""

    device = torch.device("cpu")
    steps = 0

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def weights_in_turn(self, *, without: Any = (), dtypes: Any = None) -> Any:
        """See `TrainEngine`."""
        state = self.module.state_dict().items()
        return in_rows((each for each in state if each[0] not in without), dtypes=dtypes)


class Peaks(threading.Thread):
    """Peak of /dev/shm and of the processes' private memory, each beyond its start."""

    def __init__(self, pids: list[int]) -> None:
        super().__init__(daemon=True)
        self.pids, self.over = pids, threading.Event()
        self.start_shm, self.start_own = shm_bytes(), own_bytes(pids)
        self.shm = self.own = self.sum = 0

    def run(self) -> None:
        """Look until `over` is set."""
        while not self.over.wait(LOOK_EVERY_S):
            shm, own = shm_bytes() - self.start_shm, own_bytes(self.pids) - self.start_own
            self.shm, self.own = max(self.shm, shm), max(self.own, own)
            self.sum = max(self.sum, shm + own)


def shm_bytes() -> int:
    """Bytes used in /dev/shm."""
    place = os.statvfs("/dev/shm")
    return (place.f_blocks - place.f_bfree) * place.f_frsize


def own_bytes(pids: Iterable[int]) -> int:
    """Private memory of processes."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                total += 1024 * int(line.split()[1])
    return total


def measure(way: str, *, millions: int, ranks: int, syncs: int) -> dict[str, Any]:
    """One way with `ranks` rollout processes, in a Ray of its own: an object store keeps pages."""
    import ray

    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    try:
        return _measured(way, millions=millions, ranks=ranks, syncs=syncs)
    finally:
        ray.shutdown()


def _measured(way: str, *, millions: int, ranks: int, syncs: int) -> dict[str, Any]:
    import ray

    ledger = RolloutLedger(batch=2, max_staleness=0, ranks=ranks, streaming=False)
    exchange = start_exchange({0: Edge(ledger=ledger, node="get")})
    line = ExchangeLine(exchange)
    trained: Any = Trained(policy(millions))
    kind = WeightPublisher if way == "store" else WeightSender
    sender = kind(
        group=0,
        trained=trained,
        ranks=OneProcess(),
        line=line,
        acting_dtype=None,
    )
    remote: Any = ray.remote(Rollout)
    actors = [
        remote.options(num_cpus=0).remote(exchange, rank, way, millions) for rank in range(ranks)
    ]
    pids = ray.get([actor.ready.remote() for actor in actors])
    peaks = Peaks([os.getpid(), *pids])
    peaks.start()
    line.call("publish", 0, arriving_weights.Weights(0, 0, buckets=(), checksum=0))
    line.call("open", 0, 0, 0, None, [], [])
    seconds, occupied = [], []
    for step in range(syncs):
        trained.steps = sender.step = step
        with torch.no_grad():
            for layer in trained.module:
                layer.weight.fill_(step + 0.5)
        begin = time.perf_counter()
        sender.sync()
        line.call("step_done", step)
        answers = [actor.receive.remote() for actor in actors]
        sender.serve()
        occupied.append(time.perf_counter() - begin)
        while len(ray.wait(answers, num_returns=ranks, timeout=0)[0]) < ranks:
            sender.serve()
            time.sleep(0.001)
        seconds.append(time.perf_counter() - begin)
        assert ray.get(answers) == [step + 0.5] * ranks
    peaks.over.set()
    peaks.join()
    weights = millions * WIDTH * WIDTH
    mapped = BUCKET_BYTES if way.startswith("sent") else 0
    return {
        "way": way,
        "millions": millions,
        "rollout_ranks": ranks,
        "seconds": seconds,
        "occupied_s": occupied,
        "bytes": 4 * weights,
        "peak_shm": peaks.shm,
        "peak_own": peaks.own,
        "peak_mapped": mapped,
        "extra_bytes_per_weight": (peaks.sum + mapped) / weights,
    }


def markdown(found: list[dict[str, Any]]) -> str:
    """A table; the first sync, which makes the copies, is left out of the seconds."""
    lines = [
        "| weights | rollout ranks | way | seconds | training occupied, s | peak /dev/shm, MB "
        "| peak own memory, MB | mapped bucket, MB | bytes per weight |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in found:
        times = [
            f"{statistics.median(each[name][1:]):.2f} ({min(each[name][1:]):.2f} to "
            f"{max(each[name][1:]):.2f})"
            for name in ("seconds", "occupied_s")
        ]
        sizes = [f"{each[name] / 1e6:.0f}" for name in ("peak_shm", "peak_own", "peak_mapped")]
        row = [f"{each['millions']} M", each["rollout_ranks"], each["way"], *times, *sizes]
        row.append(f"{each['extra_bytes_per_weight']:.1f}")
        lines.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join([*lines, ""])


def main(arguments: Iterable[str] | None = None) -> None:
    """Measure, print the table, write it and the raw numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--millions", type=int, nargs="+", default=[50, 150], help="of weights")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="rollout ranks")
    parser.add_argument("--syncs", type=int, default=6, help="of each way")
    parser.add_argument("--output", type=Path, default=RESULTS / "separate_weights.json")
    flags = parser.parse_args(None if arguments is None else list(arguments))

    torch.set_num_threads(1)
    found = []
    for millions in flags.millions:
        for ranks in flags.ranks:
            for way in WAYS:
                found.append(measure(way, millions=millions, ranks=ranks, syncs=flags.syncs))
                print(markdown(found[-1:]).splitlines()[-1], flush=True)
    command = " ".join(["python -m benchmarks.separate_weights", *sys.argv[1:]])
    load = os.getloadavg()[0]
    note = (
        f"Load at the end, of these processes and of others: {load:.0f}, on {os.cpu_count()} cores."
    )
    result = {"command": command, "machine": describe_machine(), "note": note, "found": found}
    flags.output.write_text(json.dumps(result, indent=1) + "\n")
    flags.output.with_suffix(".md").write_text(f"# {command}\n\n{note}\n\n{markdown(found)}")
    print(markdown(found))


if __name__ == "__main__":
    main()
