"""Builds the objects of a text rank; the counterpart of `embodied_components`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from envs.base import EnvSpec
from envs.server_address import read_token
from siirl.dag_worker.components import RankBuilder, Rollouts, make_task_loader
from siirl.dag_worker.critic_components import make_critic
from siirl.dag_worker.rollout_collector import text_rollout_metrics
from siirl.dag_worker.validator import Validator
from siirl.data_coordinator.prompts.prompt_loader import PromptLoader
from siirl.data_coordinator.task_stream import EpisodeTask, Loader, TaskLoader
from siirl.engine.actor.packing import prefix_groups_of
from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.critic.critic import Critic
from siirl.engine.critic.value_scorers import every_own_token, text_value_scorer, without_head
from siirl.engine.reward_manager import RewardManager
from siirl.engine.reward_manager.reward_model import make_reward_model
from siirl.engine.reward_manager.text_rewards import make_text_reward_manager, text_columns
from siirl.engine.rollout.generation import TextEngine
from siirl.engine.rollout.rollout import Rollout
from siirl.engine.rollout.text_workflow import make_text_workflow
from siirl.engine.rollout.vllm.async_vllm_engine import AsyncVLLMEngine
from siirl.engine.rollout.vllm.vllm_engine import VLLMEngine
from siirl.engine.rollout.vllm.vllm_probe import Probe, trained_probe
from siirl.engine.rollout.vllm.vllm_settings import text_length
from siirl.engine.training.batch_cuts import PrefixGrouping
from siirl.engine.training.collectives import Collectives
from siirl.engine.training.weight_sync import ActingWeights
from siirl.env_server.pool import EnvPool
from siirl.models.chat import ChatTokenizer, load_chat_tokenizer
from siirl.models.language_model import (
    LanguageModel,
    load_language_model,
    recompute_activations,
)
from siirl.params import SiiRLArguments, sizes
from siirl.params.agents import rows_per_episode
from siirl.params.domains import SERVER
from siirl.params.model_args import ModelArguments
from siirl.params.picture_models import check_engine_shows_pictures
from siirl.params.reward_args import reward_parts
from siirl.reporting.rollout_files import ROLLOUTS_FOLDER, RolloutFiles

if TYPE_CHECKING:
    from siirl.engine.rollout.server.server_engine import ServerEngine

# reset option of evaluation episodes: questions outside the training split
HELD_OUT = {"split": "heldout"}
GREEDY_AND_SAMPLED = (True, False)


class TextBuilder(RankBuilder):
    """Builds the objects of a language model's rank."""

    kinds = GREEDY_AND_SAMPLED
    scorer = staticmethod(text_scorer)

    def __init__(
        self, config: SiiRLArguments, spec: EnvSpec, *, ranks: Collectives, device: torch.device
    ) -> None:
        super().__init__(config, spec, ranks=ranks, device=device)
        self.tokenizer = make_tokenizer(self.model)
        check_engine_shows_pictures(config.actor_rollout_ref)

    # Training

    def planned(self) -> LanguageModel:
        """See `RankBuilder`."""
        return make_language_model(self.model, seed=self.config.trainer.seed, weights=False)

    def initial(self, path: str | None) -> LanguageModel:
        """See `RankBuilder`."""
        return make_language_model(
            self.model,
            seed=self.config.trainer.seed,
            path=path or self.model.path,
            weights=False,
        )

    def critic(self, steps: int) -> Critic:
        """See `RankBuilder`; one row per agent."""
        model = self.initial(self.config.critic.path)
        if self.model.gradient_checkpointing:
            recompute_activations(model)
        trunk = without_head(model)
        return make_critic(
            self.config.critic,
            policy=self.config.actor_rollout_ref,
            trainer=self.config.trainer,
            steps=steps,
            trunk=trunk,
            feature_size=trunk.config.get_text_config().hidden_size,
            scorer=text_value_scorer,
            decisions=every_own_token,
            ranks=self.ranks,
            device=self.device,
            compute_dtype=self.compute_dtype,
            agents=rows_per_episode(self.spec),
            micro_batch_tokens=self.config.actor_rollout_ref.actor.micro_batch_tokens,
            prefix_groups=prefix_groups_of(trunk),
        )

    def longest_response(self, module: LanguageModel) -> int:
        """See `RankBuilder`."""
        return self.config.data.max_response_length

    @property
    def longest_text(self) -> int:
        """Tokens of the longest prompt and its continuation together."""
        return self.config.data.max_prompt_length + self.config.data.max_response_length

    def probe(self, module: LanguageModel) -> Probe:
        """By which a vLLM of another rank verifies the weights of `module`; every training rank
        calls it.
        """
        longest = text_length(model_length=module.max_length, longest_text=self.longest_text)
        return trained_probe(
            module,
            vocab_size=self.tokenizer.vocab_size,
            longest=longest,
            temperature=self.config.actor_rollout_ref.rollout.temperature,
            compute_dtype=self.compute_dtype or torch.float32,
            device=self.device,
        )

    def prefix_groups(self, module: LanguageModel) -> PrefixGrouping | None:
        """See `RankBuilder`: rows with the same prompt."""
        return prefix_groups_of(module)

    def reward(self) -> RewardManager:
        """See `RankBuilder`."""
        model = make_reward_model(
            self.config.reward,
            self.config.custom_reward_function,
            self.config.reward_model,
            device=self.device,
            ranks=self.ranks,
        )
        return make_text_reward_manager(
            self.config.reward,
            self.config.custom_reward_function,
            overlong=self.config.algorithm.overlong,
            max_response_length=self.config.data.max_response_length,
            reward_model=model,
        )

    def loader(self, ranks: Collectives) -> TaskLoader | PromptLoader:
        """See `RankBuilder`; reads `data.train_files`, else seeds of the environment."""
        data = self.config.data
        if not data.train_files:
            return make_task_loader(data, tasks=self.spec.tasks, ranks=ranks)
        return PromptLoader.of(
            data,
            encode=self.tokenizer.encode_row,
            check=self.spec.check_row,
            rank=ranks.rank,
            ranks=ranks.size,
            gather=ranks.gather_objects,
        )

    def describe(self, module: LanguageModel, folder: Path) -> None:
        """See `RankBuilder`."""
        module.describe(folder)
        self.tokenizer.save(folder)

    # Acting

    def evaluated(self) -> LanguageModel:
        """See `RankBuilder`."""
        policy: LanguageModel = self.read(self.planned())
        return policy

    def acting(self, module: LanguageModel) -> LanguageModel:
        """See `RankBuilder`; vLLM and a server have their own copy."""
        if self.config.actor_rollout_ref.rollout.name != "hf":
            return module
        copied: LanguageModel = super().acting(module)
        return copied

    def rollouts(
        self,
        acting: LanguageModel,
        *,
        pool: EnvPool,
        ranks: Collectives,
        folder: Path,
        first_step: int = 0,
        trains: bool = True,
    ) -> Rollouts:
        """See `RankBuilder`."""
        engine, weights = self._generation_engine(acting, at_once=pool.num_slots)
        return self.rollouts_of(
            engine, weights, pool=pool, ranks=ranks, folder=folder, first_step=first_step
        )

    def rollouts_of(
        self,
        engine: TextEngine,
        weights: nn.Module | ActingWeights,
        *,
        pool: EnvPool,
        ranks: Collectives,
        folder: Path,
        first_step: int,
    ) -> Rollouts:
        """Build the rollout and recording of episodes on an engine, with the texts that the reward
        reads.
        """
        config = self.config
        roles = {"played_by": config.env.played_by} if config.env.played_by else {}
        workflow = make_text_workflow(
            config.actor_rollout_ref.rollout.workflow,
            **roles,
            pool=pool,
            tokenizer=self.tokenizer,
            max_prompt_length=config.data.max_prompt_length,
            max_response_length=config.data.max_response_length,
            stop=config.actor_rollout_ref.rollout.stop,
            cut_prompts=config.data.overlong_prompts == "cut",
            text_columns=text_columns(reward_parts(config.reward, config.custom_reward_function)),
        )
        files = RolloutFiles(
            folder / ROLLOUTS_FOLDER,
            count=config.trainer.save_rollouts,
            rank=ranks.rank,
            num_ranks=ranks.size,
            first_step=first_step,
        )
        rollout = Rollout(engine=engine, pool=pool, workflow=workflow)
        return Rollouts(rollout, weights, files, files, text_rollout_metrics)

    @property
    def evaluates_by_reward(self) -> bool:
        """See `RankBuilder`."""
        return self.spec.leaves_ungraded

    def validator(
        self,
        rollouts: Rollouts,
        *,
        ranks: Collectives,
        loader: Loader | None,
        reward: RewardManager | None,
    ) -> Validator:
        """See `RankBuilder`: held-out questions, greedy and sampled."""
        trainer = self.config.trainer
        prompts: Sequence[EpisodeTask] | None = None
        if isinstance(loader, PromptLoader) and trainer.val_episodes > 0:
            prompts = loader.evaluation_prompts(
                prompts_per_source=trainer.val_episodes, rank=ranks.rank, ranks=ranks.size
            )
        return Validator(
            rollout=rollouts.rollout,
            ranks=ranks,
            recorder=rollouts.recorder,
            tasks=self.spec.tasks,
            episodes=trainer.val_episodes,
            first_seed=trainer.val_seed_offset,
            record=0,
            max_failed_share=self.config.env.max_failed_share,
            prompts=prompts,
            options={} if prompts is not None else HELD_OUT,
            samples=trainer.val_samples,
            kinds=GREEDY_AND_SAMPLED,
            reward=reward if self.evaluates_by_reward else None,
            max_unscored_share=self.config.reward.max_failed_share,
        )

    def _generation_engine(
        self, model: LanguageModel, *, at_once: int
    ) -> tuple[TextEngine, nn.Module | ActingWeights]:
        """Build the engine for `at_once` requests per pass, and the holder of its weights."""
        config = self.config
        settings = config.actor_rollout_ref.rollout
        arguments: dict[str, Any] = {
            "model": model,
            "tokenizer": self.tokenizer,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "top_k": settings.top_k,
            "max_running": at_once,
            "lockstep": config.trainer.deterministic,
            "compute_dtype": self.compute_dtype,
        }
        if settings.name == "hf":
            # imports transformers, which VLA jobs do not need
            from siirl.engine.rollout.hf.hf_engine import HFEngine

            return HFEngine(**arguments), model
        if settings.name == SERVER:
            server_engine = self._server_engine(model)
            return server_engine, server_engine
        separate = sizes.separate(config.dag)
        apart = sizes.vllm_apart(config.trainer, config.dag, settings)
        engine_class = AsyncVLLMEngine if apart else VLLMEngine
        engine = engine_class(
            **arguments,
            kv_cache_gib=settings.kv_cache_gib,
            num_gpus=settings.tensor_model_parallel_size,
            longest_text=self.longest_text,
            sleeps=settings.sleep and not separate,  # no training beside it
            exchanges=separate,
            bucket_bytes=settings.update_weights_bucket_megabytes << 20,
            device=self.device,
        )
        return engine, engine

    def _server_engine(self, model: LanguageModel) -> "ServerEngine":
        """Connect to this rank's inference server."""
        # imports an HTTP client, which other jobs do not need
        from siirl.engine.rollout.server.server_engine import ServerEngine
        from siirl.engine.rollout.server.server_link import ServerLink
        from siirl.engine.rollout.server.weight_folder import FolderRoute
        from siirl.engine.rollout.server.weight_group import GroupRoute

        config = self.config
        settings = config.actor_rollout_ref.rollout
        server = settings.server
        folder = Path(server.weights_folder) if server.weights_folder else None
        return ServerEngine(
            model=model,
            tokenizer=self.tokenizer,
            link=ServerLink(
                server.urls[self.ranks.rank].rstrip("/"),
                token=None if server.token_file is None else read_token(server.token_file),
                deadline_s=server.deadline_s,
            ),
            temperature=settings.temperature,
            route=(
                GroupRoute(timeout_s=server.deadline_s)
                if server.weights == "collective"
                else FolderRoute(folder)
            ),
            top_p=settings.top_p,
            top_k=settings.top_k,
            compute_dtype=self.compute_dtype,
            longest_text=self.longest_text,
            bucket_bytes=settings.update_weights_bucket_megabytes << 20,
            device=self.device,
        )


def make_tokenizer(model: ModelArguments) -> ChatTokenizer:
    """Load the tokenizer of a job's model."""
    assert model.path is not None
    return load_chat_tokenizer(model.path, trust_remote_code=model.trust_remote_code)


def make_language_model(
    model: ModelArguments, *, seed: int, path: str | None = None, weights: bool = True
) -> LanguageModel:
    """Load a job's model in float32, or that of another folder `path` without adapters.

    If `weights` is false, they are read later (`siirl.models.weights.materialise`).
    """
    assert model.path is not None
    return load_language_model(
        path or model.path,
        dtype=torch.float32,
        trust_remote_code=model.trust_remote_code,
        gradient_checkpointing=model.gradient_checkpointing and path is None,
        lora=model.lora if path is None else None,
        seed=seed,
        weights=weights,
    )
