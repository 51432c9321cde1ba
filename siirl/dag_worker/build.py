"""Makes everything that a rank works with, from the configuration: simulators, policy, actor, reward, recorder, checkpoints.

Each function makes one thing; `build_embodied` puts them together. Nothing here runs an episode or a step.
"""

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from envs.base import EnvSpec, FrameRequest
from siirl.algos.kl import AdaptiveKLController, FixedKLController
from siirl.dag_worker.checkpoint import CheckpointManager
from siirl.dag_worker.context import StageContext
from siirl.dag_worker.domain import EmbodiedDomain
from siirl.dag_worker.record import EpisodeRecorder
from siirl.dag_worker.recorder import VIDEOS_FOLDER, VideoRecorder
from siirl.dag_worker.validator import Validator
from siirl.data_coordinator.loader import TaskLoader
from siirl.data_coordinator.redistribution import Redistribution
from siirl.engine.actor.actor import Actor
from siirl.engine.actor.embodied_scorer import embodied_scorer
from siirl.engine.collectives import Collectives
from siirl.engine.reward_manager import make_reward_manager
from siirl.engine.reward_manager.embodied import load_demonstration_clips
from siirl.engine.rollout.embodied_rollout import EmbodiedRollout, RolloutSettings
from siirl.engine.train_engine import TrainEngine
from siirl.engine.weight_sync import WeightSync
from siirl.env_server.pool import EnvPool
from siirl.errors import ConfigError
from siirl.models.loader import build_policy, describe_policy
from siirl.models.policy import Policy
from siirl.params import SiiRLArguments, sizes
from siirl.params.paths import find
from vjepa.encoders import VideoEncoder, load_video_encoder


@dataclass
class Rank:
    """What a DAGWorker holds beside its graph."""

    context: StageContext
    rollout: EmbodiedRollout
    loader: TaskLoader
    validator: Validator
    videos: VideoRecorder
    checkpoints: CheckpointManager

    def state(self) -> dict:
        """What the next step depends on beside weights and moments; the same on every rank."""
        context = self.context
        return {
            "loader": self.loader.state_dict(),
            "reward": context.reward.state_dict(),
            "actor": context.actor.state_dict(),
            "kl_controller": context.kl_controller.state_dict(),
            "redistribution": context.redistribution.state_dict(),
        }

    def load_state(self, state: dict) -> None:
        """The inverse of `state`."""
        self.loader.load_state_dict(state["loader"])
        self.context.reward.load_state_dict(state["reward"])
        self.context.actor.load_state_dict(state["actor"])
        self.context.kl_controller.load_state_dict(state["kl_controller"])
        self.context.redistribution.load_state_dict(state.get("redistribution", {}))  # the first checkpoints had none


def build_embodied(
    *, config: SiiRLArguments, run_folder: Path, ranks: Collectives, redistribution: Redistribution, device: torch.device, first_step: int
) -> Rank:
    """Everything of one rank of an embodied job."""
    pool = make_pool(config, ranks)
    policy = make_policy(config, pool.spec).to(device)
    acting = policy if ranks.size == 1 else copy.deepcopy(policy).eval()
    encoder = make_encoder(config)
    rollout = make_rollout(config, pool=pool, acting=acting, encoder=encoder)
    actor = make_actor(config, policy=policy, ranks=ranks, device=device, spec=pool.spec)
    videos = VideoRecorder(run_folder / VIDEOS_FOLDER, first_step=first_step, rank=ranks.rank)
    recorder = EpisodeRecorder(videos=videos, reports_success=pool.spec.reports_success)
    context = StageContext(
        config=config,
        run_folder=run_folder,
        ranks=ranks,
        domain=EmbodiedDomain(config=config, rollout=rollout, recorder=recorder, ranks=ranks),
        actor=actor,
        reference=make_reference(config, ranks=ranks, device=device, spec=pool.spec),
        reward=make_reward_manager(config.reward, demonstrations=demonstration_embeddings(config, encoder), tasks=pool.spec.tasks),
        weights=WeightSync(trained=actor.engine, acting=acting, engine=rollout.engine, ranks=ranks),
        redistribution=redistribution,
        kl_controller=make_kl_controller(config),
    )
    tasks, trainer = pool.spec.tasks, config.trainer
    loader = TaskLoader(
        tasks=tasks, prompts_per_step=config.data.train_batch_size, seed=config.data.seed, rank=ranks.rank, ranks=ranks.size
    )
    validator = Validator(
        rollout=rollout,
        ranks=ranks,
        recorder=recorder,
        tasks=tasks,
        episodes=trainer.val_episodes,
        first_seed=trainer.val_seed_offset,
        record=trainer.record_val_episodes,
    )
    checkpoints = CheckpointManager(
        folder=run_folder / "checkpoints",
        engines={"actor": actor.engine},
        ranks=ranks,
        export=lambda folder: describe_policy(policy, folder / "actor"),
    )
    return Rank(context, rollout, loader, validator, videos, checkpoints)


def make_pool(config: SiiRLArguments, ranks: Collectives) -> EnvPool:
    """This rank's share of the simulators; at least one server a rank."""
    env = config.env
    return EnvPool(
        env.name,
        env.constructor_kwargs(),
        num_servers=max(1, env.num_servers // ranks.size + (ranks.rank < env.num_servers % ranks.size)),
        envs_per_server=env.envs_per_server,
        cluster=config.cluster.mode,
        deadline_s=env.deadline_s,
        max_replays=env.max_replays,
    )


def make_policy(config: SiiRLArguments, spec: EnvSpec, *, path: str | None = None) -> Policy:
    """The policy of the job, or that of another folder `path`."""
    model = config.actor_rollout_ref.model
    path = path or model.path
    return build_policy(
        model.policy, path=None if path is None else str(find(path)), spec=spec, seed=config.trainer.seed, options=model.options
    )


def make_rollout(config: SiiRLArguments, *, pool: EnvPool, acting: Policy, encoder: VideoEncoder | None) -> EmbodiedRollout:
    """Simulators, the policy that acts, and the video encoder."""
    settings = RolloutSettings(
        temperature=config.actor_rollout_ref.rollout.temperature,
        top_p=config.actor_rollout_ref.rollout.top_p,
        deterministic=config.trainer.deterministic,
        frame_every=config.reward.frame_every,
        recorder=FrameRequest(config.actor_rollout_ref.embodied.recorder_every, config.actor_rollout_ref.embodied.recorder_size),
        max_failed_share=config.env.max_failed_share,
        blind=config.trainer.blind,
    )
    return EmbodiedRollout(policy=acting, pool=pool, encoder=encoder, settings=settings, compute_dtype=compute_dtype(config))


def make_encoder(config: SiiRLArguments) -> VideoEncoder | None:
    """The video encoder that the reward asks for, or None."""
    if not sizes.needs_video(config) or config.reward.encoder is None:
        return None
    return load_video_encoder(config.reward.encoder)


def make_actor(config: SiiRLArguments, *, policy: Policy, ranks: Collectives, device: torch.device, spec: EnvSpec) -> Actor:
    """The trained policy with its optimiser."""
    settings, total_steps = config.actor_rollout_ref, config.trainer.total_steps
    engine = TrainEngine(
        module=policy,
        scorer=embodied_scorer,
        ranks=ranks,
        optim=settings.actor.optim,
        total_steps=None if total_steps is None else total_steps * sizes.optimiser_steps_per_step(config),
        micro_batch_size=settings.actor.micro_batch_size,
        temperature=settings.rollout.temperature,
        max_grad_norm=settings.actor.max_grad_norm,
        device=device,
        compute_dtype=compute_dtype(config),
    ).initialize()
    return Actor(
        engine=engine,
        config=settings.actor,
        rollouts_per_prompt=settings.rollout.n,
        seed=config.trainer.seed,
        horizon=spec.max_episode_steps * policy.action_tokenizer.dimensions,
    )


def make_reference(config: SiiRLArguments, *, ranks: Collectives, device: torch.device, spec: EnvSpec) -> Actor | None:
    """The policy that KL is measured against; None, and no memory taken, where no KL has a weight."""
    if not sizes.needs_reference(config):
        return None
    settings = config.actor_rollout_ref
    engine = TrainEngine(
        module=make_policy(config, spec, path=settings.ref.path),
        scorer=embodied_scorer,
        ranks=ranks,
        optim=None,
        total_steps=None,
        micro_batch_size=settings.actor.micro_batch_size,
        temperature=settings.rollout.temperature,
        device=device,
        compute_dtype=compute_dtype(config),
    ).initialize()
    return Actor(engine=engine, config=settings.actor, rollouts_per_prompt=settings.rollout.n, seed=config.trainer.seed, horizon=1)


def compute_dtype(config: SiiRLArguments) -> torch.dtype | None:
    """Type of the forward and backward passes; None is the weights' own float32."""
    return torch.bfloat16 if config.actor_rollout_ref.model.dtype == "bfloat16" else None


def make_kl_controller(config: SiiRLArguments) -> FixedKLController:
    """Coefficient of the KL in the reward, fixed or adaptive."""
    control = config.algorithm.kl_ctrl
    if control.type == "fixed":
        return FixedKLController(control.kl_coef)
    return AdaptiveKLController(control.kl_coef, control.target_kl, control.horizon)


def demonstration_embeddings(config: SiiRLArguments, encoder: VideoEncoder | None) -> dict[str, NDArray[np.float32]]:
    """Embeddings [N, D] of demonstration clips by task; empty without `reward.demonstrations`."""
    file = config.reward.demonstrations
    if file is None:
        return {}
    if encoder is None:
        raise ConfigError(f"reward.demonstrations={file} is compared with videos, and reward.name={config.reward.name} looks at none.")
    return {task: encoder.encode(clips) for task, clips in load_demonstration_clips(str(find(file))).items()}
