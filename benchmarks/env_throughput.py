"""Rendered environment steps per second: EnvPool against gymnasium's AsyncVectorEnv.

    # environments alone, random actions
    python -m benchmarks.env_throughput
    # and rollouts of that policy's own episodes
    python -m benchmarks.env_throughput --policy assets/tiny_vla
    python -m benchmarks.env_throughput --rounds 1 --seconds 3           # a quick look

The same environment, image size, render settings, cores and run for all; contenders take turns in
rounds, so that other load on the machine affects all of them. Every ratio is taken within a round;
the median over rounds is reported, with its range. There are two baselines of AsyncVectorEnv: with
one action per step, each rendered, and with siirl's chunks (8 actions per step, rendered once).
Each has the number of environments that is fastest for it. Control: an environment that does
nothing.

Rollouts are in `benchmarks.rollout_throughput`.
"""

import argparse
import asyncio
import functools
import json
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks.measured_on import describe_machine
from benchmarks.rate_ratios import summarise_ratios
from benchmarks.throughput_envs import CHUNK, NUM_TASKS, PlainEnv, random_chunks
from siirl.env_server.pool import EnvPool

RESULTS = Path(__file__).parent / "results"
ACTION_SIZE = 4
NULL, REBUILT = (
    "benchmarks.throughput_envs:NullEnv",
    "benchmarks.throughput_envs:RebuiltMetaWorldEnv",
)


class Contender(ABC):
    """Something that steps environments for a while."""

    @abstractmethod
    def run(self, seconds: float) -> float:
        """Step with random actions for about `seconds`; returns environment steps per second."""

    @abstractmethod
    def close(self) -> None:
        """End all processes."""


class AsyncVector(Contender):
    """gymnasium.vector.AsyncVectorEnv: one process an environment, all wait for the slowest of each
    step.
    """

    def __init__(
        self, env_name: str, env_kwargs: Mapping[str, Any], *, num_envs: int, chunk: int
    ) -> None:
        make = [
            functools.partial(PlainEnv, env_name, env_kwargs, chunk=chunk, index=index)
            for index in range(num_envs)
        ]
        self._envs = gymnasium.vector.AsyncVectorEnv(make, context="spawn")
        for _ in range(
            NUM_TASKS
        ):  # every environment builds its simulators before the clock starts
            self._envs.reset(seed=0)
        chunks = [
            random_chunks(seed=index, chunk=chunk, size=ACTION_SIZE) for index in range(num_envs)
        ]
        stacked = [np.stack(each) for each in zip(*chunks, strict=True)]
        self._actions = stacked if chunk > 1 else [each[:, 0] for each in stacked]
        self._next = 0

    def run(self, seconds: float) -> float:
        """See `Contender.run`."""
        steps, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            *_, infos = self._envs.step(self._actions[self._next % len(self._actions)])
            self._next += 1
            if "executed" in infos:
                steps += int(infos["executed"][infos["_executed"]].sum())
        return steps / (time.perf_counter() - begin)

    def close(self) -> None:
        """See `Contender.close`."""
        self._envs.close()


class Pool(Contender):
    """EnvPool on Ray; with `barrier` all slots wait for the slowest of each chunk."""

    def __init__(
        self,
        env_name: str,
        env_kwargs: Mapping[str, Any],
        *,
        num_servers: int,
        envs_per_server: int,
        barrier: bool = False,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._pool = EnvPool(
            env_name, env_kwargs, num_servers, envs_per_server, cluster="ray", deadline_s=120.0
        )
        self._loop.run_until_complete(start_warm(self._pool))
        self._barrier = barrier
        self._episodes = 0

    def run(self, seconds: float) -> float:
        """See `Contender.run`."""
        self._pool.stats()
        gate = asyncio.Barrier(self._pool.num_slots) if self._barrier else None
        begin = time.perf_counter()
        self._loop.run_until_complete(self._all_slots(begin + seconds, gate))
        self.stats = self._pool.stats()
        return self.stats["env/steps"] / (time.perf_counter() - begin)

    def close(self) -> None:
        """See `Contender.close`."""
        self._loop.run_until_complete(self._pool.close())
        self._loop.close()

    async def _all_slots(self, until: float, gate: asyncio.Barrier | None) -> None:
        await asyncio.gather(
            *(self._one_slot(index, until, gate) for index in range(self._pool.num_slots))
        )

    async def _one_slot(self, index: int, until: float, gate: asyncio.Barrier | None) -> None:
        chunks, number, tasks = (
            random_chunks(seed=index, chunk=CHUNK, size=ACTION_SIZE),
            0,
            self._pool.spec.tasks,
        )
        async with self._pool.slot() as slot:
            ended = True
            while time.perf_counter() < until:
                if ended:
                    self._episodes += 1
                    await slot.reset(
                        seed=self._episodes, options={"task": tasks[self._episodes % len(tasks)]}
                    )
                    ended = False
                else:
                    *_, terminated, truncated, _ = await slot.step_chunk(
                        chunks[number % len(chunks)]
                    )
                    number, ended = number + 1, terminated or truncated
                if gate is not None:
                    await self._wait(gate)
            if gate is not None:
                await gate.abort()

    async def _wait(self, gate: asyncio.Barrier) -> None:
        try:
            await gate.wait()
        except asyncio.BrokenBarrierError:  # time is up for another slot
            return


async def start_warm(pool: EnvPool) -> None:
    """Start a pool and have every environment build its simulators before the clock starts."""
    await pool.start()
    async with AsyncExitStack() as stack:
        slots = [await stack.enter_async_context(pool.slot()) for _ in range(pool.num_slots)]
        for task in pool.spec.tasks:
            await asyncio.gather(*(slot.reset(seed=0, options={"task": task}) for slot in slots))


def make_contenders(
    *, env_kwargs: Mapping[str, Any], num_servers: int, envs_per_server: int
) -> dict[str, Contender]:
    """Everything that is measured, started."""
    few, many = num_servers, num_servers * envs_per_server
    pool = functools.partial(Pool, num_servers=num_servers, envs_per_server=envs_per_server)
    return {
        f"async_every_action_{few}": AsyncVector("metaworld", env_kwargs, num_envs=few, chunk=1),
        f"async_every_action_{many}": AsyncVector("metaworld", env_kwargs, num_envs=many, chunk=1),
        f"async_chunk_{few}": AsyncVector("metaworld", env_kwargs, num_envs=few, chunk=CHUNK),
        f"async_chunk_{many}": AsyncVector("metaworld", env_kwargs, num_envs=many, chunk=CHUNK),
        "pool": pool("metaworld", env_kwargs),
        "pool_barrier": pool("metaworld", env_kwargs, barrier=True),
        "pool_rebuilt": pool(REBUILT, env_kwargs),
        f"null_async_chunk_{many}": AsyncVector(NULL, {}, num_envs=many, chunk=CHUNK),
        "null_pool": pool(NULL, {}),
    }


def measure(
    contenders: Mapping[str, Contender], *, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Steps per second of each contender and round, after one second each that is not counted."""
    for contender in contenders.values():
        contender.run(1.0)
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, contender in contenders.items():
            rates[name].append(contender.run(seconds))
            print(
                f"round {number + 1} of {rounds}: {name:<24} {rates[name][-1]:8.0f} steps/s",
                flush=True,
            )
    return rates


def best(rates: Mapping[str, list[float]], prefix: str) -> str:
    """The contender with this prefix that has the highest median: the number of environments that
    suits the baseline best.
    """
    return max(
        (name for name in rates if name.startswith(prefix)),
        key=lambda name: statistics.median(rates[name]),
    )


def environment_pairs(rates: Mapping[str, list[float]]) -> dict[str, tuple[str, str]]:
    """The two contenders of a comparison."""
    every_action, chunk = best(rates, "async_every_action"), best(rates, "async_chunk")
    return {
        "pool against AsyncVectorEnv (aim 5)": ("pool", every_action),
        "pool against AsyncVectorEnv with our trick (aim 1.3)": ("pool", chunk),
        "cause: one image a chunk": (chunk, every_action),
        "cause: transport (TCP for pipes), and fewer processes": ("pool_barrier", chunk),
        "cause: no barrier after each chunk": ("pool", "pool_barrier"),
        "cause: simulators reused between episodes": ("pool", "pool_rebuilt"),
        "control: doing nothing, pool against AsyncVectorEnv": (
            "null_pool",
            best(rates, "null_async_chunk"),
        ),
    }


def markdown(
    title: str, rates: Mapping[str, list[float]], ratios: Mapping[str, Mapping[str, Any]], unit: str
) -> str:
    """Two small tables."""
    lines = [f"## {title}", "", f"| contender | {unit}, median | range |", "|---|---|---|"]
    for name, values in rates.items():
        lines.append(
            f"| {name} | {statistics.median(values):.0f} | {min(values):.0f} to {max(values):.0f} |"
        )
    lines += ["", "| ratio within a round | median | range |", "|---|---|---|"]
    for name, ratio in ratios.items():
        lines.append(
            f"| {name} | {ratio['median']:.2f} | {ratio['lowest']:.2f} to {ratio['highest']:.2f} |"
        )
    return "\n".join([*lines, ""])


def environments_section(
    flags: argparse.Namespace, env_kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Measure the environments with random actions."""
    contenders = make_contenders(
        env_kwargs=env_kwargs, num_servers=flags.num_servers, envs_per_server=flags.envs_per_server
    )
    try:
        rates = measure(contenders, rounds=flags.rounds, seconds=flags.seconds)
        busy = contenders["pool"].stats["env/busy_share"]  # type: ignore[attr-defined]
    finally:
        for contender in contenders.values():
            contender.close()
    return {
        "steps_per_s": rates,
        "ratios": summarise_ratios(rates, environment_pairs(rates)),
        "pool_busy_share": busy,
    }


def main(arguments: Iterable[str] | None = None) -> None:
    """Measure, print the tables, write them and the raw numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="of each contender in each round"
    )
    parser.add_argument("--num-servers", type=int, default=2, help="the shipped default")
    parser.add_argument("--envs-per-server", type=int, default=6, help="the shipped default")
    parser.add_argument(
        "--env-kwargs",
        type=json.loads,
        default={},
        help="JSON; the shipped defaults are those of envs.metaworld.metaworld_env",
    )
    parser.add_argument(
        "--policy", type=Path, help="policy folder, for rollouts of its own episodes"
    )
    parser.add_argument(
        "--episodes", type=int, default=96, help="of each contender in each round of rollouts"
    )
    parser.add_argument("--output", type=Path, default=RESULTS / "env_throughput.json")
    flags = parser.parse_args(None if arguments is None else list(arguments))

    import ray

    ray.init(include_dashboard=False, log_to_driver=False)
    sections = {"environments": environments_section(flags, flags.env_kwargs)}
    if flags.policy is not None:
        from benchmarks.rollout_throughput import rollouts_section

        sections["rollouts"] = rollouts_section(flags, flags.env_kwargs)
    ray.shutdown()
    units = {
        "environments": ("Environments, random actions", "steps/s"),
        "rollouts": ("Rollouts of the policy's episodes", "steps/s"),
    }
    tables = [
        markdown(units[name][0], part["steps_per_s"], part["ratios"], units[name][1])
        for name, part in sections.items()
    ]
    settings = {
        name: value for name, value in vars(flags).items() if name not in ("output", "policy")
    }
    command = " ".join(["python -m benchmarks.env_throughput", *sys.argv[1:]])
    result = {"command": command, "machine": describe_machine(), "settings": settings, **sections}
    flags.output.parent.mkdir(parents=True, exist_ok=True)
    flags.output.write_text(json.dumps(result, indent=1) + "\n")
    flags.output.with_suffix(".md").write_text(f"# {command}\n\n" + "\n".join(tables))
    print("\n".join(tables))


if __name__ == "__main__":
    main()
