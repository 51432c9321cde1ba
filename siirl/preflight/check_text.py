"""Checks of a text job's model, prompts and reward before any process starts."""

from collections.abc import Mapping, Sequence, Set

from envs.base import EnvSpec
from envs.registry import asks_questions
from siirl.dag_worker.text_components import make_language_model, make_tokenizer
from siirl.data_coordinator.prompts.index import index_first_rows
from siirl.data_coordinator.prompts.joined_files import check_truth, open_prompt_files
from siirl.data_coordinator.prompts.split import check_lengths, nothing_held_out, split_prompts
from siirl.engine.reward_manager.text_parts import FunctionPart
from siirl.engine.rollout.text_workflow import check_own_workflow
from siirl.errors import ConfigError, UnknownNameError
from siirl.files.hub_place import is_only_path
from siirl.files.paths import find
from siirl.files.weight_files import parameters_in
from siirl.models.chat import ChatTokenizer
from siirl.models.hub import find_on_hub
from siirl.models.language_model import LanguageModel
from siirl.models.pretrained import check_adapters, read_config, source_of
from siirl.params import SiiRLArguments, sizes
from siirl.params.algorithm_args import AlgorithmArguments
from siirl.params.critic_args import CriticArguments
from siirl.params.data_args import DataArguments
from siirl.params.key_names import MODEL_PATH
from siirl.params.model_args import ActorRolloutRefArguments, RewardModelArguments
from siirl.params.reward_args import (
    CustomRewardArguments,
    RewardArguments,
    RewardPart,
    reward_parts,
)
from siirl.preflight.plan_text import ROWS_BEFORE_START

# parameters: smaller models are loaded before the start as well, in a second or two
LOADED_TWICE = 100_000_000


def check_text(config: SiiRLArguments, spec: EnvSpec) -> None:
    """Check models, tokenizer, prompt files and reward functions.

    Loads the tokenizer, a small model, the first rows of the prompt files with their pictures, and
    each reward function in its own process.

    Raises:
        ConfigError: A tokenizer without an end token, lengths beyond the model's, an invalid one of
            the first rows, small files without a prompt to train on or to evaluate on, or a reward
            function that is unknown or does not take its arguments.
        MissingAssetError: No such folder, hub id or file.
        CheckpointError: Truncated or damaged weights.
    """
    tokenizer = check_player(config)
    named = {"data.train_files": config.data.train_files, "data.val_files": config.data.val_files}
    prompts = [open_prompt_files(files, key=key) for key, files in named.items() if files]
    indices = [
        index_first_rows(
            files,
            encode=tokenizer.encode_row,
            check=spec.check_row or check_truth,
            count=ROWS_BEFORE_START,
        )
        for files in prompts
    ]
    data = config.data
    if data.train_files and all(len(files) <= ROWS_BEFORE_START for files in prompts):
        split = split_prompts(  # small files are read whole: refuses those that leave no prompt
            indices[0],
            validation=indices[1] if data.val_files else None,
            heldout_share=data.heldout_share,
            max_prompt_length=data.max_prompt_length,
            overlong=data.overlong_prompts,
        )
        if config.trainer.val_episodes > 0 and not len(split.heldout_rows):
            raise nothing_held_out(
                indices[0].question_N[split.train_rows], too_long=split.too_long_heldout
            )
    check_reward_parts(config.reward, config.custom_reward_function, config.reward_model)
    parts = reward_parts(config.reward, config.custom_reward_function)
    if any(part.data_sources for part in parts):
        if prompts:
            check_data_sources(parts, {files.key: files.data_sources() for files in prompts})
        elif asks_questions(config.env.name):
            check_data_sources(parts, {f"env={config.env.name}": set(spec.tasks)})


def check_player(config: SiiRLArguments) -> ChatTokenizer:
    """Check the models and the workflow of a text job. Returns the tokenizer.

    Raises:
        ConfigError: A tokenizer without an end token, lengths beyond the model's, a folder that
            holds another kind of model, or an object that is not a workflow.
        MissingAssetError: No such folder or hub id.
        CheckpointError: Truncated or damaged weights.
    """
    path = config.actor_rollout_ref.model.path
    assert path is not None
    check_sources(config.actor_rollout_ref, config.critic, config.algorithm)
    # before the tokenizer, for which transformers warns of an architecture that it does not know
    read_config(source_of(path), trust_remote_code=config.actor_rollout_ref.model.trust_remote_code)
    tokenizer = make_tokenizer(config.actor_rollout_ref.model)
    if 0 < parameters_in(path) <= LOADED_TWICE:
        check_fit(
            config.data,
            model=make_language_model(config.actor_rollout_ref.model, seed=config.trainer.seed),
            tokenizer=tokenizer,
            path=path,
        )
    elif config.actor_rollout_ref.model.lora.rank > 0:
        model = config.actor_rollout_ref.model
        check_adapters(path, model.lora, trust_remote_code=model.trust_remote_code)
    workflow = config.actor_rollout_ref.rollout.workflow
    if workflow is not None:
        check_own_workflow(workflow, has_roles=bool(config.env.played_by))
    return tokenizer


def check_data_sources(parts: Sequence[RewardPart], sources: Mapping[str, Set[str]]) -> None:
    """Refuse a data source that no row has, and one that no part of the reward serves.

    Args:
        parts: Parts of the reward, those of `reward.functions` first.
        sources: Data sources of the rows, by the place of their rows.

    Raises:
        ConfigError: With the name and the remedy.
    """
    known = sorted(set().union(*sources.values()))
    for number, part in enumerate(parts):
        for name in part.data_sources:
            if name not in known:
                raise UnknownNameError.of(
                    kind=f"data source of {', '.join(sources)} "
                    f"(reward.functions[{number}].data_sources)",
                    name=name,
                    known=known,
                )
    if not all(part.data_sources for part in parts):
        return  # a part without data sources serves all rows
    served = {name for part in parts for name in part.data_sources}
    for place, of_place in sources.items():
        unserved = sorted(of_place - served)
        if unserved:
            raise ConfigError(
                f"No part of the reward serves the data source {unserved[0]!r} of {place}: add it "
                "to the data_sources of one of reward.functions, add a function without "
                "data_sources, which serves all, or remove these rows."
            )


def check_sources(
    policy: ActorRolloutRefArguments, critic: CriticArguments, algorithm: AlgorithmArguments
) -> None:
    """Refuse a model that is neither a folder nor on the Hub; the message names its key."""
    paths = {MODEL_PATH: policy.model.path, "critic.path": critic.path}
    if sizes.needs_reference(policy.actor, algorithm):
        paths["actor_rollout_ref.ref.path"] = policy.ref.path
    for place, path in paths.items():
        if path is not None:
            source_of(path, place=place)


def check_reward_parts(
    reward: RewardArguments, custom: CustomRewardArguments, reward_model: RewardModelArguments
) -> None:
    """Refuse a reward model missing on the Hub, and functions that cannot be loaded or called."""
    model = reward_model.path
    for part in reward_parts(reward, custom):
        if part.is_function:
            FunctionPart(part, num_workers=1, timeout_s=reward.timeout_s).close()
        elif (
            part.name == "model"
            and model is not None
            and not find(model).is_dir()
            and not is_only_path(model)  # refused by siirl.preflight.needed_files
        ):
            find_on_hub(model, place="reward_model.path")


def check_fit(
    data: DataArguments, *, model: LanguageModel, tokenizer: ChatTokenizer, path: str
) -> None:
    """Refuse lengths beyond the model's limit, and a tokenizer with more tokens than the model."""
    check_lengths(
        max_prompt_length=data.max_prompt_length,
        max_response_length=data.max_response_length,
        model_length=model.max_length,
    )
    if tokenizer.vocab_size > model.vocab_size:
        raise ConfigError(
            f"{MODEL_PATH}={path}: its tokenizer has {tokenizer.vocab_size} tokens, but its head "
            f"has {model.vocab_size}: they belong to different models, or the head was not resized "
            "to len(AutoTokenizer.from_pretrained(...))."
        )
