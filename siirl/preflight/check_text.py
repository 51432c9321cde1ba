"""What can be told of a text job's model, prompts and reward before a process starts."""

from siirl.dag_worker.text_components import make_language_model, make_tokenizer
from siirl.data_coordinator.prompts.joined_files import open_prompt_files
from siirl.data_coordinator.prompts.split import check_lengths
from siirl.engine.reward_manager.text_rewards import FunctionPart
from siirl.errors import ConfigError
from siirl.models.chat import ChatTokenizer
from siirl.models.hub import find_on_hub
from siirl.models.language_model import LanguageModel
from siirl.models.pretrained import check_adapters, source_of
from siirl.params import SiiRLArguments, sizes
from siirl.params.paths import find
from siirl.params.reward_args import reward_parts
from siirl.params.weight_files import may_be_hub_id, parameters_in

# parameters: up to here a model is loaded before the start as well, in a second or two
LOADED_TWICE = 100_000_000
MODEL = "actor_rollout_ref.model.path"


def check_text(config: SiiRLArguments) -> None:
    """Look for the models; load tokenizer, and model where it is small; open the files; load the
    reward's functions in a process each.

    Raises:
        ConfigError: A tokenizer that no response could end with, lengths beyond the model's, rows
            that are no prompts, a function that is unknown or cannot be called with what it gets.
        MissingAssetError: No such folder, hub id or file.
        CheckpointError: Weights that are not whole.
    """
    path = config.actor_rollout_ref.model.path
    assert path is not None
    check_sources(config)
    tokenizer = make_tokenizer(config)
    if 0 < parameters_in(path) <= LOADED_TWICE:
        check_fit(config, model=make_language_model(config), tokenizer=tokenizer)
    elif config.actor_rollout_ref.model.lora.rank > 0:
        model = config.actor_rollout_ref.model
        check_adapters(path, model.lora, trust_remote_code=model.trust_remote_code)
    for key, files in (
        ("data.train_files", config.data.train_files),
        ("data.val_files", config.data.val_files),
    ):
        if files:
            open_prompt_files(files, key=key)
    check_reward_parts(config)


def check_sources(config: SiiRLArguments) -> None:
    """Refuse a model that is neither a folder nor on the hub, with the key that names it."""
    actor = config.actor_rollout_ref
    paths = {MODEL: actor.model.path, "critic.path": config.critic.path}
    if sizes.needs_reference(config):
        paths["actor_rollout_ref.ref.path"] = actor.ref.path
    for place, path in paths.items():
        if path is not None:
            source_of(path, place=place)


def check_reward_parts(config: SiiRLArguments) -> None:
    """Refuse a reward model that the hub does not have, and functions that cannot be loaded or
    called.
    """
    model = config.reward_model.path
    for part in reward_parts(config.reward, config.custom_reward_function):
        if part.is_function:
            FunctionPart(part, num_workers=1, timeout_s=config.reward.timeout_s).close()
        elif (
            part.name == "model"
            and model is not None
            and not find(model).is_dir()
            and may_be_hub_id(model)
        ):
            find_on_hub(model, place="reward_model.path")


def check_fit(config: SiiRLArguments, *, model: LanguageModel, tokenizer: ChatTokenizer) -> None:
    """Refuse texts that are longer than the model can be, and a tokenizer with tokens that it does
    not have.
    """
    data, path = config.data, config.actor_rollout_ref.model.path
    check_lengths(
        max_prompt_length=data.max_prompt_length,
        max_response_length=data.max_response_length,
        model_length=model.max_length,
    )
    if tokenizer.vocab_size > model.vocab_size:
        raise ConfigError(
            f"{MODEL}={path}: its tokenizer has {tokenizer.vocab_size} tokens and its head {model.vocab_size}: these are two models."
        )
