"""Builds the components of an embodied rank: simulators, policy, reward, recorder, checkpoints.

Shared builders are in `components`. Each function builds one object; `build_embodied` combines
them. No function runs an episode or a step.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from envs.base import EnvSpec, FrameRequest
from siirl.dag_worker.checkpoint import CheckpointManager
from siirl.dag_worker.components import (
    Evaluation,
    WorkerComponents,
    compute_dtype,
    make_actor,
    make_engine,
    make_kl_controller,
    make_pool,
    make_task_loader,
)
from siirl.dag_worker.context import StageContext
from siirl.dag_worker.critic_components import make_critic
from siirl.dag_worker.rollout_collector import (
    Measure,
    RolloutCollector,
    return_rollout_metrics,
    rollout_metrics,
)
from siirl.dag_worker.validator import Validator
from siirl.data_coordinator.redistribution import Redistribution
from siirl.engine.actor.actor import Actor
from siirl.engine.actor.embodied_scorer import embodied_scorer
from siirl.engine.actor.reference import Reference, WithoutAdapter
from siirl.engine.critic.critic import Critic
from siirl.engine.critic.value_model import PolicyFeatures
from siirl.engine.critic.value_scorers import (
    embodied_value_scorer,
    first_token_of_each_chunk,
)
from siirl.engine.reward_manager import make_reward_manager
from siirl.engine.reward_manager.embodied_rewards import load_demonstration_clips
from siirl.engine.rollout.vla.embodied_rollout import EmbodiedRollout, RolloutSettings
from siirl.engine.training.collectives import Collectives
from siirl.engine.training.weight_sync import WeightSync, acting_copy
from siirl.env_server.pool import EnvPool
from siirl.errors import ConfigError, InvariantError
from siirl.models.policy import Policy
from siirl.models.policy_loader import build_policy
from siirl.models.weights import materialise, move_to
from siirl.params import RewardArguments, SiiRLArguments, sizes
from siirl.params.paths import find
from siirl.params.weight_files import learnt_tasks
from siirl.reporting.finished_episodes import EpisodeRecorder
from siirl.reporting.recorder import VIDEOS_FOLDER, VideoRecorder
from vjepa.encoders import VideoEncoder, load_video_encoder
from vjepa.latent_encoder import Computing


def build_embodied(
    *,
    config: SiiRLArguments,
    run_folder: Path,
    ranks: Collectives,
    redistribution: Redistribution,
    device: torch.device,
    first_step: int,
    with_critic: bool = False,
    checkpoints: Path | None = None,
    ending: str = "",
    shares: WorkerComponents | None = None,
    sharers: Sequence[SiiRLArguments] = (),
) -> WorkerComponents:
    """Build all components of one embodied rank; arguments as of `build_text`.

    Raises:
        InvariantError: Shared weights, which `siirl.preflight.agent_checks` refuses.
    """
    if shares is not None or sharers:
        raise InvariantError("Agent groups of robots have weights of their own.")
    pool = make_pool(config, ranks)
    policy = make_trained_policy(config, pool.spec)
    move_to(policy, device)
    if ranks.group is None:
        materialise(policy, device)
    acting = (
        policy if ranks.group is None else acting_copy(policy, compute_dtype(config), device=device)
    )
    encoder = make_encoder(config, device=device)
    rollout = make_rollout(config, pool=pool, acting=acting, encoder=encoder)
    engine = make_engine(
        config, module=policy, scorer=embodied_scorer, ranks=ranks, device=device, trained=True
    )
    actor = make_actor(
        config,
        engine=engine,
        horizon=pool.spec.max_episode_steps * policy.action_tokenizer.dimensions,
    )
    critic = (
        make_embodied_critic(config, ranks=ranks, device=device, spec=pool.spec)
        if with_critic
        else None
    )
    videos = VideoRecorder(run_folder / VIDEOS_FOLDER, first_step=first_step, rank=ranks.rank)
    recorder = EpisodeRecorder(
        videos=videos, reports_success=pool.spec.reports_success, notice=pool.spec.notice
    )
    loader = make_task_loader(config, tasks=pool.spec.tasks, ranks=ranks)
    context = StageContext(
        config=config,
        run_folder=run_folder,
        ranks=ranks,
        collector=RolloutCollector(
            config=config,
            rollout=rollout,
            recorder=recorder,
            ranks=ranks,
            measure=measure_of(pool.spec),
        ),
        actor=actor,
        reference=make_reference(
            config, actor=actor, policy=policy, ranks=ranks, device=device, spec=pool.spec
        ),
        reward=make_reward_manager(
            config.reward,
            demonstrations=demonstration_embeddings(config, encoder),
            tasks=pool.spec.tasks,
        ),
        weights=WeightSync(trained=actor.engine, acting=acting, engine=rollout.engine, ranks=ranks),
        redistribution=redistribution,
        kl_controller=make_kl_controller(config),
        critic=critic,
        loader=loader,
    )
    validator = make_validator(config, rollout=rollout, ranks=ranks, recorder=recorder)
    manager = CheckpointManager(
        folder=checkpoints or run_folder / "checkpoints",
        engines={
            f"actor{ending}": actor.engine,
            **({} if critic is None else {f"critic{ending}": critic.engine}),
        },
        ranks=ranks,
        asynchronous=config.trainer.async_save,
        export=lambda checkpoint: _describe(
            policy, checkpoint / f"actor{ending}", tasks=tasks_learnt_by(config, pool.spec)
        ),
    )
    return WorkerComponents(context, rollout, validator, videos, manager)


def _describe(policy: Policy, weights: Path, *, tasks: list[str]) -> None:
    """Write the files that turn the saved weights into a policy."""
    policy.describe(weights, notes={"tasks": tasks})
    policy.describe_adapters(weights)


def tasks_learnt_by(config: SiiRLArguments, spec: EnvSpec) -> list[str]:
    """Tasks of the initial policy, followed by the tasks of this run."""
    path = config.actor_rollout_ref.model.path
    return list(dict.fromkeys((*(() if path is None else learnt_tasks(path)), *spec.tasks)))


def measure_of(spec: EnvSpec) -> Measure:
    """Rollout metrics with success rates if the environment reports success, else returns only."""
    return rollout_metrics if spec.reports_success else return_rollout_metrics


def build_evaluation(*, config: SiiRLArguments, run_folder: Path, ranks: Collectives) -> Evaluation:
    """Build the components that evaluate the policy of a folder."""
    pool = make_pool(config, ranks)
    rollout = make_rollout(
        config, pool=pool, acting=make_policy(config, pool.spec).eval(), encoder=None
    )
    videos = VideoRecorder(run_folder / VIDEOS_FOLDER)
    recorder = EpisodeRecorder(
        videos=videos, reports_success=pool.spec.reports_success, notice=pool.spec.notice
    )
    return Evaluation(
        rollout, make_validator(config, rollout=rollout, ranks=ranks, recorder=recorder), videos
    )


def make_validator(
    config: SiiRLArguments,
    *,
    rollout: EmbodiedRollout,
    ranks: Collectives,
    recorder: EpisodeRecorder,
) -> Validator:
    """Validator on held-out start states."""
    trainer = config.trainer
    return Validator(
        rollout=rollout,
        ranks=ranks,
        recorder=recorder,
        tasks=rollout.pool.spec.tasks,
        episodes=trainer.val_episodes,
        first_seed=trainer.val_seed_offset,
        record=trainer.record_val_episodes,
        samples=trainer.val_samples,
        max_failed_share=config.env.max_failed_share,
    )


def make_policy(
    config: SiiRLArguments, spec: EnvSpec, *, path: str | None = None, weights: bool = True
) -> Policy:
    """Load the job's policy, or the policy of another folder `path`.

    With `weights` false large ones are read later (`siirl.models.weights.materialise`).
    """
    model = config.actor_rollout_ref.model
    path = path or model.path
    return build_policy(
        model.policy,
        path=None if path is None else str(find(path)),
        spec=spec,
        seed=config.trainer.seed,
        options=model.options,
        weights=weights,
    )


def make_trained_policy(config: SiiRLArguments, spec: EnvSpec) -> Policy:
    """Load the job's policy, with adapters if `model.lora.rank` is positive.

    Large weights are read later, see `make_policy`.
    """
    policy = make_policy(config, spec, weights=False)
    lora = config.actor_rollout_ref.model.lora
    if lora.rank > 0:
        policy.adapt(lora, seed=config.trainer.seed)
    return policy


def make_rollout(
    config: SiiRLArguments, *, pool: EnvPool, acting: Policy, encoder: VideoEncoder | None
) -> EmbodiedRollout:
    """Build the rollout from simulators, acting policy and video encoder."""
    settings = RolloutSettings(
        temperature=config.actor_rollout_ref.rollout.temperature,
        top_p=config.actor_rollout_ref.rollout.top_p,
        deterministic=config.trainer.deterministic,
        frame_every=config.reward.frame_every,
        recorder=FrameRequest(
            config.actor_rollout_ref.embodied.recorder_every,
            config.actor_rollout_ref.embodied.recorder_size,
        ),
        blind=config.trainer.blind,
    )
    return EmbodiedRollout(
        policy=acting,
        pool=pool,
        encoder=encoder,
        settings=settings,
        compute_dtype=compute_dtype(config),
    )


def make_encoder(config: SiiRLArguments, *, device: torch.device) -> VideoEncoder | None:
    """Load the reward's video encoder for a rank on `device`; None if it needs none."""
    if not sizes.needs_video(config) or config.reward.encoder is None:
        return None
    return load_video_encoder(
        config.reward.encoder, computing=encoder_computing(config.reward, device=device)
    )


def encoder_computing(reward: RewardArguments, *, device: torch.device) -> Computing:
    """Device, type and batch of the encoder of a rank on `device`.

    On a GPU it is offloaded while idle: rollout and update need the memory.
    """
    place = torch.device("cpu") if reward.encoder_device == "cpu" else device
    by_default = torch.float32 if place.type == "cpu" else torch.bfloat16
    return Computing(
        device=place,
        dtype=by_default
        if reward.encoder_dtype is None
        else {"float32": torch.float32, "bfloat16": torch.bfloat16}[reward.encoder_dtype],
        batch_size=reward.encoder_batch_size,
        offload=place.type != "cpu",
    )


def make_embodied_critic(
    config: SiiRLArguments, *, ranks: Collectives, device: torch.device, spec: EnvSpec
) -> Critic:
    """Build the critic: a value head on a separate copy of the initial policy's features."""
    trunk = PolicyFeatures(make_policy(config, spec, path=config.critic.path, weights=False))
    return make_critic(
        config,
        trunk=trunk,
        feature_size=trunk.feature_size,
        scorer=embodied_value_scorer,
        decisions=first_token_of_each_chunk,
        ranks=ranks,
        device=device,
        compute_dtype=compute_dtype(config),
    )


def make_reference(
    config: SiiRLArguments,
    *,
    actor: Actor,
    policy: Policy,
    ranks: Collectives,
    device: torch.device,
    spec: EnvSpec,
) -> Reference | None:
    """Build the KL's reference policy; None if no KL has a weight.

    With adapters and no `ref.path`, the reference is the policy without its adapters.
    """
    if not sizes.needs_reference(config):
        return None
    path = config.actor_rollout_ref.ref.path
    if path is None and policy.lora is not None:
        return WithoutAdapter(actor, policy)
    other = make_policy(config, spec, path=path, weights=False)
    engine = make_engine(
        config, module=other, scorer=embodied_scorer, ranks=ranks, device=device, trained=False
    )
    return make_actor(config, engine=engine, horizon=1)


def demonstration_embeddings(
    config: SiiRLArguments, encoder: VideoEncoder | None
) -> dict[str, NDArray[np.float32]]:
    """Embeddings [N, D] of demonstration clips by task; empty without `reward.demonstrations`."""
    file = config.reward.demonstrations
    if file is None:
        return {}
    if encoder is None:
        raise ConfigError(
            f"reward.demonstrations={file} is compared with videos, which "
            f"reward.name={config.reward.name} does not use."
        )
    return {
        task: encoder.encode(clips)
        for task, clips in load_demonstration_clips(str(find(file))).items()
    }
