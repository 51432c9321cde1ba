"""Answers with 224 x 224 images per second, and their processor time: EnvPool against
gymnasium's AsyncVectorEnv with shared memory, and against zmq with out-of-band pickles.

    python -m benchmarks.transport_throughput
    python -m benchmarks.transport_throughput --rounds 1 --seconds 2     # a quick look

The environment does nothing (`NullEnv`), so only the transport is measured: an action of one step
goes to a process, and an observation of 150 kB comes back. Every contender has the same
environments, processes and cores, and in each round they take turns. Ratios are taken within a
round, so that other load on the machine favours none; the median over rounds is reported, with
its range.

- `async_vector`: shared memory; every environment waits for all others. With one environment
  per process, and with as many as the pool has; the better counts.
- `zmq`: processes behind PAIR sockets, pickle protocol 5, arrays as separate frames.
- `pool`: EnvPool on Ray. `pool_two_machines`: the same without shared memory, as it is between
  machines (over the loopback device).
- `pool_in_process`: EnvPool without servers. Nothing is transported, so this is the cost of the
  environment, the event loop, the checks of every answer and the record for a replay.

Processor time is that of this process and of those it started, without Ray's own daemons.

Left out: observations that are compared or shown to a policy, and networks between machines.
"""

import argparse
import asyncio
import functools
import json
import multiprocessing
import os
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import gymnasium
import numpy as np

from benchmarks.env_throughput import RESULTS, best
from benchmarks.measured_on import describe_machine
from benchmarks.processes import descendants_of
from benchmarks.rate_ratios import summarise_ratios
from benchmarks.throughput_envs import NullEnv, PlainEnv, finished
from siirl.env_server.pool import EnvPool
from siirl.env_server.ray_transport import RayTransport, ReadyServer
from siirl.env_server.transports import TRANSPORTS

NULL = "benchmarks.throughput_envs:NullEnv"
KWARGS: dict[str, Any] = {"image_size": 224}
ACTIONS = np.zeros((1, 4), np.float32)
SHARED = (
    "Other jobs ran on the machine meanwhile: compare the contenders, not the rates with others'."
)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Contender(Protocol):
    """Steps environments for a while."""

    def run(self, seconds: float) -> int:
        """Step for about `seconds`; returns the number of answers."""

    def close(self) -> None:
        """End all processes."""


class AsyncVector:
    """gymnasium.vector.AsyncVectorEnv with shared memory: a process an environment."""

    def __init__(self, *, num_envs: int) -> None:
        make = [
            functools.partial(PlainEnv, NULL, KWARGS, chunk=1, index=index)
            for index in range(num_envs)
        ]
        self._envs = gymnasium.vector.AsyncVectorEnv(make, context="spawn", shared_memory=True)
        self._envs.reset(seed=0)
        self._actions = np.repeat(ACTIONS, num_envs, axis=0)

    def run(self, seconds: float) -> int:
        """See `Contender.run`."""
        answers, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            self._envs.step(self._actions)
            answers += self._envs.num_envs
        return answers

    def close(self) -> None:
        """See `Contender.close`."""
        self._envs.close()


class Zmq:
    """Processes behind zmq's PAIR sockets; an environment gets its next action at once."""

    def __init__(self, *, num_servers: int, envs_per_server: int) -> None:
        import zmq

        self._folder = tempfile.TemporaryDirectory()
        self._context = zmq.Context()
        self._envs_per_server = envs_per_server
        self._sockets, self._processes = [], []
        spawn = multiprocessing.get_context("spawn")
        for index in range(num_servers):
            address = f"ipc://{self._folder.name}/{index}"
            connected = self._context.socket(zmq.PAIR)
            connected.bind(address)
            process = spawn.Process(target=_serve_zmq, args=(address, envs_per_server), daemon=True)
            process.start()
            self._sockets.append(connected)
            self._processes.append(process)
        self.run(0.0)

    def run(self, seconds: float) -> int:
        """See `Contender.run`."""
        import zmq

        poller, answers = zmq.Poller(), 0
        waiting = dict.fromkeys(self._sockets, self._envs_per_server)
        for connected in self._sockets:
            poller.register(connected, zmq.POLLIN)
            for env in range(self._envs_per_server):
                connected.send(pickle.dumps((env, ACTIONS), protocol=5))
        until = time.perf_counter() + seconds
        while sum(waiting.values()):
            for connected, _ in poller.poll():
                head, *arrays = connected.recv_multipart(copy=False)
                env, _ = pickle.loads(head.buffer, buffers=[part.buffer for part in arrays])
                answers += 1
                if time.perf_counter() < until:
                    connected.send(pickle.dumps((env, ACTIONS), protocol=5))
                else:
                    waiting[connected] -= 1
        return answers

    def close(self) -> None:
        """See `Contender.close`."""
        for connected in self._sockets:
            connected.send(b"")
        for process in self._processes:
            process.join()
        self._context.destroy(linger=0)
        self._folder.cleanup()


def _serve_zmq(address: str, num_envs: int) -> None:
    import zmq

    environments = [NullEnv(**KWARGS) for _ in range(num_envs)]
    connected = zmq.Context().socket(zmq.PAIR)
    connected.connect(address)
    while request := connected.recv():
        env, actions = pickle.loads(request)
        arrays: list[pickle.PickleBuffer] = []
        result = finished(environments[env].step_chunk(actions))
        if result[3]:
            finished(environments[env].reset())
        head = pickle.dumps((env, result), protocol=5, buffer_callback=arrays.append)
        connected.send_multipart([head, *arrays], copy=False)


class FarTransport(RayTransport):
    """Takes every server for one on another machine."""

    def _open_area(self, opened: ReadyServer) -> None:
        return None


TRANSPORTS["far"] = f"{__name__}:FarTransport"


class Pool:
    """EnvPool; every slot steps on its own."""

    def __init__(self, *, num_servers: int, envs_per_server: int, cluster: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._pool = EnvPool(NULL, KWARGS, num_servers, envs_per_server, cluster=cluster)
        self._loop.run_until_complete(self._pool.start())

    def run(self, seconds: float) -> int:
        """See `Contender.run`."""
        return self._loop.run_until_complete(self._all_slots(time.perf_counter() + seconds))

    def close(self) -> None:
        """See `Contender.close`."""
        self._loop.run_until_complete(self._pool.close())
        self._loop.close()

    async def _all_slots(self, until: float) -> int:
        slots = range(self._pool.num_slots)
        return sum(await asyncio.gather(*(self._one_slot(seed, until) for seed in slots)))

    async def _one_slot(self, seed: int, until: float) -> int:
        answers, ended = 0, True
        async with self._pool.slot() as slot:
            while time.perf_counter() < until:
                if ended:
                    await slot.reset(seed=seed)
                    ended = False
                else:
                    *_, ended, _ = await slot.step_chunk(ACTIONS)
                answers += 1
        return answers


def make_contenders(*, num_servers: int, envs_per_server: int) -> dict[str, Contender]:
    """Everything that is measured, started."""
    many = num_servers * envs_per_server
    sizes = {"num_servers": num_servers, "envs_per_server": envs_per_server}
    return {
        f"async_vector_{num_servers}": AsyncVector(num_envs=num_servers),
        f"async_vector_{many}": AsyncVector(num_envs=many),
        "zmq": Zmq(**sizes),
        "pool": Pool(**sizes, cluster="ray"),
        "pool_two_machines": Pool(**sizes, cluster="far"),
        "pool_in_process": Pool(**sizes, cluster="local"),
    }


def measure(
    contenders: Mapping[str, Contender], *, rounds: int, seconds: float, ignored: set[int]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Answers per second and processor microseconds per answer, of every contender and round.

    `ignored`: processes whose time does not count.
    """
    for contender in contenders.values():
        contender.run(1.0)
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    costs: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, contender in contenders.items():
            spent_s, begin = processor_s(ignored), time.perf_counter()
            answers = contender.run(seconds)
            rates[name].append(answers / (time.perf_counter() - begin))
            costs[name].append((processor_s(ignored) - spent_s) / answers * 1e6)
            print(
                f"round {number + 1} of {rounds}: {name:<18} {rates[name][-1]:7.0f} answers/s "
                f"{costs[name][-1]:6.0f} us",
                flush=True,
            )
    return rates, costs


def processor_s(ignored: set[int]) -> float:
    """Processor seconds that this process and those it started have used so far."""
    ticks = 0
    for process in {os.getpid(), *descendants_of({os.getpid()})} - ignored:
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended, which no contender's process does
        ticks += int(fields[11]) + int(fields[12])  # user and system
    return ticks / TICKS_PER_S


def markdown(
    rates: Mapping[str, list[float]],
    costs: Mapping[str, list[float]],
    ratios: Mapping[str, Mapping[str, Any]],
) -> str:
    """Two small tables."""
    lines = [
        "| contender | answers/s, median | range | processor us an answer |",
        "|---|---|---|---|",
    ]
    for name, values in rates.items():
        lines.append(
            f"| {name} | {statistics.median(values):.0f} | {min(values):.0f} to {max(values):.0f} "
            f"| {statistics.median(costs[name]):.0f} |"
        )
    lines += ["", "| ratio within a round | median | range |", "|---|---|---|"]
    for name, ratio in ratios.items():
        lines.append(
            f"| {name} | {ratio['median']:.2f} | {ratio['lowest']:.2f} to {ratio['highest']:.2f} |"
        )
    return "\n".join([*lines, ""])


def main(arguments: Iterable[str] | None = None) -> None:
    """Measure, print the tables, write them and the raw numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each contender and round")
    parser.add_argument("--num-servers", type=int, default=2, help="the shipped default")
    parser.add_argument("--envs-per-server", type=int, default=6, help="the shipped default")
    parser.add_argument("--output", type=Path, default=RESULTS / "transport_throughput.json")
    flags = parser.parse_args(None if arguments is None else list(arguments))

    import ray

    ray.init(include_dashboard=False, log_to_driver=False)
    daemons = descendants_of({os.getpid()})
    contenders = make_contenders(
        num_servers=flags.num_servers, envs_per_server=flags.envs_per_server
    )
    try:
        rates, costs = measure(
            contenders, rounds=flags.rounds, seconds=flags.seconds, ignored=daemons
        )
    finally:
        for contender in contenders.values():
            contender.close()
        ray.shutdown()
    baseline = best(rates, "async_vector")
    ratios = summarise_ratios(
        rates,
        {
            "pool against AsyncVectorEnv": ("pool", baseline),
            "pool against zmq": ("pool", "zmq"),
            "cause: shared memory": ("pool", "pool_two_machines"),
        },
    ) | summarise_ratios(
        costs,
        {
            "processor time, pool against AsyncVectorEnv": ("pool", baseline),
            "processor time, pool against zmq": ("pool", "zmq"),
        },
    )
    table = markdown(rates, costs, ratios)
    command = " ".join(["python -m benchmarks.transport_throughput", *sys.argv[1:]])
    result = {
        "command": command,
        "machine": describe_machine(),
        "note": SHARED,
        "answers_per_s": rates,
        "processor_us": costs,
        "ratios": ratios,
    }
    flags.output.write_text(json.dumps(result, indent=1) + "\n")
    flags.output.with_suffix(".md").write_text(f"# {command}\n\n{SHARED}\n\n{table}")
    print(table)


if __name__ == "__main__":
    main()
