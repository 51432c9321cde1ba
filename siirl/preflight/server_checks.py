"""Checks of rollout=server: addresses, and the servers behind them."""

from collections.abc import Iterator
from pathlib import Path

from envs.server_address import checked_url, is_loopback, read_token
from siirl.engine.rollout.server.handshake import shake_hands
from siirl.engine.rollout.server.server_link import ServerError, ServerLink
from siirl.errors import ConfigError, SiirlError
from siirl.params import sizes
from siirl.params.data_args import DataArguments
from siirl.params.key_names import ROLLOUT
from siirl.params.model_args import ModelArguments
from siirl.params.rollout_args import RolloutArguments
from siirl.params.server_args import ServerArguments
from siirl.params.training_args import TrainingArguments

SERVER_KEY = f"{ROLLOUT}.server"
ANSWERS_WITHIN_S = 20.0  # for requests that need no weights


def server_problems(
    rollout: RolloutArguments,
    model: ModelArguments,
    data: DataArguments,
    trainer: TrainingArguments,
) -> list[SiirlError]:
    """Errors in the settings of rollout=server; if there are none, errors of the servers."""
    server = rollout.server
    return list(_of_settings(server, trainer)) or list(_of_servers(server, model, data))


def _of_settings(server: ServerArguments, trainer: TrainingArguments) -> Iterator[SiirlError]:
    ranks = sizes.ranks(trainer)
    if len(server.urls) != ranks:
        yield ConfigError(
            f"{SERVER_KEY}.urls={list(server.urls)} names {len(server.urls)} servers, but the job "
            f"has {ranks} rank{'s' * (ranks != 1)}: name one for each. docs/inference_server.md "
            "has the command that starts vLLM."
        )
    if trainer.deterministic:
        yield ConfigError(
            f"{ROLLOUT}.name=server batches by arrival time, but trainer.deterministic=true: use "
            "rollout=hf."
        )
    for url in server.urls:
        yield from _of_address(url)
    if server.token_file is not None:
        try:
            read_token(server.token_file)
        except ValueError as error:
            yield ConfigError(f"{SERVER_KEY}.token_file: {error}")
    if server.weights == "folder":
        yield from _of_folder(server)


def _of_servers(
    server: ServerArguments, model: ModelArguments, data: DataArguments
) -> Iterator[SiirlError]:
    """Servers that do not answer, or whose model does not fit the job."""
    for url in server.urls:
        link = ServerLink(
            url.rstrip("/"),
            token=None if server.token_file is None else read_token(server.token_file),
            deadline_s=min(server.deadline_s, ANSWERS_WITHIN_S),
            reconnect_s=0.0,
        )
        try:
            link.wait(
                shake_hands(
                    link,
                    dtype=model.dtype,
                    longest_text=data.max_prompt_length + data.max_response_length,
                )
            )
        except ServerError as error:
            yield ConfigError(f"{SERVER_KEY}.urls: {error}")
        finally:
            link.close()


def _of_address(url: str) -> Iterator[SiirlError]:
    try:
        checked_url(
            url,
            key=f"{SERVER_KEY}.urls",
            token_key=f"{SERVER_KEY}.token_file",
            server="an inference server",
        )
    except ValueError as error:
        yield ConfigError(str(error))


def _of_folder(server: ServerArguments) -> Iterator[SiirlError]:
    remote = [url for url in server.urls if not is_loopback(url)]
    if server.weights_folder is None and remote:
        yield ConfigError(
            f"{SERVER_KEY}.urls has {remote[0]}, which may be another machine, but "
            f"{SERVER_KEY}.weights_folder=null is memory of this one: name a folder that both "
            "machines mount at the same path, or set weights=collective."
        )
    if server.weights_folder is not None and not Path(server.weights_folder).is_dir():
        yield ConfigError(
            f"{SERVER_KEY}.weights_folder={server.weights_folder} is not a folder: create it on a "
            "file system that the servers mount at the same path."
        )
