"""The rollout of embodied policies: simulators, engine, workflow and video encoder held together
for one rank.

Videos are embedded here, because here the frames are; training batches never carry them.
"""

# D channel of the video embedding

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from envs.base import FrameRequest
from siirl.engine.rollout.executor import RolloutResult
from siirl.engine.rollout.rollout import Rollout
from siirl.engine.rollout.vla.embodied_engine import EmbodiedEngine
from siirl.engine.rollout.vla.embodied_workflow import EmbodiedWorkflow
from siirl.engine.rollout.workflow import (
    ENCODER_STREAM,
    RECORDER_STREAM,
    EpisodeRequest,
    RolloutWorkflow,
)
from siirl.env_server.pool import EnvPool
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
    blind: bool


class EmbodiedRollout(Rollout):
    """Runs episodes of one policy on one rank's simulators; start it, and close it."""

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
        """Run all episodes; with `embed`, each row gets its `video_embedding` where there is an
        encoder. See `Rollout.generate`.
        """
        self.workflow.streams = self.recorder_stream | (self.encoder_stream if embed else {})
        with one_thread():
            result, stats = super().generate(
                requests, embed=embed, workflow=workflow, on_done=on_done
            )
        if embed and self.encoder is not None and result.trajectories:
            begin = time.perf_counter()
            embeddings_BD = self.encoder.encode(
                [trajectory.frames[ENCODER_STREAM].images for trajectory in result.trajectories]
            )
            for trajectory, embedding_D in zip(result.trajectories, embeddings_BD, strict=True):
                trajectory.row["video_embedding"] = embedding_D
            stats["encode_s"] = time.perf_counter() - begin
        return result, stats


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch on one thread: simulators have the other cores. Videos are embedded, and weights
    trained, when simulators rest.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
