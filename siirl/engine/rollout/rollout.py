"""Rollout: environments, engine and workflow of one rank; requests in, trajectories out.

The constructors of `embodied_rollout` and `text_rollout` build the parts that differ by domain.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from siirl.engine.rollout.engine import RolloutEngine
from siirl.engine.rollout.executor import RolloutResult
from siirl.engine.rollout.inference_engine import InferenceEngine
from siirl.engine.rollout.workflow import EpisodeRequest, RolloutWorkflow
from siirl.env_server.pool import EnvPool


class Rollout:
    """Runs episodes on one rank's environments; call `start` before and `close` after.

    Args:
        pool: The environments.
        engine: Generates the actions or texts.
        workflow: Runs an episode.
    """

    def __init__(self, *, pool: EnvPool, engine: RolloutEngine, workflow: RolloutWorkflow) -> None:
        self.pool = pool
        self.engine = engine
        self.workflow = workflow
        self.inference = InferenceEngine(engine, pool=pool)

    def start(self) -> None:
        """Start the environments."""
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
            embed: Whether rows get the embedding by which a reward compares episodes; only videos
                are embedded.
            workflow: Replaces this rollout's workflow, usually by a wrapper around it.
            on_done: Called with each request when its episode is over.

        Returns:
            The episodes in the order of the requests, including those that could not be simulated
            (siirl.engine.rollout.failures decides over all ranks how many may fail), and raw
            counts: seconds, busy seconds, policy calls, environment steps.
        """
        begin = time.perf_counter()
        self.pool.stats()  # restarts the counts
        result = self.inference.rollout_batch(requests, workflow or self.workflow, on_done=on_done)
        return result, self.take_stats(seconds=time.perf_counter() - begin)

    async def generate_beside(self, requests: Sequence[EpisodeRequest]) -> RolloutResult:
        """Run episodes beside those of other calls, with what a reward needs, as with `embed`."""
        return await self.inference.episodes(requests, self.workflow)

    def take_stats(self, *, seconds: float) -> dict[str, float]:
        """Counts of engine and environments since the last call, which was `seconds` ago."""
        stats = {f"policy_{name}": value for name, value in self.engine.take_stats().items()}
        return {"seconds": seconds, **stats, **self.pool.stats()}


def requests_for_prompts(
    prompts: Sequence[Mapping[str, Any]], *, rollouts: int, run_seed: int, step: int, record: int
) -> list[EpisodeRequest]:
    """Requests of a training step: `rollouts` for each prompt.

    Unique ids and policy seeds consist of run seed, step, group and rollout, so they do not depend
    on how ranks share the prompts. The first rollout of each of the first `record` prompts is
    recorded.

    Args:
        prompts: Columns of each prompt (siirl.data_coordinator.task_stream): `index`, `task_name`,
            `task_id`, `trial_id`, `seed`, and for a prompt from a file `prompt_row`.
        rollouts: Episodes of each prompt.
        run_seed: Seed of the run.
        step: Training step.
        record: Episodes that become videos.
    """
    requests = []
    for place, prompt in enumerate(prompts):
        for rollout in range(rollouts):
            request = EpisodeRequest(
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
            requests.append(request)
    return requests


def reset_options(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """Reset options of a prompt: its row if it comes from a file."""
    return {"row": json.loads(prompt["prompt_row"])} if "prompt_row" in prompt else {}
