"""Segments: a fixed number of decisions in each environment between two updates.

An episode that is running at the end of a segment continues in the next one with the new weights.
When an episode ends, the next one starts in the same segment. A segment yields one training row for
each part of an episode in it. A row has the state after its last decision; that state's value
estimates the rewards to come. The episode was cut or truncated there, unless it terminated
(Schulman et al. 2017, arXiv 1707.06347, section 5).

A running episode is kept as seed and actions. `park` gives its environment to other episodes, and
a checkpoint stores no more; the next segment replays it.

Left out: videos and video embeddings, which belong to whole episodes.
"""

# K action of a chunk, E action executed in an episode so far

import dataclasses
from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.base import INSTRUCTION
from envs.replay_samples import difference, sample
from envs.seeds import FIRST_TRAINING_SEED, LAST_SEED
from siirl.engine.rollout.vla.action_noise import ActionNoise
from siirl.engine.rollout.vla.embodied_engine import EmbodiedEngine
from siirl.engine.rollout.vla.embodied_workflow import EmbodiedWorkflow
from siirl.engine.rollout.workflow import EpisodeRequest, RolloutWorkflow, Trajectory
from siirl.env_server.slot import Slot
from siirl.errors import SimulationFailed

EPISODE_RETURN, EPISODE_LENGTH = "episode_return", "episode_length"
"""Entries of a row's record if its episode ended with the row."""
REQUEST_FIELDS = ("task", "task_id", "trial_id", "seed", "options")
"""Fields of the request that began an episode, which its later rows repeat."""


@dataclass
class RunningEpisode:
    """An episode that began in this segment or an earlier one and has not ended."""

    begun_by: dict[str, Any]
    """`REQUEST_FIELDS` of the request that began it."""
    observation: Any = None
    """The newest one; None if the episode was loaded from a checkpoint and not replayed yet."""
    actions: list[NDArray[Any]] = field(default_factory=list)
    """Executed actions [K, ...], chunk by chunk."""
    env_return: float = 0.0
    steps: int = 0
    loaded_sample: Any = None
    """Sample of the newest observation in the checkpoint; None: not from a checkpoint."""

    @property
    def newest_sample(self) -> Any:
        """Sample of the newest observation, which a replay must reproduce; None: unknown."""
        return self.loaded_sample if self.observation is None else sample(self.observation)

    def add(self, observation: Any, reward: float, actions: NDArray[Any]) -> None:
        """Record a chunk: the resulting observation and reward, and the executed actions."""
        self.observation = observation
        self.actions.append(actions)
        self.env_return += reward
        self.steps += len(actions)

    def options(self) -> dict[str, Any]:
        """Options of the environment's reset."""
        return {**self.begun_by["options"], "task": self.begun_by["task"], "frames": {}}

    def record(self) -> dict[str, Any]:
        """Metrics of an episode that has ended."""
        return {EPISODE_RETURN: self.env_return, EPISODE_LENGTH: self.steps}

    def state(self) -> dict[str, Any]:
        """The running episode as plain data and arrays."""
        return {
            "begun_by": self.begun_by,
            "actions": np.concatenate(self.actions) if self.actions else None,
            "env_return": self.env_return,
            "steps": self.steps,
            "observation": self.newest_sample,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "RunningEpisode":
        """The inverse of `state`."""
        actions = state["actions"]
        return cls(
            begun_by=dict(state["begun_by"]),
            actions=[] if actions is None else [actions],
            env_return=state["env_return"],
            steps=state["steps"],
            loaded_sample=state.get("observation"),  # older checkpoints have none
        )


@dataclass
class _LentEnvironment:
    """An environment of the pool that a segment's episodes hold."""

    slot: Slot
    context: AbstractAsyncContextManager[Slot]


class SegmentWorkflow(RolloutWorkflow):
    """Runs segments; `arun_episode` runs the segment of a request.

    Args:
        episodes: Tokenizes observations and actions; its pool has the environments.
        decisions: Decisions of a segment.
        environments: Segments of a training step over all ranks. The request of group g continues
            environment g modulo this number.
    """

    def __init__(self, *, episodes: EmbodiedWorkflow, decisions: int, environments: int) -> None:
        self.episodes = episodes
        self.decisions = decisions
        self.environments = environments
        self._running: dict[int, RunningEpisode] = {}
        """By environment."""
        self._lent: dict[int, _LentEnvironment] = {}

    async def arun_episode(self, engine: EmbodiedEngine, data: EpisodeRequest) -> list[Trajectory]:
        """Run a segment; raises SimulationFailed if the pool could not simulate it.

        The failed episode is dropped; the next segment begins another.
        """
        environment = data.group_id % self.environments
        try:
            return await self._segment(engine, data, environment)
        except SimulationFailed:
            self._running.pop(environment, None)
            raise

    async def park(self) -> None:
        """Return the environments to the pool; the next segments replay their episodes."""
        lent, self._lent = self._lent, {}
        for each in lent.values():
            await each.context.__aexit__(None, None, None)

    def forget_others(self, groups: Collection[int]) -> None:
        """Drop the episodes of a checkpoint that no request of these groups continues.

        They run on other ranks.
        """
        own = {group % self.environments for group in groups}
        self._running = {
            environment: episode
            for environment, episode in self._running.items()
            if environment in own
        }

    def state_dict(self) -> dict[int, dict[str, Any]]:
        """Running episodes, by environment."""
        return {
            environment: episode.state() for environment, episode in sorted(self._running.items())
        }

    def load_state_dict(self, state: Mapping[int, Mapping[str, Any]]) -> None:
        """Resume the episodes of a checkpoint; those of other ranks are never requested."""
        self._running = {
            environment: RunningEpisode.from_state(episode)
            for environment, episode in state.items()
        }

    async def _segment(
        self, engine: EmbodiedEngine, data: EpisodeRequest, environment: int
    ) -> list[Trajectory]:
        episode, slot = await self._resumed(environment)
        noise = ActionNoise(data, self.episodes.policy)
        recorder = self.episodes.recorder()
        rows: list[Trajectory] = []
        begun = 0
        for decision in range(self.decisions):
            if episode is None:
                episode = await self._begin(data, slot, number=begun)
                self._running[environment] = episode
                begun += 1
            request = self.episodes.request(episode.observation, data, noise.chunk())
            response = await engine.act(request)
            actions = self.episodes.policy.action_tokenizer.decode(response.values)
            recorder.read(request, episode.observation.get(INSTRUCTION, ""))
            observation, reward, terminated, truncated, info = await slot.step_chunk(actions)
            recorder.add(request, response, reward, info["executed"])
            episode.add(observation, reward, actions[: info["executed"]])
            ended = terminated or truncated
            if not ended and decision + 1 < self.decisions:
                continue
            row = recorder.row(
                _part(data, episode, number=len(rows)), info, truncated=bool(truncated)
            )
            # an environment may report success at every step, but an episode has one outcome
            row["complete"] = row["complete"] and bool(ended)
            row |= self._behind(observation, data, terminated=bool(terminated))
            rows.append(
                Trajectory(
                    row,
                    record=episode.record() if ended else {},
                    changed_instruction=recorder.changed_instruction,
                )
            )
            recorder = self.episodes.recorder()
            if ended:
                del self._running[environment]
                episode = None
        return rows

    async def _begin(self, data: EpisodeRequest, slot: Slot, *, number: int) -> RunningEpisode:
        """Begin episode `number` of a segment."""
        begun_by = {name: getattr(data, name) for name in REQUEST_FIELDS}
        begun_by["options"] = dict(data.options)
        begun_by["seed"] = episode_seed(data.seed, number=number)
        episode = RunningEpisode(begun_by)
        episode.observation, _ = await slot.reset(seed=begun_by["seed"], options=episode.options())
        return episode

    async def _resumed(self, environment: int) -> tuple[RunningEpisode | None, Slot]:
        """The running episode of `environment`, and its slot in the state of the last segment."""
        episode = self._running.get(environment)
        if environment in self._lent:
            return episode, self._lent[environment].slot
        context = self.episodes.pool.slot()
        slot = await context.__aenter__()
        self._lent[environment] = _LentEnvironment(slot, context)
        if episode is not None:
            await self._replay(episode, slot)
        return episode, slot

    async def _replay(self, episode: RunningEpisode, slot: Slot) -> None:
        actions = list(np.concatenate(episode.actions)) if episode.actions else []
        observation, ended = await slot.resume(
            seed=episode.begun_by["seed"], options=episode.options(), actions=actions
        )
        before = episode.newest_sample
        differs = (
            None if before is None else difference(before, sample(observation), where="observation")
        )
        if ended:
            differs = "it ended"
        if differs is not None:
            raise SimulationFailed(
                f"The episode with seed {episode.begun_by['seed']} did not resume in its state "
                f"after {episode.steps} steps: {differs}. Seed and actions do not determine an "
                "episode of this environment, unless a setting of it has changed since the "
                "checkpoint (env.max_episode_steps, env.kwargs): resume with that run's settings, "
                "make the environment deterministic, or leave "
                "actor_rollout_ref.rollout.n_steps out."
            )
        episode.observation = observation

    def _behind(
        self, observation: Any, data: EpisodeRequest, *, terminated: bool
    ) -> dict[str, Any]:
        """Columns of the state after a row's last decision."""
        state = self.episodes.request(observation, data, None)
        columns: dict[str, Any] = {"bootstrapped": not terminated}
        if state.pixel_values is not None:
            columns["final_pixel_values"] = state.pixel_values
        if state.proprioception is not None:
            columns["final_proprioception"] = state.proprioception
        if self.episodes.pool.spec.instruction_changes:
            columns["final_instruction_ids"] = state.instruction_ids
        return columns


def episode_seed(seed: int, *, number: int) -> int:
    """Seed of the episode that begins as number `number` in a segment whose request has `seed`.

    It is one of the training seeds, [1,000,000, 2**31).
    """
    if number == 0:
        return seed
    drawn = int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0])
    return FIRST_TRAINING_SEED + drawn % (LAST_SEED + 1 - FIRST_TRAINING_SEED)


def _part(data: EpisodeRequest, episode: RunningEpisode, *, number: int) -> EpisodeRequest:
    """The request of row `number` of a segment: its own id, and the episode's task and seed."""
    return dataclasses.replace(data, **episode.begun_by, uid=f"{data.uid}-{number:04d}")
