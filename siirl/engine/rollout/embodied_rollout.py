"""The rollout of embodied policies: simulators, engine, workflow and video encoder held together for one rank.

What a stage sees of it: requests in, finished trajectories out, with the metrics of the rollout. Videos are embedded here, because
here the frames are; training batches never carry them.
"""

# D channel of the video embedding

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from envs.base import FrameRequest
from siirl.engine.rollout.embodied_engine import EmbodiedEngine
from siirl.engine.rollout.executor import RolloutResult, rollout_batch
from siirl.engine.rollout.workflow import ENCODER_STREAM, RECORDER_STREAM, EmbodiedWorkflow, EpisodeRequest
from siirl.env_server.pool import EnvPool
from siirl.errors import TooManyFailures
from siirl.models.policy import Policy
from vjepa.encoders import VideoEncoder


@dataclass(frozen=True)
class RolloutSettings:
    """What the rollout of a run is made with."""

    temperature: float
    top_p: float
    deterministic: bool
    frame_every: int
    """Environment steps between frames for the video encoder."""
    recorder: FrameRequest
    """Frames of recorded episodes."""
    max_failed_share: float
    """Share of episodes that may fail to simulate before the run stops."""
    blind: bool


class EmbodiedRollout:
    """Runs episodes of one policy on one rank's simulators; start it, and close it."""

    def __init__(
        self,
        *,
        policy: Policy,
        pool: EnvPool,
        encoder: VideoEncoder | None,
        settings: RolloutSettings,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        self.pool, self.encoder, self.settings = pool, encoder, settings
        self.loop = asyncio.new_event_loop()  # not asyncio.Runner: it was measured to take a second for a result of 96 trajectories
        self.engine = EmbodiedEngine(
            policy=policy,
            temperature=settings.temperature,
            lockstep=settings.deterministic,
            batch_rows=pool.num_slots,
            top_p=settings.top_p,
            compute_dtype=compute_dtype,
        )
        self.workflow = EmbodiedWorkflow(pool=pool, policy=policy, streams={RECORDER_STREAM: settings.recorder}, blind=settings.blind)
        self.encoder_stream = {} if encoder is None else {ENCODER_STREAM: FrameRequest(settings.frame_every, encoder.image_size)}

    def start(self) -> None:
        """Bring the simulators up."""
        self.loop.run_until_complete(self.pool.start())

    def close(self) -> None:
        """End the simulators; safe to call twice."""
        if not self.loop.is_closed():
            self.loop.run_until_complete(self.pool.close())
            self.loop.close()

    def generate(
        self, requests: Sequence[EpisodeRequest], *, embed: bool, on_done: Callable[[EpisodeRequest], None] = lambda request: None
    ) -> tuple[RolloutResult, dict[str, float]]:
        """Run all episodes; with `embed`, each row gets its `video_embedding` where there is an encoder.

        Returns:
            The episodes in the order of the requests, and raw counts: seconds, busy seconds, policy calls, environment steps.

        Raises:
            TooManyFailures: More than the tolerated share of episodes could not be simulated.
        """
        begin = time.perf_counter()
        self.pool.stats()  # counts from here on, not since the last rollout
        self.workflow.streams = {RECORDER_STREAM: self.settings.recorder} | (self.encoder_stream if embed else {})
        self.engine.expect(episodes=len(requests), at_once=self.pool.num_slots)

        def done(request: EpisodeRequest) -> None:
            self.engine.episode_ended()
            on_done(request)

        result = self._run(rollout_batch(self.workflow, self.engine, requests, on_done=done))
        seconds = time.perf_counter() - begin
        self._check_failures(result, len(requests))
        stats = {"seconds": seconds, **{f"policy_{name}": value for name, value in self.engine.take_stats().items()}, **self.pool.stats()}
        if embed and self.encoder is not None and result.trajectories:
            embeddings_BD = self.encoder.encode([trajectory.frames[ENCODER_STREAM].images for trajectory in result.trajectories])
            for trajectory, embedding_D in zip(result.trajectories, embeddings_BD, strict=True):
                trajectory.row["video_embedding"] = embedding_D
            stats["encode_s"] = time.perf_counter() - begin - seconds
        return result, stats

    def _run(self, rollout: Coroutine[Any, Any, RolloutResult]) -> RolloutResult:
        """Run to the end; where Ctrl-C comes between, end the episodes first: each would complain when its simulator is closed."""
        task = self.loop.create_task(rollout)
        try:
            return self.loop.run_until_complete(task)
        finally:
            task.cancel()
            while not task.done():
                with contextlib.suppress(KeyboardInterrupt):  # asyncio raises it again from every task that it met
                    self.loop.run_until_complete(asyncio.wait({task}))
            if not task.cancelled():
                task.exception()  # taken note of

    def _check_failures(self, result: RolloutResult, episodes: int) -> None:
        if len(result.failed) > self.settings.max_failed_share * episodes:
            request, reason = result.failed[0]
            raise TooManyFailures(
                f"{len(result.failed)} of {episodes} episodes could not be simulated, more than env.max_failed_share="
                f"{self.settings.max_failed_share} allows. The first: {request.task!r} with seed {request.seed}: {reason}"
            ) from reason


def requests_for_prompts(
    prompts: Sequence[dict[str, Any]], *, rollouts: int, run_seed: int, step: int, record: int
) -> list[EpisodeRequest]:
    """The episodes of a training step: `rollouts` for each prompt, the first `record` of different prompts with a video.

    Unique ids and policy seeds are made of run seed, step, group and rollout, so they are the same however ranks share the prompts.
    """
    requests: list[EpisodeRequest] = []
    for prompt in prompts:
        for rollout in range(rollouts):
            requests.append(
                EpisodeRequest(
                    uid=f"{step:06d}-{prompt['index']:08d}-{rollout:03d}",
                    group_id=prompt["index"],
                    task=prompt["task_name"],
                    task_id=prompt["task_id"],
                    trial_id=prompt["trial_id"],
                    seed=prompt["seed"],
                    policy_seed=(run_seed, step, prompt["index"], rollout),
                    record=rollout == 0 and len(requests) < record * rollouts,
                )
            )
    return requests
