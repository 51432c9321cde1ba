"""Rollout of embodied policies: simulators, engine, workflow and video encoder of one rank.

Videos are embedded here, because training batches carry no frames.
"""

# D channel of the video embedding

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from envs.base import FrameRequest
from siirl.engine.rollout.rollout import Rollout
from siirl.engine.rollout.vla.embodied_engine import EmbodiedEngine
from siirl.engine.rollout.vla.embodied_workflow import EmbodiedWorkflow
from siirl.engine.rollout.vla.segment_workflow import SegmentWorkflow
from siirl.engine.rollout.workflow import (
    ENCODER_STREAM,
    RECORDER_STREAM,
    EpisodeRequest,
    RolloutResult,
    RolloutWorkflow,
)
from siirl.env_server.pool import EnvPool
from siirl.models.policy import Policy
from vjepa.encoders import VideoEncoder


@dataclass(frozen=True)
class RolloutSettings:
    """Settings of a run's rollout."""

    temperature: float
    top_p: float
    deterministic: bool
    frame_every: int
    """Environment steps between frames for the video encoder."""
    recorder: FrameRequest
    """Frames of recorded episodes."""
    blind: bool


class EmbodiedRollout(Rollout):
    """Runs episodes of one policy on one rank's simulators."""

    engine: EmbodiedEngine
    workflow: EmbodiedWorkflow

    def __init__(
        self,
        *,
        policy: Policy,
        pool: EnvPool,
        encoder: VideoEncoder | None,
        settings: RolloutSettings,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        engine = EmbodiedEngine(
            policy=policy,
            temperature=settings.temperature,
            lockstep=settings.deterministic,
            batch_rows=pool.num_slots,
            top_p=settings.top_p,
            compute_dtype=compute_dtype,
        )
        self.segments: SegmentWorkflow | None = None
        """Runs the segments of training; None if training uses whole episodes."""
        self.recorder_stream = {RECORDER_STREAM: settings.recorder}
        workflow = EmbodiedWorkflow(
            pool=pool, policy=policy, streams=self.recorder_stream, blind=settings.blind
        )
        super().__init__(pool=pool, engine=engine, workflow=workflow)
        self.encoder = encoder
        self.encoder_stream = (
            {}
            if encoder is None
            else {ENCODER_STREAM: FrameRequest(settings.frame_every, encoder.image_size)}
        )

    def generate(
        self,
        requests: Sequence[EpisodeRequest],
        *,
        embed: bool = False,
        workflow: RolloutWorkflow | None = None,
        on_done: Callable[[EpisodeRequest], None] = lambda request: None,
    ) -> tuple[RolloutResult, dict[str, float]]:
        """See `Rollout.generate`; with `embed` and an encoder, rows get a `video_embedding`.

        Running segments give their environments to the episodes of other workflows.
        """
        if self.segments is not None and workflow is not self.segments:
            self.loop.run_until_complete(self.segments.park())
        self.workflow.streams = self.recorder_stream | (self.encoder_stream if embed else {})
        with one_thread():
            result, stats = super().generate(
                requests, embed=embed, workflow=workflow, on_done=on_done
            )
        if embed and self.encoder is not None and result.trajectories:
            begin = time.perf_counter()
            self._embed(result, self.encoder)
            stats["encode_s"] = time.perf_counter() - begin
        return result, stats

    def close(self) -> None:
        """See `Rollout.close`."""
        if self.segments is not None and not self.loop.is_closed():
            self.loop.run_until_complete(self.segments.park())
        super().close()

    async def generate_beside(self, requests: Sequence[EpisodeRequest]) -> RolloutResult:
        """See `Rollout.generate_beside`."""
        workflow = copy.copy(self.workflow)
        workflow.streams = self.recorder_stream | self.encoder_stream
        result = await self.episodes(requests, workflow)
        if self.encoder is not None and result.trajectories:
            self._embed(result, self.encoder)
        return result

    @staticmethod
    def _embed(result: RolloutResult, encoder: VideoEncoder) -> None:
        videos = [trajectory.frames[ENCODER_STREAM].images for trajectory in result.trajectories]
        embeddings_BD = encoder.encode(videos)
        for trajectory, embedding_D in zip(result.trajectories, embeddings_BD, strict=True):
            trajectory.row["video_embedding"] = embedding_D


@contextmanager
def one_thread() -> Iterator[None]:
    """Run PyTorch on one thread, leaving the other cores to the simulators.

    Embedding and training use all threads, because the simulators are idle then.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
