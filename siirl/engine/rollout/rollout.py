"""Rollout: environments, engine and workflow held together for one rank, whatever its domain;
requests in, trajectories out.

What is particular to a domain is made in its constructor: `embodied_rollout` and `text_rollout`.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from siirl.engine.rollout.executor import RolloutResult
from siirl.engine.rollout.inference_engine import BatchingEngine, InferenceEngine
from siirl.engine.rollout.workflow import EpisodeRequest, RolloutWorkflow
from siirl.env_server.pool import EnvPool


class CountingEngine(BatchingEngine, Protocol):
    """An engine that says how busy it was."""

    def take_stats(self) -> Mapping[str, float]:
        """Counts since the last call."""


class Rollout:
    """Runs episodes on one rank's environments; start it, and close it.

    Args:
        pool: The environments.
        engine: What acts.
        workflow: How an episode runs.
    """

    def __init__(self, *, pool: EnvPool, engine: CountingEngine, workflow: RolloutWorkflow) -> None:
        self.pool, self.engine, self.workflow = pool, engine, workflow
        self.inference = InferenceEngine(engine, pool=pool)

    def start(self) -> None:
        """Bring the environments up."""
        self.inference.initialize()

    def close(self) -> None:
        """End the environments; safe to call twice."""
        self.inference.destroy()

    def generate(
        self,
        requests: Sequence[EpisodeRequest],
        *,
        embed: bool = False,
        workflow: RolloutWorkflow | None = None,
        on_done: Callable[[EpisodeRequest], None] = lambda request: None,
    ) -> tuple[RolloutResult, dict[str, float]]:
        """Run all episodes.

        Args:
            requests: The episodes.
            embed: Whether rows get what a reward compares episodes by; only videos are embedded.
            workflow: How they run, where that is not this rollout's own alone: one around it.
            on_done: Called with each request when its episode is over.

        Returns:
            The episodes in the order of the requests, with those that could not be simulated beside
            them (how many may be, ranks decide
            together: siirl.engine.rollout.failures), and raw counts: seconds, busy seconds, policy
                calls, environment steps.
        """
        begin = time.perf_counter()
        self.pool.stats()  # counts from here on, not since the last rollout
        result = self.inference.rollout_batch(requests, workflow or self.workflow, on_done=on_done)
        seconds = time.perf_counter() - begin
        stats = {f"policy_{name}": value for name, value in self.engine.take_stats().items()}
        return result, {"seconds": seconds, **stats, **self.pool.stats()}


def requests_for_prompts(
    prompts: Sequence[Mapping[str, Any]], *, rollouts: int, run_seed: int, step: int, record: int
) -> list[EpisodeRequest]:
    """The episodes of a training step: `rollouts` for each prompt, the first `record` of different
    prompts with a video.

    Unique ids and policy seeds are made of run seed, step, group and rollout, so they are the same
    however ranks share the prompts.

    Args:
        prompts: Columns of each prompt (siirl.data_coordinator.task_stream): `index`, `task_name`,
            `task_id`, `trial_id`, `seed`, and of a prompt from a file `prompt_row`.
        rollouts: Episodes of each prompt.
        run_seed: Seed of the run.
        step: Training step.
        record: Episodes that become videos.
    """
    return [
        EpisodeRequest(
            uid=f"{step:06d}-{prompt['index']:08d}-{rollout:03d}",
            group_id=prompt["index"],
            task=prompt["task_name"],
            task_id=prompt["task_id"],
            trial_id=prompt["trial_id"],
            seed=prompt["seed"],
            policy_seed=(run_seed, step, prompt["index"], rollout),
            record=rollout == 0 and place < record,
            options=reset_options(prompt),
        )
        for place, prompt in enumerate(prompts)
        for rollout in range(rollouts)
    ]


def reset_options(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """What a prompt asks of the environment's reset: its row, where it is one of a file."""
    return {"row": json.loads(prompt["prompt_row"])} if "prompt_row" in prompt else {}
