"""What can be told of a text job's model, prompts and reward before a process starts."""

from siirl.dag_worker.build_text import make_language_model, make_tokenizer
from siirl.data_coordinator.prompts.files import open_prompt_files
from siirl.data_coordinator.prompts.split import check_lengths
from siirl.errors import ConfigError
from siirl.models.chat import ChatTokenizer
from siirl.models.language_model import LanguageModel
from siirl.params import SiiRLArguments
from siirl.params.files import parameters_in
from siirl.params.reward_args import reward_parts

LOADED_TWICE = 100_000_000  # parameters: up to here a model is loaded before the start as well, in a second or two
MODEL = "actor_rollout_ref.model.path"


def check_text(config: SiiRLArguments) -> None:
    """Load tokenizer, and model where it is small; open the files; look for the reward's functions.

    Raises:
        ConfigError: A tokenizer that no response could end with, lengths beyond the model's, rows that are no prompts, an unknown function.
        MissingAssetError: No such folder or file.
        CheckpointError: Weights that are not whole.
    """
    path = config.actor_rollout_ref.model.path
    assert path is not None
    tokenizer = make_tokenizer(config)
    if 0 < parameters_in(path) <= LOADED_TWICE:
        check_fit(config, model=make_language_model(config), tokenizer=tokenizer)
    for key, files in (("data.train_files", config.data.train_files), ("data.val_files", config.data.val_files)):
        if files:
            open_prompt_files(files, key=key)
    reward_parts(config.reward, config.custom_reward_function)


def check_fit(config: SiiRLArguments, *, model: LanguageModel, tokenizer: ChatTokenizer) -> None:
    """Refuse texts that are longer than the model can be, and a tokenizer with tokens that it does not have."""
    data, path = config.data, config.actor_rollout_ref.model.path
    check_lengths(max_prompt_length=data.max_prompt_length, max_response_length=data.max_response_length, model_length=model.max_length)
    if tokenizer.vocab_size > model.vocab_size:
        raise ConfigError(
            f"{MODEL}={path}: its tokenizer has {tokenizer.vocab_size} tokens and its head {model.vocab_size}: these are two models."
        )
