"""SegmentCollector: turns the prompts of a step into segments of running episodes.

A prompt selects an environment: episodes that begin in its segment use its task and seed. The other
collector, `rollout_collector`, takes whole episodes.
"""

import dataclasses
from typing import Any

from tensordict import TensorDict

from siirl.dag_worker.rollout_collector import RolloutCollector, prompts_of
from siirl.engine.rollout.rollout import requests_for_prompts
from siirl.engine.rollout.vla.segment_workflow import (
    EPISODE_LENGTH,
    EPISODE_RETURN,
    SegmentWorkflow,
)
from siirl.engine.rollout.workflow import EpisodeRequest, RolloutResult
from siirl.errors import CheckpointError, ConfigError
from siirl.execution.dag import NodeOutput
from siirl.params import sizes

OF_EPISODES = ("/episodes", "/return", "/episode_length", "/truncated_share", "success_rate")
"""Suffixes of metrics that count whole episodes; rows are parts of episodes."""


class SegmentCollector(RolloutCollector):
    """Runs a segment for each prompt of a step.

    Args:
        segments: Runs them on the rollout's environments.
        options: The arguments of `RolloutCollector`.
    """

    def __init__(self, *, segments: SegmentWorkflow, **options: Any) -> None:
        super().__init__(**options)
        self.segments = segments

    def roll_out(self, batch: TensorDict, *, step: int, greedy: bool = False) -> NodeOutput:
        """Run a segment for every prompt; a row for each part of an episode.

        Raises:
            ConfigError: `greedy` is set; greedy baselines need whole episodes.
        """
        if greedy:
            raise ConfigError(
                "A greedy baseline needs whole episodes, and actor_rollout_ref.rollout.n_steps="
                f"{self.segments.decisions} cuts them: leave it out."
            )
        requests = self.requests(batch, step=step)
        result, stats = self.rollout.generate(requests, workflow=self.segments)
        self.check(result, episodes=len(requests))
        self.segments.forget_others({request.group_id for request in requests})
        of_episodes = self.measure(ended_episodes(result), stats)
        metrics = {
            name: of_episodes.get(name) if name.endswith(OF_EPISODES) else value
            for name, value in self.measure(result, stats).items()
        }
        return NodeOutput(
            batch=result.training_batch(),
            metrics={
                name: value
                for name, value in metrics.items()
                # successive episodes of an environment are not a group
                if value is not None and not name.endswith("/mixed_groups")
            },
        )

    def requests(
        self, batch: TensorDict, *, step: int, greedy: bool = False
    ) -> list[EpisodeRequest]:
        """One segment per prompt; none is recorded."""
        return requests_for_prompts(
            prompts_of(batch),
            rollouts=1,
            run_seed=self.trainer.seed,
            step=step,
            record=0,
            noise_correlation=sizes.noise_correlation(self.policy),
        )

    def state_dict(self) -> dict[str, Any]:
        """Running episodes of all ranks, by environment."""
        running: dict[int, Any] = {}
        for of_rank in self.ranks.gather_objects(self.segments.state_dict()):
            running |= of_rank
        return {"running": running, "environments": self.segments.environments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume the episodes of a checkpoint, on any number of ranks.

        Raises:
            CheckpointError: It comes from a run on whole episodes, or has another number of
                environments.
        """
        if not state:
            raise CheckpointError(
                "The checkpoint comes from a run on whole episodes, but this run cuts them at "
                f"actor_rollout_ref.rollout.n_steps={self.segments.decisions}: leave it out, or "
                "start a new run from the checkpoint's weights."
            )
        if state["environments"] != self.segments.environments:
            raise CheckpointError(
                f"The checkpoint has {state['environments']} environments, but this run has "
                f"data.train_batch_size={self.segments.environments}: resume with the same number."
            )
        self.segments.load_state_dict(state["running"])


def ended_episodes(result: RolloutResult) -> RolloutResult:
    """The episodes that ended in the segments, with the return and length of the whole episode."""
    whole = [
        dataclasses.replace(
            trajectory,
            row=trajectory.row
            | {
                "env_return": trajectory.record[EPISODE_RETURN],
                "finish_step": trajectory.record[EPISODE_LENGTH],
            },
        )
        for trajectory in result.trajectories
        if EPISODE_RETURN in trajectory.record
    ]
    return dataclasses.replace(result, trajectories=whole)
