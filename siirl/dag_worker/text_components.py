"""Builds the components of a text rank; the counterpart of `embodied_components`.

Shared builders are in `components`. Each function builds one object; `build_text` combines them. No
function runs an episode or a step.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from envs.base import EnvSpec
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
from siirl.dag_worker.rollout_collector import RolloutCollector, text_rollout_metrics
from siirl.dag_worker.validator import Validator
from siirl.data_coordinator.prompts.prompt_loader import PromptLoader
from siirl.data_coordinator.redistribution import Redistribution
from siirl.data_coordinator.task_stream import EpisodeTask, TaskLoader
from siirl.engine.actor.actor import Actor
from siirl.engine.actor.packing import prefix_groups_of
from siirl.engine.actor.reference import Reference, WithoutAdapter
from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.critic.critic import Critic
from siirl.engine.critic.value_scorers import every_own_token, text_value_scorer, without_head
from siirl.engine.reward_manager import RewardManager
from siirl.engine.reward_manager.reward_model import make_reward_model
from siirl.engine.reward_manager.text_rewards import make_text_reward_manager, text_columns
from siirl.engine.rollout.generation import TextEngine
from siirl.engine.rollout.hf.hf_engine import HFEngine
from siirl.engine.rollout.rollout import Rollout
from siirl.engine.rollout.text_workflow import make_text_workflow
from siirl.engine.rollout.vllm.vllm_engine import AsyncVLLMEngine, VLLMEngine
from siirl.engine.training.collectives import Collectives
from siirl.engine.training.weight_sync import ActingWeights, WeightSync, acting_copy
from siirl.env_server.pool import EnvPool
from siirl.models.chat import ChatTokenizer, load_chat_tokenizer
from siirl.models.language_model import LanguageModel, load_language_model
from siirl.models.weights import move_to
from siirl.params import SiiRLArguments, sizes
from siirl.params.reward_args import reward_parts
from siirl.reporting.rollout_files import ROLLOUTS_FOLDER, RolloutFiles

HELD_OUT = {
    "split": "heldout"
}  # reset option of evaluation episodes: questions outside the training split
GREEDY_AND_SAMPLED = (True, False)


def build_text(
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
    """Build all components of one text rank.

    Args:
        config: The job, or an agent group's part of it.
        run_folder: For the texts that are kept.
        ranks: The processes that train together.
        redistribution: Moves rows between them.
        device: Of this rank.
        first_step: First step to come.
        with_critic: Whether the graph has a critic node.
        checkpoints: Folder of the checkpoints; by default in `run_folder`.
        ending: After the names of the weights' folders in a checkpoint.
        shares: Components of the agent group whose weights these act with and train.
        sharers: Configurations of the groups that share these weights; their steps count for the
            learning rate.
    """
    pool, tokenizer = make_pool(config, ranks), make_tokenizer(config)
    agents = pool.spec.num_agents
    if shares is None:
        learner = _make_learner(
            config,
            pool=pool,
            tokenizer=tokenizer,
            ranks=ranks,
            device=device,
            with_critic=with_critic,
            sharers=sharers,
        )
    else:
        learner = _learner_of(shares)
    rollout = make_text_rollout(config, engine=learner.acting, pool=pool, tokenizer=tokenizer)
    actor = learner.actor
    if shares is not None:
        actor = make_actor(
            config,
            engine=actor.engine,
            horizon=config.data.max_response_length,
            agents=agents,
        )
    files = RolloutFiles(
        run_folder / ROLLOUTS_FOLDER,
        count=config.trainer.save_rollouts,
        rank=ranks.rank,
        num_ranks=ranks.size,
        first_step=first_step,
    )
    loader = make_loader(config, spec=pool.spec, tokenizer=tokenizer, ranks=ranks)
    context = StageContext(
        config=config,
        run_folder=run_folder,
        ranks=ranks,
        collector=RolloutCollector(
            config=config,
            rollout=rollout,
            recorder=files,
            ranks=ranks,
            measure=text_rollout_metrics,
        ),
        actor=actor,
        reference=learner.reference,
        reward=make_text_reward_manager(
            config, reward_model=make_reward_model(config, device=device, ranks=ranks)
        ),
        weights=learner.weights,
        redistribution=redistribution,
        kl_controller=make_kl_controller(config),
        critic=learner.critic,
        loader=loader,
    )
    validator = make_text_validator(
        config, rollout=rollout, ranks=ranks, files=files, loader=loader, reward=context.reward
    )
    engines = {f"actor{ending}": actor.engine}
    if learner.critic is not None:
        engines[f"critic{ending}"] = learner.critic.engine
    manager = CheckpointManager(
        folder=checkpoints or run_folder / "checkpoints",
        engines=engines if shares is None else {},
        ranks=ranks,
        asynchronous=config.trainer.async_save,
        export=functools.partial(_describe, learner.model, tokenizer, f"actor{ending}"),
    )
    return WorkerComponents(context, rollout, validator, files, manager)


@dataclass(frozen=True)
class _Learner:
    """Weights, what trains them, and what acts with them."""

    model: LanguageModel
    actor: Actor
    acting: TextEngine
    weights: WeightSync
    reference: Reference | None
    critic: Critic | None


def _make_learner(
    config: SiiRLArguments,
    *,
    pool: EnvPool,
    tokenizer: ChatTokenizer,
    ranks: Collectives,
    device: torch.device,
    with_critic: bool,
    sharers: Sequence[SiiRLArguments],
) -> _Learner:
    model = make_language_model(config, weights=ranks.group is None)
    move_to(model, device)
    shared = (
        ranks.group is None or config.actor_rollout_ref.rollout.name != "hf"
    )  # vLLM makes its own copy
    whole = model if shared else acting_copy(model, compute_dtype(config), device=device)
    text_engine, acting = make_text_engine(
        config, model=whole, tokenizer=tokenizer, at_once=pool.num_slots, device=device
    )
    engine = make_engine(
        config,
        module=model,
        scorer=text_scorer,
        ranks=ranks,
        device=device,
        trained=True,
        prefix_groups=prefix_groups_of(model),
        sharers=sharers,
    )
    agents = pool.spec.num_agents
    actor = make_actor(
        config, engine=engine, horizon=config.data.max_response_length, agents=agents
    )
    critic = None
    if with_critic:
        critic = make_text_critic(config, ranks=ranks, device=device, agents=agents)
    return _Learner(
        model=model,
        actor=actor,
        acting=text_engine,
        weights=WeightSync(trained=engine, acting=acting, engine=text_engine, ranks=ranks),
        reference=make_text_reference(config, actor=actor, model=model, ranks=ranks, device=device),
        critic=critic,
    )


def _learner_of(owner: WorkerComponents) -> _Learner:
    context = owner.context
    return _Learner(
        model=cast(LanguageModel, context.actor.engine.module),
        actor=context.actor,
        acting=cast(TextEngine, owner.rollout.engine),
        weights=context.weights,
        reference=context.reference,
        critic=context.critic,
    )


def build_text_evaluation(
    *, config: SiiRLArguments, run_folder: Path, ranks: Collectives
) -> Evaluation:
    """Build the components that evaluate the model of a folder.

    The job's reward is built only if the environment may leave rows ungraded.
    """
    pool, tokenizer = make_pool(config, ranks), make_tokenizer(config)
    engine, _ = make_text_engine(
        config, model=make_language_model(config), tokenizer=tokenizer, at_once=pool.num_slots
    )
    rollout = make_text_rollout(config, engine=engine, pool=pool, tokenizer=tokenizer)
    files = RolloutFiles(run_folder / ROLLOUTS_FOLDER, count=config.trainer.save_rollouts)
    loader = make_loader(config, spec=pool.spec, tokenizer=tokenizer, ranks=ranks)
    reward: RewardManager | None = None
    if pool.spec.leaves_ungraded:
        reward = make_text_reward_manager(
            config, reward_model=make_reward_model(config, device=torch.device("cpu"), ranks=ranks)
        )
    validator = make_text_validator(
        config, rollout=rollout, ranks=ranks, files=files, loader=loader, reward=reward
    )
    return Evaluation(rollout, validator, files, reward=reward)


def _describe(model: LanguageModel, tokenizer: ChatTokenizer, name: str, checkpoint: Path) -> None:
    """Write the files that turn the saved weights `name` into a model."""
    model.describe(checkpoint / name)
    tokenizer.save(checkpoint / name)


def make_tokenizer(config: SiiRLArguments) -> ChatTokenizer:
    """Load the tokenizer of the job's model."""
    model = config.actor_rollout_ref.model
    assert model.path is not None
    return load_chat_tokenizer(model.path, trust_remote_code=model.trust_remote_code)


def make_language_model(
    config: SiiRLArguments, *, path: str | None = None, weights: bool = True
) -> LanguageModel:
    """Load the job's model in float32, or that of another folder `path` without adapters.

    With `weights` false a `TrainEngine` on several ranks reads them, each rank its part.
    """
    model = config.actor_rollout_ref.model
    assert model.path is not None
    return load_language_model(
        path or model.path,
        dtype=torch.float32,
        trust_remote_code=model.trust_remote_code,
        gradient_checkpointing=model.gradient_checkpointing and path is None,
        lora=model.lora if path is None else None,
        seed=config.trainer.seed,
        weights=weights,
    )


def make_text_engine(
    config: SiiRLArguments,
    *,
    model: LanguageModel,
    tokenizer: ChatTokenizer,
    at_once: int,
    device: torch.device | None = None,
) -> tuple[TextEngine, nn.Module | ActingWeights]:
    """Build the generation engine for `at_once` requests per pass, and its weights' holder.

    vLLM computes on `device`; None: where the weights are.
    """
    settings = config.actor_rollout_ref.rollout
    arguments: dict[str, Any] = {
        "model": model,
        "tokenizer": tokenizer,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "max_running": at_once,
        "lockstep": config.trainer.deterministic,
        "compute_dtype": compute_dtype(config),
    }
    if settings.name == "hf":
        return HFEngine(**arguments), model
    engine_class = AsyncVLLMEngine if settings.mode == "async" else VLLMEngine
    engine = engine_class(
        **arguments,
        kv_cache_gib=settings.kv_cache_gib,
        num_gpus=settings.tensor_model_parallel_size,
        longest_text=config.data.max_prompt_length + config.data.max_response_length,
        sleeps=settings.sleep,
        bucket_bytes=settings.update_weights_bucket_megabytes << 20,
        device=device,
    )
    return engine, engine


def make_text_rollout(
    config: SiiRLArguments, *, engine: TextEngine, pool: EnvPool, tokenizer: ChatTokenizer
) -> Rollout:
    """Build the rollout; its episodes keep the columns that the reward reads."""
    workflow = make_text_workflow(
        config.actor_rollout_ref.rollout.workflow,
        pool=pool,
        tokenizer=tokenizer,
        max_prompt_length=config.data.max_prompt_length,
        max_response_length=config.data.max_response_length,
        stop=config.actor_rollout_ref.rollout.stop,
        cut_prompts=config.data.overlong_prompts == "cut",
        text_columns=text_columns(reward_parts(config.reward, config.custom_reward_function)),
    )
    return Rollout(engine=engine, pool=pool, workflow=workflow)


def make_text_critic(
    config: SiiRLArguments, *, ranks: Collectives, device: torch.device, agents: int = 1
) -> Critic:
    """Build the critic: a value head on a separate copy of the initial model; one row per agent."""
    trunk = without_head(
        make_language_model(
            config,
            path=config.critic.path or config.actor_rollout_ref.model.path,
            weights=ranks.group is None,
        )
    )
    return make_critic(
        config,
        trunk=trunk,
        feature_size=trunk.config.get_text_config().hidden_size,
        scorer=text_value_scorer,
        decisions=every_own_token,
        ranks=ranks,
        device=device,
        compute_dtype=compute_dtype(config),
        agents=agents,
        micro_batch_tokens=config.actor_rollout_ref.actor.micro_batch_tokens,
        prefix_groups=prefix_groups_of(trunk),
    )


def make_text_reference(
    config: SiiRLArguments,
    *,
    actor: Actor,
    model: LanguageModel,
    ranks: Collectives,
    device: torch.device,
) -> Reference | None:
    """Build the KL's reference policy; None if no KL has a weight.

    With adapters and no `ref.path`, the reference is the model without its adapters.
    """
    if not sizes.needs_reference(config):
        return None
    path = config.actor_rollout_ref.ref.path
    if path is None and model.lora is not None:
        return WithoutAdapter(actor, model)
    other = make_language_model(
        config,
        path=path or config.actor_rollout_ref.model.path,
        weights=ranks.group is None,
    )
    engine = make_engine(
        config,
        module=other,
        scorer=text_scorer,
        ranks=ranks,
        device=device,
        trained=False,
        prefix_groups=prefix_groups_of(other),
    )
    return make_actor(config, engine=engine, horizon=1)


def make_loader(
    config: SiiRLArguments, *, spec: EnvSpec, tokenizer: ChatTokenizer, ranks: Collectives
) -> TaskLoader | PromptLoader:
    """Build the prompt stream from `data.train_files`, else from seeds of the environment."""
    data = config.data
    if data.train_files:
        place: dict[str, Any] = {
            "rank": ranks.rank,
            "ranks": ranks.size,
            "gather": ranks.gather_objects,
        }
        return PromptLoader.of(data, encode=tokenizer.encode_prompt, check=spec.check_row, **place)
    return make_task_loader(config, tasks=spec.tasks, ranks=ranks)


def make_text_validator(
    config: SiiRLArguments,
    *,
    rollout: Rollout,
    ranks: Collectives,
    files: RolloutFiles,
    loader: TaskLoader | PromptLoader,
    reward: RewardManager | None,
) -> Validator:
    """Validator on held-out questions, greedy and sampled; `reward` scores ungraded episodes."""
    trainer, spec = config.trainer, rollout.pool.spec
    prompts: Sequence[EpisodeTask] | None = None
    if isinstance(loader, PromptLoader) and trainer.val_episodes > 0:
        prompts = loader.evaluation_prompts(
            prompts_per_source=trainer.val_episodes, rank=ranks.rank, ranks=ranks.size
        )
    return Validator(
        rollout=rollout,
        ranks=ranks,
        recorder=files,
        tasks=spec.tasks,
        episodes=trainer.val_episodes,
        first_seed=trainer.val_seed_offset,
        record=0,
        max_failed_share=config.env.max_failed_share,
        prompts=prompts,
        options={} if prompts is not None else HELD_OUT,
        samples=trainer.val_samples,
        kinds=GREEDY_AND_SAMPLED,
        reward=reward if spec.leaves_ungraded else None,
        max_unscored_share=config.reward.max_failed_share,
    )
