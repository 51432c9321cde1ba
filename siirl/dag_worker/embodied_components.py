"""Builds the objects of a VLA policy's rank; the counterpart of `text_components`."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from envs.base import FrameRequest
from siirl.dag_worker.components import RankBuilder, Rollouts, cut_by_chunk, make_task_loader
from siirl.dag_worker.critic_components import make_critic
from siirl.dag_worker.rollout_collector import (
    RolloutCollector,
    return_rollout_metrics,
    rollout_metrics,
)
from siirl.dag_worker.segment_collector import SegmentCollector
from siirl.dag_worker.validator import Validator
from siirl.data_coordinator.task_stream import Loader, TaskLoader
from siirl.engine.actor.embodied_scorer import embodied_scorer, observe_rows
from siirl.engine.critic.critic import Critic
from siirl.engine.critic.value_model import PolicyFeatures
from siirl.engine.critic.value_scorers import embodied_value_scorer, first_token_of_each_chunk
from siirl.engine.reward_manager import RewardManager, make_reward_manager, pooling_of
from siirl.engine.reward_manager.demonstration_clips import load_demonstration_clips
from siirl.engine.rollout.vla.embodied_rollout import EmbodiedRollout
from siirl.engine.rollout.vla.segment_workflow import SegmentWorkflow
from siirl.engine.training.collectives import Collectives
from siirl.env_server.pool import EnvPool
from siirl.errors import ConfigError
from siirl.files.paths import find
from siirl.files.weight_files import learnt_tasks
from siirl.models.policy import Policy
from siirl.models.policy_loader import build_policy
from siirl.params import RewardArguments, sizes
from siirl.reporting.finished_episodes import EpisodeRecorder
from siirl.reporting.recorder import VIDEOS_FOLDER, VideoRecorder
from vjepa.encoders import VideoEncoder, load_video_encoder
from vjepa.latent_encoder import EncoderPlacement

SAMPLED = (False,)


class EmbodiedBuilder(RankBuilder):
    """Builds the objects of a VLA policy's rank."""

    kinds = SAMPLED
    scorer = staticmethod(embodied_scorer)

    # Training

    def planned(self) -> Policy:
        """See `RankBuilder`."""
        policy = self.initial(None)
        lora = self.model.lora
        if lora.rank > 0:
            policy.adapt(lora, seed=self.config.trainer.seed)
        return policy

    def initial(self, path: str | None) -> Policy:
        """See `RankBuilder`."""
        path = path or self.model.path
        return build_policy(
            self.model.policy,
            path=None if path is None else str(find(path)),
            spec=self.spec,
            seed=self.config.trainer.seed,
            options=self.model.options,
            weights=False,
        )

    def critic(self, steps: int) -> Critic:
        """See `RankBuilder`."""
        trunk = PolicyFeatures(self.initial(self.config.critic.path))
        return make_critic(
            self.config.critic,
            policy=self.config.actor_rollout_ref,
            trainer=self.config.trainer,
            steps=steps,
            trunk=trunk,
            feature_size=trunk.feature_size,
            scorer=embodied_value_scorer,
            decisions=first_token_of_each_chunk,
            ranks=self.ranks,
            device=self.device,
            compute_dtype=self.compute_dtype,
            cut=cut_by_chunk(self.config.actor_rollout_ref.actor),
            observe=self.observer(trunk.policy),
        )

    def observer(self, module: Policy) -> Callable[[TensorDict], None]:
        """See `RankBuilder`."""
        return functools.partial(observe_rows, policy=module, ranks=self.ranks)

    def longest_response(self, module: Policy) -> int:
        """See `RankBuilder`."""
        return self.spec.max_episode_steps * module.action_tokenizer.dimensions

    def decision_tokens(self, module: Policy) -> int:
        """See `RankBuilder`."""
        return module.tokens_per_chunk

    def reward(self) -> RewardManager:
        """See `RankBuilder`; holds the embeddings of `reward.demonstrations`."""
        reward = self.config.reward
        encoder = None if reward.demonstrations is None else self.encoder
        return make_reward_manager(
            reward,
            demonstrations=demonstration_embeddings(reward, encoder, tasks=self.spec.tasks),
            tasks=self.spec.tasks,
        )

    def loader(self, ranks: Collectives) -> TaskLoader:
        """See `RankBuilder`."""
        return make_task_loader(self.config.data, tasks=self.spec.tasks, ranks=ranks)

    def describe(self, module: Policy, folder: Path) -> None:
        """See `RankBuilder`; lists the policy's initial tasks and those of this run."""
        path = self.model.path
        tasks = [*(() if path is None else learnt_tasks(path)), *self.spec.tasks]
        module.describe(folder, notes={"tasks": list(dict.fromkeys(tasks))})
        module.describe_adapters(folder)

    # Acting

    @functools.cached_property
    def encoder(self) -> VideoEncoder | None:
        """The reward's video encoder; None if it needs none."""
        if not sizes.needs_video(self.config.reward):
            return None
        return make_encoder(self.config.reward, device=self.device)

    def evaluated(self) -> Policy:
        """See `RankBuilder`."""
        policy: Policy = self.read(self.initial(None))
        return policy.eval()

    def rollouts(
        self,
        acting: Policy,
        *,
        pool: EnvPool,
        ranks: Collectives,
        folder: Path,
        first_step: int = 0,
        trains: bool = True,
    ) -> Rollouts:
        """See `RankBuilder`; without training no video is encoded."""
        rollout = self._rollout(acting, pool=pool, encoder=self.encoder if trains else None)
        videos = VideoRecorder(folder / VIDEOS_FOLDER, first_step=first_step, rank=ranks.rank)
        recorder = EpisodeRecorder(
            videos=videos, reports_success=self.spec.reports_success, notice=self.spec.notice
        )
        measure = rollout_metrics if self.spec.reports_success else return_rollout_metrics
        return Rollouts(rollout, acting, recorder, videos, measure)

    def validator(
        self,
        rollouts: Rollouts,
        *,
        ranks: Collectives,
        loader: Loader | None,
        reward: RewardManager | None,
    ) -> Validator:
        """See `RankBuilder`: held-out start states."""
        trainer = self.config.trainer
        return Validator(
            rollout=rollouts.rollout,
            ranks=ranks,
            recorder=rollouts.recorder,
            tasks=self.spec.tasks,
            episodes=trainer.val_episodes,
            first_seed=trainer.val_seed_offset,
            record=trainer.record_val_episodes,
            samples=trainer.val_samples,
            max_failed_share=self.config.env.max_failed_share,
        )

    def collector(self, rollouts: Rollouts, *, ranks: Collectives) -> RolloutCollector:
        """See `RankBuilder`: whole episodes, or segments with `rollout.n_steps`."""
        decisions = self.config.actor_rollout_ref.rollout.n_steps
        if decisions is None:
            return super().collector(rollouts, ranks=ranks)
        rollout = rollouts.rollout
        assert isinstance(rollout, EmbodiedRollout)
        rollout.segments = SegmentWorkflow(
            episodes=rollout.workflow,
            decisions=decisions,
            environments=self.config.data.train_batch_size,
        )
        return SegmentCollector(
            policy=self.config.actor_rollout_ref,
            trainer=self.config.trainer,
            max_failed_share=self.config.env.max_failed_share,
            rollout=rollout,
            segments=rollout.segments,
            recorder=rollouts.recorder,
            ranks=ranks,
            measure=rollouts.measure,
        )

    def _rollout(
        self, acting: Policy, *, pool: EnvPool, encoder: VideoEncoder | None
    ) -> EmbodiedRollout:
        rollout = self.config.actor_rollout_ref.rollout
        embodied = self.config.actor_rollout_ref.embodied
        return EmbodiedRollout(
            policy=acting,
            pool=pool,
            encoder=encoder,
            frame_every=self.config.reward.frame_every,
            recorder=FrameRequest(embodied.recorder_every, embodied.recorder_size),
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            lockstep=self.config.trainer.deterministic,
            blind=self.config.trainer.blind,
            compute_dtype=self.compute_dtype,
        )


def make_encoder(reward: RewardArguments, *, device: torch.device) -> VideoEncoder | None:
    """Load the reward's video encoder for a rank on `device`; None if the reward has no encoder."""
    if reward.encoder is None:
        return None
    return load_video_encoder(
        str(find(reward.encoder)),
        pooling=pooling_of(reward.name),
        placement=encoder_placement(reward, device=device),
    )


def encoder_placement(reward: RewardArguments, *, device: torch.device) -> EncoderPlacement:
    """Device, type and batch of the encoder of a rank on `device`.

    On a GPU it is offloaded while idle: rollout and update need the memory.
    """
    place = torch.device("cpu") if reward.encoder_device == "cpu" else device
    by_default = torch.float32 if place.type == "cpu" else torch.bfloat16
    return EncoderPlacement(
        device=place,
        dtype=by_default
        if reward.encoder_dtype is None
        else {"float32": torch.float32, "bfloat16": torch.bfloat16}[reward.encoder_dtype],
        batch_size=reward.encoder_batch_size,
        offload=place.type != "cpu",
    )


def demonstration_embeddings(
    reward: RewardArguments, encoder: VideoEncoder | None, *, tasks: Sequence[str]
) -> dict[str, NDArray[np.float32]]:
    """Embeddings [N, D] of demonstration clips by task; empty without `reward.demonstrations`."""
    file = reward.demonstrations
    if file is None:
        return {}
    if encoder is None:
        raise ConfigError(
            f"reward.demonstrations={file} is compared with videos, but reward.name={reward.name} "
            "does not use videos."
        )
    clips = load_demonstration_clips(str(find(file)), tasks=tasks, every=reward.frame_every)
    return {task: encoder.encode(of_task) for task, of_task in clips.items()}
