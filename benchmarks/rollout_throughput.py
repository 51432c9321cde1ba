"""Environment steps per second of a rollout: episodes of the shipped policy, of varying length.

Part of `python -m benchmarks.env_throughput --policy FOLDER`. Four ways to run the same list of
episodes (same tasks, seeds and random numbers, one policy thread). Two lockstep loops over
AsyncVectorEnv with siirl's chunks start the next batch of episodes when the last one of the batch
has ended: until then the plain one steps every environment and queries the policy for it; the
sparing one skips those that have ended. The pool, batch by batch as well. The pool as siirl uses it
refills a finished episode's slot at once. Steps of ended episodes do not count.
"""

import argparse
import asyncio
import functools
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch

from benchmarks.rate_ratios import summarise_ratios
from benchmarks.throughput_envs import CHUNK, NUM_TASKS, WaitingEnv
from envs.base import IMAGES, PROPRIOCEPTION, FrameRequest
from envs.metaworld.suite import INSTRUCTIONS
from envs.registry import env_spec
from siirl.engine.rollout.acting import ActRequest
from siirl.engine.rollout.vla.embodied_engine import EmbodiedEngine
from siirl.engine.rollout.vla.embodied_rollout import EmbodiedRollout
from siirl.engine.rollout.workflow import EpisodeRequest
from siirl.env_server.pool import EnvPool
from siirl.models import load_policy

FIRST_SEED = 700_000  # nothing was trained or tuned on these
# uncounted turns, in which simulators are built: an environment of the pool meets tasks as they
# come
WARM_UP = 2


class LockstepRollout:
    """AsyncVectorEnv; every step waits for the slowest environment, every batch for the longest
    episode.
    """

    def __init__(
        self, policy: Any, env_kwargs: Mapping[str, Any], *, num_envs: int, sparing: bool
    ) -> None:
        self._policy, self._num_envs, self._sparing = policy, num_envs, sparing
        self._engine = EmbodiedEngine(
            policy=policy, temperature=1.0, lockstep=False, batch_rows=num_envs
        )
        env_class = functools.partial(
            WaitingEnv, "metaworld", env_kwargs, chunk=policy.chunk_length, go_on=not sparing
        )
        make = [functools.partial(env_class, index=index) for index in range(num_envs)]
        self._envs = gymnasium.vector.AsyncVectorEnv(make, context="spawn")
        for _ in range(
            NUM_TASKS
        ):  # without options tasks take turns: every environment builds its simulators now
            self._envs.reset(seed=0)

    def run(self, requests: Sequence[EpisodeRequest]) -> tuple[int, int]:
        """Run all episodes; returns environment steps and successes."""
        return asyncio.run(self._batches(requests))

    def close(self) -> None:
        """End all processes."""
        self._envs.close()

    async def _batches(self, requests: Sequence[EpisodeRequest]) -> tuple[int, int]:
        results = [
            await self._batch(requests[start : start + self._num_envs])
            for start in range(0, len(requests), self._num_envs)
        ]
        return sum(steps for steps, _ in results), sum(successes for _, successes in results)

    async def _batch(self, requests: Sequence[EpisodeRequest]) -> tuple[int, int]:
        options = {"tasks": [request.task for request in requests]}
        observations, _ = self._envs.reset(
            seed=[request.seed for request in requests], options=options
        )
        generators = [np.random.default_rng(request.policy_seed) for request in requests]
        running, steps, successes = np.ones(self._num_envs, np.bool_), 0, 0
        actions = np.zeros(self._envs.action_space.shape or (), np.float32)
        while running.any():
            rows = np.flatnonzero(running) if self._sparing else np.arange(self._num_envs)
            asked = [
                self._request(observations, row, requests[row], generators[row])
                for row in rows.tolist()
            ]
            responses = await asyncio.gather(*map(self._engine.act, asked))
            for row, response in zip(rows, responses, strict=True):
                actions[row] = self._policy.action_tokenizer.decode(response.values)
            observations, *_, infos = self._envs.step(actions)
            steps += int(infos["executed"][running].sum())
            successes += int(infos["success"][running].sum())
            running &= ~infos["ended"]
        return steps, successes

    def _request(
        self, observations: Any, row: int, request: EpisodeRequest, generator: np.random.Generator
    ) -> ActRequest:
        numbers = self._policy.uniforms_per_chunk
        return ActRequest(
            uid=request.uid,
            pixel_values=observations[IMAGES][row],
            proprioception=observations[PROPRIOCEPTION][row],
            instruction_ids=self._policy.tokenize_instruction(INSTRUCTIONS[request.task]),
            uniforms=generator.random(numbers, dtype=np.float32),
        )


class PoolRollout:
    """siirl's own rollout, as training has it but for videos: all episodes at once, or batch by
    batch.
    """

    def __init__(
        self,
        policy: Any,
        env_kwargs: Mapping[str, Any],
        *,
        num_servers: int,
        envs_per_server: int,
        refill: bool,
    ) -> None:
        pool = EnvPool(
            "metaworld", env_kwargs, num_servers, envs_per_server, cluster="ray", deadline_s=120.0
        )
        self._rollout = EmbodiedRollout(
            policy=policy,
            pool=pool,
            encoder=None,
            frame_every=CHUNK,
            recorder=FrameRequest(every=CHUNK, size=64),
        )
        self._rollout.start()
        self._size = None if refill else pool.num_slots

    def run(self, requests: Sequence[EpisodeRequest]) -> tuple[int, int]:
        """Run all episodes; returns environment steps and successes."""
        size = self._size or len(requests)
        results = [
            self._rollout.generate(requests[start : start + size])
            for start in range(0, len(requests), size)
        ]
        stats = [each for _, each in results]
        self.busy = {
            "simulators": statistics.fmean(each["env/busy_share"] for each in stats),
            "policy": sum(each["policy_busy_s"] for each in stats)
            / sum(each["seconds"] for each in stats),
        }
        rows = [trajectory.row for result, _ in results for trajectory in result.trajectories]
        sizes = [
            sum(value.nbytes for value in row.values() if isinstance(value, np.ndarray))
            for row in rows
        ]
        self.trajectory_bytes = {"mean": statistics.fmean(sizes), "largest": max(sizes)}
        return sum(row["finish_step"] for row in rows), sum(row["complete"] for row in rows)

    def close(self) -> None:
        """End all processes."""
        self._rollout.close()


def make_requests(tasks: Sequence[str], *, episodes: int) -> list[EpisodeRequest]:
    """The list of episodes: tasks take turns."""
    return [
        EpisodeRequest(
            uid=f"{index:06d}",
            group_id=index,
            task=tasks[index % len(tasks)],
            task_id=index % len(tasks),
            trial_id=index,
            seed=FIRST_SEED + index,
            policy_seed=(FIRST_SEED, index),
        )
        for index in range(episodes)
    ]


def rollouts_section(flags: argparse.Namespace, env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Measure all in turns; the first turns of each, which build simulators, are not counted."""
    torch.set_num_threads(1)
    policy = load_policy(flags.policy).eval()
    num_slots = flags.num_servers * flags.envs_per_server
    pool = functools.partial(
        PoolRollout,
        policy,
        env_kwargs,
        num_servers=flags.num_servers,
        envs_per_server=flags.envs_per_server,
    )
    contenders: dict[str, LockstepRollout | PoolRollout] = {
        "lockstep_plain": LockstepRollout(policy, env_kwargs, num_envs=num_slots, sparing=False),
        "lockstep_sparing": LockstepRollout(policy, env_kwargs, num_envs=num_slots, sparing=True),
        "pool_batches": pool(refill=False),
        "pool_refill": pool(refill=True),
    }
    requests = make_requests(
        env_spec("metaworld", **env_kwargs).tasks, episodes=flags.episodes // num_slots * num_slots
    )
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    outcomes: dict[str, dict[str, float]] = {}
    try:
        for number in range(1 - WARM_UP, flags.rounds + 1):
            for name, contender in contenders.items():
                begin = time.perf_counter()
                steps, successes = contender.run(requests)
                seconds = time.perf_counter() - begin
                outcomes[name] = {"steps": steps, "success_rate": successes / len(requests)}
                if number > 0:
                    rates[name].append(steps / seconds)
                    print(
                        f"round {number} of {flags.rounds}: {name:<24} {rates[name][-1]:8.0f} "
                        "steps/s",
                        flush=True,
                    )
    finally:
        for contender in contenders.values():
            contender.close()
    pairs = {
        "refill against the lockstep loop (aim 1.5)": ("pool_refill", "lockstep_plain"),
        "refill against the sparing lockstep loop": ("pool_refill", "lockstep_sparing"),
        "cause: ended episodes rest": ("lockstep_sparing", "lockstep_plain"),
        "cause: no barrier after each chunk": ("pool_batches", "lockstep_sparing"),
        "cause: slots refilled at once": ("pool_refill", "pool_batches"),
    }
    refill = contenders["pool_refill"]
    assert isinstance(refill, PoolRollout)
    own = {"busy_share": refill.busy, "trajectory_bytes": refill.trajectory_bytes}
    return {
        "steps_per_s": rates,
        "ratios": summarise_ratios(rates, pairs),
        "outcomes": outcomes,
        **own,
    }
