"""Cost of the data plane: bytes that rebalancing moves, processor time of the coordinator, and its
queues against a plain one.

    python -m benchmarks.data_plane
    python -m benchmarks.data_plane --ranks 2 8 --seeds 0 --queue-sizes 1000    # a quick look

Ranks are simulated; the coordinator's actor class, the division of rows and the transfers that each
rank receives are the real ones. Four questions:

1. **Bytes moved** by `data_rebalance`, against the fewest of any division whose busiest rank
   has no more work than this one's (or 2 % above the mean, whichever is more). Each rank above that
   has to give away rows of at least its surplus; the cheapest such rows are found exactly, by
   dynamic programming over their sizes. Control: a division that ignores the rows' places.
2. **Busiest process**: what the busiest rank sends and receives, against a controller that collects
   all rows and hands them out; and the metadata that the coordinator sends and receives.
3. **Processor time of the coordinator** per step: every rank puts its metadata at a different time,
   asks for its share, and acknowledges it. Pickling and unpickling count.
4. **A put and a filtered get** with a number of waiting samples, against a list behind a lock
   that is searched from the front.

Rows: `text` has responses of lognormal length in groups of eight, weighed by the FLOPs of a
7-billion-parameter decoder. `robots` has 1 to 15 chunks of a 224 x 224 image, weighed by chunks.

Left out: Ray's remote calls (one put, one get and one acknowledgement per rank and step), the
network, packing rows, and leftovers, which go through Ray's object store.
"""

import argparse
import asyncio
import json
import pickle
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.env_throughput import RESULTS
from benchmarks.measured_on import describe_machine
from siirl.data_coordinator.balance import get_seqlen_balanced_partitions
from siirl.data_coordinator.coordinator import DataCoordinator
from siirl.data_coordinator.partition import TOLERANCE
from siirl.data_coordinator.queues import PartitionRequest, QueueKey, Share
from siirl.data_coordinator.ray_edge import CoordinatorActor
from siirl.data_coordinator.sample_info import SampleInfo

SHARED = (
    "Other jobs ran on the machine meanwhile. Bytes do not depend on that; processor times are "
    "longer than alone."
)
GROUP_SIZE = 8
# int64 ids, masks and positions, float32 log-probs
BYTES_PER_TOKEN = 44
BYTES_PER_CHUNK = 224 * 224 * 3 + 8 * 7 * 12  # an image; ids, masks and log-probs of 8 actions
# Qwen2.5-7B, as siirl.models.training_flops counts:
# 6 (body tokens + attention tokens^2 + head response)
BODY, ATTENTION, HEAD = 6.5e9, 28 * 28 * 128, 152_064 * 3584
TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class Rows:
    """A rank's rows: sizes in whole units, bytes of a unit, and work."""

    units_N: NDArray[np.int64]
    unit_bytes: int
    flops_N: NDArray[np.float64]

    def infos(self, rank: int) -> list[SampleInfo]:
        """Metadata as a rank puts it."""
        return [
            SampleInfo(
                sum_tokens=units,
                response_length=units,
                uid=f"{rank}-{row}",
                node_id=f"machine-{rank // 8}",
                dict_info={"uid": f"{rank}-{row}", "index": f"{rank}-{row // GROUP_SIZE}"},
                size=units * self.unit_bytes,
                flops=flops,
            )
            for row, (units, flops) in enumerate(
                zip(self.units_N.tolist(), self.flops_N.tolist(), strict=True)
            )
        ]


def text_rows(random: np.random.Generator, count: int) -> Rows:
    """Prompts of 50 to 500 tokens, each with `GROUP_SIZE` responses of similar length."""
    groups = -(-count // GROUP_SIZE)
    prompts = np.repeat(random.integers(50, 500, groups), GROUP_SIZE)[:count]
    median = np.repeat(np.exp(random.normal(np.log(400), 0.6, groups)), GROUP_SIZE)[:count]
    responses = np.clip(median * np.exp(random.normal(0, 0.4, count)), 1, 4096).astype(np.int64)
    tokens = prompts + responses
    flops = 6 * (BODY * tokens + ATTENTION * tokens.astype(float) ** 2 + HEAD * responses)
    return Rows(tokens, BYTES_PER_TOKEN, flops)


def robot_rows(random: np.random.Generator, count: int) -> Rows:
    """Episodes of a task with a success rate of its own; failures last all 15 chunks."""
    groups = -(-count // GROUP_SIZE)
    rate = np.repeat(random.uniform(0.1, 0.9, groups), GROUP_SIZE)[:count]
    chunks = np.where(random.random(count) < rate, random.integers(5, 13, count), 15)
    return Rows(chunks, BYTES_PER_CHUNK, chunks.astype(float))


ROWS: dict[str, Callable[[np.random.Generator, int], Rows]] = {
    "text": text_rows,
    "robots": robot_rows,
}


def bytes_moved(rows: Sequence[Rows]) -> dict[str, float]:
    """Shares of all bytes that a rebalancing of these ranks moves, and what it achieves."""
    ranks = len(rows)
    shares, metadata = shares_of(rows)
    sizes = [{info.uid: info for info in part.infos(rank)} for rank, part in enumerate(rows)]
    left = [
        [sizes[rank].pop(uid) for uids in share.transfers.leaving.values() for uid in uids]
        for rank, share in enumerate(shares)
    ]
    received = np.zeros(ranks)
    loads = np.array([part.flops_N.sum() for part in rows])
    for rank, share in enumerate(shares):
        gone = {info.uid: info for info in left[rank]}
        for other, uids in share.transfers.leaving.items():
            received[other] += sum(gone[uid].size for uid in uids)
            loads[other] += sum(gone[uid].flops for uid in uids)
        loads[rank] -= sum(info.flops for info in left[rank])
    sent = np.array([sum(info.size for info in part) for part in left])
    total = sum(int(part.units_N.sum()) * part.unit_bytes for part in rows)
    mean = loads.mean()
    cap = max(mean * (1 + TOLERANCE), loads.max())
    fewest = sum(
        fewest_units(part, need=part.flops_N.sum() - cap, enough=int(given) // part.unit_bytes)
        * part.unit_bytes
        for part, given in zip(rows, sent, strict=True)
    )
    before = np.array([part.flops_N.sum() for part in rows])
    return {
        "ranks": ranks,
        "moved": float(sent.sum()) / total,
        "fewest": fewest / total,
        "over_fewest": float(sent.sum()) / fewest if fewest else 1.0 + float(sent.sum() > 0),
        "by_work_only": moved_by_work_only(rows) / total,
        "imbalance_before": float(before.max() / mean) - 1,
        "imbalance": float(loads.max() / mean) - 1,
        "busiest_rank": float((sent + received).max() / total),
        "controller": 2.0,
        "busiest_rank_bytes": float((sent + received).max()),
        "controller_bytes": 2.0 * total,
        "coordinator_bytes": float(metadata),
    }


def fewest_units(rows: Rows, *, need: float, enough: int) -> int:
    """Units of the smallest rows with `need` work together; `enough` units are known to do.

    work[c]: the most work of rows with at most c units together (0/1 knapsack).
    """
    if need <= 0:
        return 0
    work = np.zeros(enough + 1)
    for units, flops in zip(rows.units_N.tolist(), rows.flops_N.tolist(), strict=True):
        if units <= enough:
            work[units:] = np.maximum(work[units:], work[: enough + 1 - units] + flops)
    # rounding of the planner's whole work units must not make its own choice too little
    return min(enough, int(np.searchsorted(work, need * (1 - 1e-9))))


def moved_by_work_only(rows: Sequence[Rows]) -> float:
    """Bytes that move where Karmarkar and Karp's part r goes to rank r."""
    home = np.repeat(np.arange(len(rows)), [len(part.units_N) for part in rows])
    units = np.concatenate([part.units_N for part in rows])
    flops = np.concatenate([part.flops_N for part in rows])
    work = np.round(flops / flops.mean() * 2**20).astype(np.int64)
    parts = get_seqlen_balanced_partitions(work.tolist(), len(rows), False)
    moved = sum(int(units[part][home[part] != rank].sum()) for rank, part in enumerate(parts))
    return float(moved * rows[0].unit_bytes)


def shares_of(rows: Sequence[Rows]) -> tuple[list[Share], int]:
    """Every rank's share by the coordinator, and the bytes of metadata that went in and out."""
    coordinator, key = DataCoordinator(), QueueKey("rebalance", 0)
    request, metadata = PartitionRequest(partitions=len(rows)), 0
    for rank, part in enumerate(rows):
        infos = part.infos(rank)
        metadata += len(pickle.dumps(infos, protocol=5))
        coordinator.put_batch(key, infos, [None] * len(infos), source=rank, sources=len(rows))
    shares = []
    for rank in range(len(rows)):
        share = coordinator.get_share(key, request, rank=rank)
        assert share is not None
        metadata += len(pickle.dumps(share, protocol=5))
        shares.append(share)
    return shares, metadata


def coordinator_step(rows: Sequence[Rows], *, seed: int) -> float:
    """Processor seconds of the coordinator in a step of these ranks, which come in any order."""
    puts = [pickle.dumps(part.infos(rank), protocol=5) for rank, part in enumerate(rows)]
    order = np.random.default_rng(seed).permutation(len(rows)).tolist()
    begin = time.process_time()
    asyncio.run(_step(puts, order))
    return time.process_time() - begin


async def _step(puts: Sequence[bytes], order: Sequence[int]) -> None:
    actor = CoordinatorActor(capacity=1 << 30, lease_seconds=TIMEOUT_S)
    key, request = QueueKey("rebalance", 0), PartitionRequest(partitions=len(puts))

    async def rank_does(rank: int) -> None:
        infos = pickle.loads(puts[rank])
        await actor.put_batch(key, infos, [None] * len(infos), rank, len(puts), TIMEOUT_S)
        share = await actor.get_share(key, request, rank, TIMEOUT_S)
        pickle.dumps(share, protocol=5)
        await actor.acknowledge(key, share.lease_id)

    tasks = []
    for rank in order:  # each waits for its share before the next one puts
        tasks.append(asyncio.create_task(rank_does(rank)))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert (await actor.stats())["waiting"] == 0


class LockedList:
    """The plain way: a list behind a lock, searched from the front at every get."""

    def __init__(self) -> None:
        self._lock, self._waiting = threading.Lock(), list[SampleInfo]()

    def put(self, info: SampleInfo) -> None:
        """Append a sample."""
        with self._lock:
            self._waiting.append(info)

    def get(self, accepts: Callable[[SampleInfo], bool]) -> SampleInfo:
        """Remove the first sample that is accepted."""
        with self._lock:
            place = next(place for place, info in enumerate(self._waiting) if accepts(info))
            return self._waiting.pop(place)


class Queue:
    """The coordinator, as a stream of one node."""

    def __init__(self) -> None:
        self._coordinator, self._key = DataCoordinator(capacity=1 << 30), QueueKey("train", 0)

    def put(self, info: SampleInfo) -> None:
        """Register a sample."""
        self._coordinator.put_batch(self._key, [info], [None])

    def get(self, accepts: Callable[[SampleInfo], bool]) -> SampleInfo:
        """Lease the first sample that is accepted, and acknowledge it."""
        lease = self._coordinator.get_batch(self._key, count=1, holder="0", filter_plugin=accepts)
        assert lease is not None
        self._coordinator.acknowledge(lease.lease_id)
        return lease.infos[0]


def microseconds(queue: LockedList | Queue, *, waiting: int, turns: int) -> float:
    """Processor time of a put and a get that skips `waiting` samples, which stay."""
    for number in range(waiting):
        queue.put(SampleInfo(uid=f"old-{number}", dict_info={"version": 0}))
    queue.put(SampleInfo(uid="first", dict_info={"version": 1}))
    queue.get(is_new)
    begin = time.process_time()
    for number in range(turns):
        queue.put(SampleInfo(uid=f"new-{number}", dict_info={"version": 1}))
        assert queue.get(is_new).uid == f"new-{number}"
    return (time.process_time() - begin) / turns * 1e6


def is_new(info: SampleInfo) -> bool:
    """A filter, as a consumer of the newest policy's samples has it."""
    return bool(info.dict_info["version"] == 1)


def measure(flags: argparse.Namespace) -> dict[str, Any]:
    """All four parts."""
    moved = []
    for kind, draw in ROWS.items():
        for ranks in flags.ranks:
            runs = [
                bytes_moved([draw(random, flags.rows) for _ in range(ranks)])
                for random in map(np.random.default_rng, flags.seeds)
            ]
            moved.append(
                {
                    "rows": kind,
                    **{name: statistics.mean(run[name] for run in runs) for name in runs[0]},
                }
            )
            print(moved[-1], flush=True)
    coordinator = []
    for ranks in flags.coordinator_ranks:
        rows = [
            text_rows(np.random.default_rng(rank), flags.rows_of_coordinator)
            for rank in range(ranks)
        ]
        seconds = statistics.median(coordinator_step(rows, seed=seed) for seed in flags.seeds)
        coordinator.append(
            {"ranks": ranks, "seconds": seconds, "milliseconds_a_rank": seconds / ranks * 1e3}
        )
        print(coordinator[-1], flush=True)
    queues = []
    for waiting in flags.queue_sizes:
        plain = microseconds(LockedList(), waiting=waiting, turns=20)
        ours = microseconds(Queue(), waiting=waiting, turns=2000)
        queues.append(
            {"waiting": waiting, "list_us": plain, "coordinator_us": ours, "ratio": plain / ours}
        )
        print(queues[-1], flush=True)
    return {"moved": moved, "coordinator": coordinator, "queues": queues}


def markdown(result: dict[str, Any], *, rows_of_coordinator: int) -> str:
    """Four tables."""
    lines = [
        "## Bytes moved by rebalancing, shares of all bytes",
        "",
        "| rows | ranks | moved | fewest | moved / fewest | without looking at places | imbalance "
        "before | after |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in result["moved"]:
        lines.append(
            f"| {run['rows']} | {run['ranks']:.0f} | {run['moved']:.2%} | {run['fewest']:.2%} | "
            f"{run['over_fewest']:.2f} "
            f"| {run['by_work_only']:.0%} | {run['imbalance_before']:.1%} | {run['imbalance']:.2%} "
            "|"
        )
    lines += [
        "",
        "## Busiest process, MB a step",
        "",
        "| rows | ranks | busiest rank | a controller of all rows | coordinator's metadata |",
        "|---|---|---|---|---|",
    ]
    for run in result["moved"]:
        lines.append(
            f"| {run['rows']} | {run['ranks']:.0f} | {run['busiest_rank_bytes'] / 1e6:.2f} "
            f"| {run['controller_bytes'] / 1e6:.1f} | {run['coordinator_bytes'] / 1e6:.2f} |"
        )
    lines += [
        "",
        f"## Processor time of the coordinator, {rows_of_coordinator} rows a rank",
        "",
        "| ranks | s a step | ms a rank |",
        "|---|---|---|",
    ]
    for run in result["coordinator"]:
        lines.append(
            f"| {run['ranks']} | {run['seconds']:.2f} | {run['milliseconds_a_rank']:.2f} |"
        )
    lines += [
        "",
        "## A put and a filtered get, processor time",
        "",
        "| waiting | list behind a lock, us | coordinator, us | ratio |",
        "|---|---|---|---|",
    ]
    for run in result["queues"]:
        lines.append(
            f"| {run['waiting']:,} | {run['list_us']:.0f} | {run['coordinator_us']:.0f} | "
            f"{run['ratio']:.1f} |"
        )
    return "\n".join([*lines, ""])


def main(arguments: Iterable[str] | None = None) -> None:
    """Measure, print the tables, write them and the numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8, 64, 256])
    parser.add_argument("--rows", type=int, default=64, help="of a rank, for bytes")
    parser.add_argument(
        "--coordinator-ranks", type=int, nargs="+", default=[64, 128, 256, 512, 1024]
    )
    parser.add_argument("--rows-of-coordinator", type=int, default=16, help="of a rank")
    parser.add_argument("--queue-sizes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=RESULTS / "data_plane.json")
    flags = parser.parse_args(None if arguments is None else list(arguments))
    result = measure(flags)
    command = " ".join(["python -m benchmarks.data_plane", *sys.argv[1:]])
    table = markdown(result, rows_of_coordinator=flags.rows_of_coordinator)
    head = {"command": command, "machine": describe_machine(), "note": SHARED}
    flags.output.write_text(json.dumps({**head, **result}, indent=1) + "\n")
    flags.output.with_suffix(".md").write_text(f"# {command}\n\n{SHARED}\n\n{table}")
    print(table)


if __name__ == "__main__":
    main()
