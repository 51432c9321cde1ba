"""Ways to roll out a policy on LIBERO, for `benchmarks.libero_throughput`: lockstep loops over
processes, and siirl's pool.

All run the same list of episodes with the same random numbers and one policy thread, and count the
steps and episodes that were asked for. Light to import but for torch: AsyncVectorEnv's processes
import it.
"""

import asyncio
import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import psutil

from benchmarks.throughput_envs import PlainEnv, finished
from envs.base import IMAGES, PROPRIOCEPTION
from envs.libero.libero_env import LiberoEnv
from siirl.engine.rollout.acting import ActRequest
from siirl.engine.rollout.vla.embodied_engine import EmbodiedEngine
from siirl.engine.rollout.vla.embodied_workflow import EmbodiedWorkflow
from siirl.engine.rollout.workflow import EpisodeRequest, Trajectory
from siirl.env_server.pool import EnvPool

REUSED = "libero"
REBUILT = "benchmarks.libero_contenders:RebuiltLiberoEnv"
PUBLISHED_STEP = "benchmarks.libero_contenders:PublishedStepLiberoEnv"
AS_PUBLISHED = "benchmarks.libero_contenders:AsPublishedLiberoEnv"


class Outcome(NamedTuple):
    """Result of a contender."""

    steps: int
    episodes: int
    successes: int


class RebuiltLiberoEnv(LiberoEnv):
    """Builds its simulator anew for every episode, as many systems do."""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        await self.close()
        return await super().reset(seed=seed, options=options)


class RobosuiteStep:
    """robosuite's own step in the place of `envs.libero.arm_control.ArmControl`: the same positions
    to the last bit (a test there).
    """

    def __init__(self, env: Any) -> None:
        self._env = env

    def command(self, action: Any) -> None:
        """One action whole, and what robosuite records for observables."""
        self._env.step(action)

    def run(self, physics_steps: int) -> None:
        """Nothing: `command` has made all physics steps."""


class PublishedStepLiberoEnv(LiberoEnv):
    """Stepped as the packages of LIBERO and robosuite step it; simulators and settled starts are
    kept as in siirl, which they do not do.
    """

    def _make_simulator(self, task: str) -> Any:
        simulator = super()._make_simulator(task)
        simulator._arm = RobosuiteStep(simulator.env)  # type: ignore[assignment]
        return simulator


class AsPublishedLiberoEnv(PublishedStepLiberoEnv, RebuiltLiberoEnv):
    """Stepped as the packages step it, and rebuilt."""


class RestingEnv(PlainEnv):
    """A `PlainEnv` for lockstep loops: after its episode it rests until all are reset."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._ended = False
        self._last, info = super().reset(seed=seed, options=options)
        return self._last, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One action or chunk; the end stands in info, for Gymnasium would reset the environment or
        refuse to step the others.
        """
        if self._ended:
            return self._last, 0.0, False, False, {"executed": 0, "ended": True, "success": False}
        self._last, reward, terminated, truncated, info = super().step(action)
        self._ended = terminated or truncated
        return (
            self._last,
            reward,
            False,
            False,
            {**info, "ended": self._ended, "success": terminated},
        )


class Contender(ABC):
    """A way to roll out."""

    @abstractmethod
    def run(self, requests: Sequence[EpisodeRequest]) -> Outcome:
        """Run all episodes."""

    @abstractmethod
    def processes(self) -> list[int]:
        """Ids of the processes that simulate."""

    @abstractmethod
    def close(self) -> None:
        """End all processes."""

    def simulator_bytes(self) -> float:
        """Memory of a simulating process that it shares with no other, on average."""
        sizes = [psutil.Process(number).memory_full_info().uss for number in self.processes()]
        return sum(sizes) / len(sizes)


class Lockstep(Contender):
    """gymnasium's AsyncVectorEnv, a process an environment; all wait for the slowest at each call,
    and for the longest episode.

    Args:
        policy: It acts.
        env_kwargs: Of `LiberoEnv`.
        instructions: By task.
        num_envs: Processes.
        env_name: `REUSED`, `REBUILT`, `PUBLISHED_STEP` or `AS_PUBLISHED`.
        chunk: Actions of one call: 1, or the policy's chunk, after which one image is drawn.
        sparing: The policy is not asked for episodes that have ended.
    """

    def __init__(
        self,
        policy: Any,
        env_kwargs: Mapping[str, Any],
        *,
        instructions: Mapping[str, str],
        num_envs: int,
        env_name: str,
        chunk: int,
        sparing: bool,
    ) -> None:
        self._policy, self._instructions, self._num_envs, self._chunk, self._sparing = (
            policy,
            instructions,
            num_envs,
            chunk,
            sparing,
        )
        self._engine = EmbodiedEngine(
            policy=policy, temperature=1.0, lockstep=False, batch_rows=num_envs
        )
        one = functools.partial(RestingEnv, env_name, dict(env_kwargs), chunk=chunk)
        self._envs = gymnasium.vector.AsyncVectorEnv(
            [functools.partial(one, index=index) for index in range(num_envs)], context="spawn"
        )

    def run(self, requests: Sequence[EpisodeRequest]) -> Outcome:
        """See `Contender.run`."""
        batches = [
            requests[start : start + self._num_envs]
            for start in range(0, len(requests), self._num_envs)
        ]
        parts = [asyncio.run(self._batch(batch)) for batch in batches]
        return Outcome(
            sum(steps for steps, _ in parts),
            len(requests),
            sum(successes for _, successes in parts),
        )

    def processes(self) -> list[int]:
        """See `Contender.processes`."""
        return [process.pid for process in self._envs.processes if process.pid is not None]

    def close(self) -> None:
        """See `Contender.close`."""
        self._envs.close()

    async def _batch(self, requests: Sequence[EpisodeRequest]) -> tuple[int, int]:
        options = {"tasks": [request.task for request in requests]}
        observations, _ = self._envs.reset(
            seed=[request.seed for request in requests], options=options
        )
        generators = [np.random.default_rng(request.policy_seed) for request in requests]
        running, steps, successes = np.ones(self._num_envs, np.bool_), 0, 0
        chunks = np.zeros(
            (self._num_envs, self._policy.chunk_length, self._policy.action_tokenizer.dimensions),
            np.float32,
        )
        while running.any():
            rows = np.flatnonzero(running) if self._sparing else np.arange(self._num_envs)
            asked = [
                self._request(observations, row, requests[row], generators[row])
                for row in rows.tolist()
            ]
            responses = await asyncio.gather(*map(self._engine.act, asked))
            for row, response in zip(rows, responses, strict=True):
                chunks[row] = self._policy.action_tokenizer.decode(response.values)
            for actions in [chunks] if self._chunk > 1 else chunks.swapaxes(0, 1):
                observations, *_, infos = self._envs.step(actions)
                steps += int(infos["executed"].sum())
                successes += int(infos["success"].sum())
                running &= ~infos["ended"]
                if not running.any():
                    break
        return steps, successes

    def _request(
        self, observations: Any, row: int, request: EpisodeRequest, generator: np.random.Generator
    ) -> ActRequest:
        numbers = self._policy.uniforms_per_chunk
        return ActRequest(
            uid=request.uid,
            pixel_values=observations[IMAGES][row],
            proprioception=observations[PROPRIOCEPTION][row],
            instruction_ids=self._policy.tokenize_instruction(self._instructions[request.task]),
            uniforms=generator.random(numbers, dtype=np.float32),
        )


class Pool(Contender):
    """EnvPool with siirl's own workflow: a finished episode's slot is refilled at once."""

    def __init__(
        self,
        policy: Any,
        env_kwargs: Mapping[str, Any],
        *,
        num_servers: int,
        envs_per_server: int,
        cluster: str,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        before = {process.pid for process in psutil.process_iter()}
        self._pool = EnvPool(
            "libero",
            dict(env_kwargs),
            num_servers,
            envs_per_server,
            cluster=cluster,
            deadline_s=600.0,
        )
        self._loop.run_until_complete(self._pool.start())
        self._ids = [
            p.pid
            for p in psutil.process_iter(["cmdline"])
            if p.pid not in before and "EnvServer" in " ".join(p.cmdline())
        ]
        self._engine = EmbodiedEngine(
            policy=policy, temperature=1.0, lockstep=False, batch_rows=self._pool.num_slots
        )
        self._workflow = EmbodiedWorkflow(pool=self._pool, policy=policy, streams={})
        self.busy: dict[str, float] = {}

    def run(self, requests: Sequence[EpisodeRequest]) -> Outcome:
        """See `Contender.run`."""
        self._pool.stats()
        self._engine.take_stats()
        begin = time.perf_counter()
        trajectories = self._loop.run_until_complete(self._episodes(requests))
        wall_s = time.perf_counter() - begin
        self.busy = {
            "simulators": self._pool.stats()["env/busy_share"],
            "policy": self._engine.take_stats()["busy_s"] / wall_s,
        }
        rows = [trajectory.row for trajectory in trajectories]
        return Outcome(
            sum(row["finish_step"] for row in rows), len(rows), sum(row["complete"] for row in rows)
        )

    async def _episodes(self, requests: Sequence[EpisodeRequest]) -> list[Trajectory]:
        run = self._workflow.arun_episode
        return await asyncio.gather(*(run(self._engine, request) for request in requests))

    def processes(self) -> list[int]:
        """See `Contender.processes`; this one where the servers are in it."""
        return self._ids or [psutil.Process().pid]

    def close(self) -> None:
        """See `Contender.close`."""
        self._loop.run_until_complete(self._pool.close())
        self._loop.close()


def timed_environment(env_kwargs: Mapping[str, Any]) -> tuple[LiberoEnv, dict[str, float]]:
    """An environment in this process, and the seconds that its parts have taken so far."""
    seconds = {"simulation": 0.0, "rendering": 0.0}

    class TimedEnv(LiberoEnv):
        def _image(self, size: int, camera: str) -> Any:
            begin = time.perf_counter()
            image = super()._image(size, camera)
            seconds["rendering"] += time.perf_counter() - begin
            return image

        def _make_simulator(self, task: str) -> Any:
            simulator = super()._make_simulator(task)
            plain = simulator.step

            def step(action: Any) -> bool:
                begin = time.perf_counter()
                success = plain(action)
                seconds["simulation"] += time.perf_counter() - begin
                return success

            simulator.step = step  # type: ignore[method-assign]
            return simulator

    return TimedEnv(**env_kwargs), seconds


def seconds_per_reset(env_kwargs: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of a start: in a new simulator, from a state that a used one has not had, and from
    one that it has kept.
    """
    environment, found = LiberoEnv(**env_kwargs), {}
    for name, seed in (("simulator built", 0), ("state settles", 1), ("state was kept", 1)):
        begin = time.perf_counter()
        finished(environment.reset(seed=seed))
        found[name] = time.perf_counter() - begin
    finished(environment.close())
    return found
