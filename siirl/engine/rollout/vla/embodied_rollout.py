"""Rollout of embodied policies: simulators, engine, workflow and video encoder of one rank.

Videos are embedded here, because training batches carry no frames.
"""

# D channel of the video embedding

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from envs.base import ENCODER_STREAM, RECORDER_STREAM, FrameRequest
from siirl.engine.rollout.rollout import Rollout
from siirl.engine.rollout.vla.embodied_engine import EmbodiedEngine
from siirl.engine.rollout.vla.embodied_workflow import EmbodiedWorkflow
from siirl.engine.rollout.vla.segment_workflow import SegmentWorkflow
from siirl.engine.rollout.workflow import (
    EpisodeRequest,
    RolloutResult,
    RolloutWorkflow,
)
from siirl.env_server.pool import EnvPool
from siirl.models.policy import Policy
from vjepa.encoders import VideoEncoder
from vjepa.latent_encoder import LatentEncoder


class EmbodiedRollout(Rollout):
    """Runs episodes of one policy on one rank's simulators.

    Args:
        policy: The acting copy.
        pool: The simulators.
        encoder: Embeds the videos of training episodes; None: they are not embedded.
        frame_every: Environment steps between frames for the encoder.
        recorder: Frames of recorded episodes.
        temperature: Divides the logits; 1 leaves the policy as it is.
        top_p: Share of the probability from which actions are drawn; 1: all of it.
        lockstep: See `EmbodiedEngine`.
        blind: Zero every image, as a control without visual input.
        compute_dtype: Type of the engine's passes; None: the type of the weights.
    """

    engine: EmbodiedEngine
    workflow: EmbodiedWorkflow

    def __init__(
        self,
        *,
        policy: Policy,
        pool: EnvPool,
        encoder: VideoEncoder | None,
        frame_every: int,
        recorder: FrameRequest,
        temperature: float = 1.0,
        top_p: float = 1.0,
        lockstep: bool = False,
        blind: bool = False,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        engine = EmbodiedEngine(
            policy=policy,
            temperature=temperature,
            lockstep=lockstep,
            batch_rows=pool.num_slots,
            top_p=top_p,
            compute_dtype=compute_dtype,
        )
        self.segments: SegmentWorkflow | None = None
        """Runs the segments of training; None if training uses whole episodes."""
        self.recorder_stream = {RECORDER_STREAM: recorder}
        workflow = EmbodiedWorkflow(
            pool=pool, policy=policy, streams=self.recorder_stream, blind=blind
        )
        super().__init__(pool=pool, engine=engine, workflow=workflow)
        self.encoder = encoder
        self.encoder_stream = (
            {}
            if encoder is None
            else {ENCODER_STREAM: FrameRequest(frame_every, encoder.image_size)}
        )

    @contextmanager
    def acting(self, workflow: RolloutWorkflow, *, embed: bool) -> Iterator[None]:
        """One thread, and with `embed` the encoder's frames.

        Running segments give their environments to the episodes of other workflows.
        """
        if self.segments is not None and workflow is not self.segments:
            self.loop.run_until_complete(self.segments.park())
        self.workflow.streams = self.recorder_stream | (self.encoder_stream if embed else {})
        with one_thread():
            yield

    def embed(self, result: RolloutResult) -> None:
        """Add `video_embedding` to the rows, if there is an encoder."""
        if self.encoder is None or not result.trajectories:
            return
        videos = [each.frames[ENCODER_STREAM].images for each in result.trajectories]
        embeddings_BD = self.encoder.encode(videos)
        for trajectory, embedding_D in zip(result.trajectories, embeddings_BD, strict=True):
            trajectory.row["video_embedding"] = embedding_D

    def take_stats(self, *, seconds: float) -> dict[str, float]:
        """See `Rollout`; with the memory of the encoder's weights, if they are known."""
        stats = super().take_stats(seconds=seconds)
        if isinstance(self.encoder, LatentEncoder):
            stats["memory/encoder_bytes"] = float(self.encoder.weight_bytes)
        return stats

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
        self.embed(result)
        return result


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
