"""Rollout: environments, engine and workflow of one rank; requests in, trajectories out.

This suffices for text; `embodied_rollout` adds frames and the video encoder.
"""

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from siirl.engine.rollout.engine import RolloutEngine
from siirl.engine.rollout.generation import EngineWithTokenizer
from siirl.engine.rollout.inference_engine import InferenceEngine
from siirl.engine.rollout.workflow import EpisodeRequest, RolloutResult, RolloutWorkflow
from siirl.engine.training.collectives import Collectives
from siirl.env_server.pool import EnvPool
from siirl.errors import TooManyFailures
from siirl.interrupts import Interrupted
from siirl.occupation import OCCUPATION


class Rollout(InferenceEngine):
    """Runs the episodes of one workflow on one rank's environments.

    Call `start` before and `close` after.

    Args:
        pool: The environments.
        engine: Generates the actions or texts.
        workflow: Runs an episode.
    """

    pool: EnvPool

    def __init__(self, *, pool: EnvPool, engine: RolloutEngine, workflow: RolloutWorkflow) -> None:
        super().__init__(engine, pool=pool)
        self.workflow = workflow

    def start(self) -> None:
        """Start the environments."""
        self.initialize()

    def close(self) -> None:
        """End the environments and release the model; safe to call twice."""
        try:
            with OCCUPATION.doing("closes the environments"):
                self.destroy()
        finally:
            self.engine.close()

    def engine_with_tokenizer(self) -> EngineWithTokenizer | None:
        """How this rollout's engine plays roles in other agent groups' environments; None: it
        plays none.
        """
        return self.workflow.engine_with_tokenizer(self.engine)

    def generate(
        self,
        requests: Sequence[EpisodeRequest],
        *,
        embed: bool = False,
        workflow: RolloutWorkflow | None = None,
        on_done: Callable[[EpisodeRequest], None] = lambda request: None,
    ) -> tuple[RolloutResult, dict[str, float]]:
        """Run all episodes; afterwards the engine rests.

        Args:
            requests: The episodes.
            embed: Whether rows get the embedding by which a reward compares episodes; only videos
                are embedded.
            workflow: Replaces this rollout's workflow, usually by a wrapper around it.
            on_done: Called with each request when its episode has ended.

        Returns:
            The episodes in the order of the requests, including those that could not be simulated
            (`check_failures` decides over all ranks how many may fail), and raw
            counts: seconds, busy seconds, policy calls, environment steps.
        """
        workflow = workflow or self.workflow
        with self.acting(workflow, embed=embed):
            begin = time.perf_counter()
            self.pool.stats()  # resets the counts
            result = self.rollout_batch(requests, workflow, on_done=on_done)
            stats = self.take_stats(seconds=time.perf_counter() - begin)
            self.engine.rest()
        if embed:
            begin = time.perf_counter()
            self.embed(result)
            stats["encode_s"] = time.perf_counter() - begin
        return result, stats

    async def generate_beside(self, requests: Sequence[EpisodeRequest]) -> RolloutResult:
        """Run episodes beside those of other calls, with what a reward needs, as with `embed`."""
        return await self.episodes(requests, self.workflow)

    def acting(
        self, workflow: RolloutWorkflow, *, embed: bool
    ) -> contextlib.AbstractContextManager[None]:
        """Settings while the episodes of `workflow` run; a subclass may have some."""
        return contextlib.nullcontext()

    def embed(self, result: RolloutResult) -> None:
        """Add the embeddings of `generate` to the rows; a subclass may have some."""

    def take_stats(self, *, seconds: float) -> dict[str, float]:
        """Counts of engine and environments since the last call, which was `seconds` ago."""
        stats = {f"policy_{name}": value for name, value in self.engine.take_stats().items()}
        memory = {f"memory/{name}_bytes": size for name, size in self.engine.take_memory().items()}
        return {"seconds": seconds, **stats, **memory, **self.pool.stats()}


def requests_for_prompts(
    prompts: Sequence[Mapping[str, Any]],
    *,
    rollouts: int,
    run_seed: int,
    step: int,
    record: int,
    noise_correlation: float = 0.0,
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
        record: Number of episodes to record as videos.
        noise_correlation: See `EpisodeRequest`.
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
                noise_correlation=noise_correlation,
                record=rollout == 0 and place < record,
                options=reset_options(prompt),
            )
            requests.append(request)
    return requests


def reset_options(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """Reset options of a prompt: its row if it comes from a file."""
    return {"row": json.loads(prompt["prompt_row"])} if "prompt_row" in prompt else {}


def check_failures(
    result: RolloutResult, *, episodes: int, max_failed_share: float, ranks: Collectives
) -> None:
    """Raise if more than `max_failed_share` of all ranks' episodes failed, or a rank was stopped.

    The share is taken over all ranks of a step, so that either all ranks stop or none. If all
    episodes of a rank fail but the total share is low enough, the rank continues without rows. A
    limit for each rank would be too strict: with ten episodes a rank, one failure is more than 5 %.

    Args:
        result: This rank's episodes.
        episodes: Number of this rank's episodes, finished and failed.
        max_failed_share: `env.max_failed_share`.
        ranks: The processes that share the step; each of them calls this.

    Raises:
        TooManyFailures: More failed; the message is the same on every rank.
        Interrupted: A rank received a stop signal; every rank raises it.
    """
    failed = result.failed
    own = (len(failed), episodes, result.reasons()[:1], result.broken_off)
    counts, totals, firsts, broken_off = zip(*ranks.gather_objects(own), strict=True)
    if any(broken_off):
        raise Interrupted(max(broken_off))
    if sum(counts) <= max_failed_share * sum(totals):
        return
    error = too_many_failures(
        sum(counts),
        episodes=sum(totals),
        max_failed_share=max_failed_share,
        first=next(itertools.chain(*firsts)),
    )
    raise error from (failed[0][1] if failed else None)


def too_many_failures(
    failed: int, *, episodes: int, max_failed_share: float, first: str
) -> TooManyFailures:
    """The error of a step in which too many episodes failed.

    Args:
        failed: Number of episodes that could not be simulated.
        episodes: Number of all episodes.
        max_failed_share: `env.max_failed_share`.
        first: Reason of the first (`RolloutResult.reasons`).
    """
    sentence, newline, trace = first.partition("\n")
    return TooManyFailures(
        f"{sentence} That is the first failure: {failed} of {episodes} episodes could not be "
        f"simulated, and env.max_failed_share={max_failed_share} allows fewer.{newline}{trace}"
    )
