"""Asks the Hugging Face Hub once, with a short timeout, whether it has a model.

`from_pretrained` requests every file separately; if the Hub is unreachable, it tries each six times
(huggingface_hub, `http_backoff`). A mistyped folder, or a cached model, then takes minutes. Here
one request without retry decides. Left out: downloading files other than weights, which
transformers does.
"""

import functools
import logging
from pathlib import Path

from siirl.errors import ConfigError, MissingAssetError
from siirl.files.hub_files import PATIENCE_S
from siirl.files.hub_refusals import refusal
from siirl.files.weight_files import CONFIG_FILE, INDEX_FILE, LANGUAGE_MODEL_FOLDER, PEFT_FILE

logger = logging.getLogger(__name__)

FOLDER = f"Give {LANGUAGE_MODEL_FOLDER}"
WEIGHTS = ("model*.safetensors", INDEX_FILE, CONFIG_FILE, PEFT_FILE)
"""The files of a repository that transformers reads; others hold copies of the weights."""
REMEDY = f"{FOLDER}, or another hub id."


@functools.cache
def find_on_hub(name: str, *, place: str, endpoint: str | None = None) -> str:
    """The argument for `from_pretrained` of a name that is not a folder.

    Args:
        name: A hub id, or a mistyped folder.
        place: The configuration key, for messages.
        endpoint: The Hub's address; None: that of HF_ENDPOINT, or huggingface.co.

    Returns:
        `name` if the Hub serves such a model; otherwise the folder of its copy in the Hub's cache.

    Raises:
        ConfigError: Not a valid name of a model on the Hub.
        MissingAssetError: The Hub has no such model, refuses access, or cannot be reached, and the
            cache has no copy.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        HTTPError,  # from its HTTP library; raised if there is no answer
        OfflineModeIsEnabled,
        RemoteEntryNotFoundError,
    )
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
        get_hf_file_metadata(
            hf_hub_url(name, CONFIG_FILE, endpoint=endpoint), timeout=PATIENCE_S, endpoint=endpoint
        )
    except HFValidationError as error:
        raise ConfigError(
            f"{_missing(name, place)} no model on the Hub can have that name. {REMEDY}"
        ) from error
    except RemoteEntryNotFoundError as error:
        raise MissingAssetError(
            f"{place}={name} is on the Hub, but is not a model: it has no {CONFIG_FILE}. {REMEDY}"
        ) from error
    except (HfHubHTTPError, HTTPError, OfflineModeIsEnabled) as error:
        folder = cached_folder(name)
        if folder is None:
            raise MissingAssetError(_refused(name, place, error)) from error
        if not isinstance(error, OfflineModeIsEnabled):
            logger.warning("%s: %s, so its copy in %s is used.", name, refusal(error), folder)
        return str(folder)
    return name


def _missing(name: str, place: str) -> str:
    return f"{place}={name}: there is no folder {name} here, and"


def _refused(name: str, place: str, error: Exception) -> str:
    """Message with reason and remedy."""
    from huggingface_hub.errors import (
        GatedRepoError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    reason = refusal(error)
    if isinstance(error, GatedRepoError):
        return (
            f"{place}={name}: {reason}: request it at https://huggingface.co/{name}, then "
            "`hf auth login`."
        )
    if isinstance(error, RepositoryNotFoundError):
        remedy = REMEDY
    elif isinstance(error, OfflineModeIsEnabled):
        remedy = f"{FOLDER}, or unset it."
    else:
        remedy = f"{FOLDER}, or try again."
    return f"{_missing(name, place)} {reason}. {remedy}"


def download_weights(name: str) -> Path:
    """The folder of a hub model in the Hub's cache, with all its safetensors files.

    Ranks that start together wait for one download, since huggingface_hub locks each file, and what
    an interrupted download lacks is fetched.

    Raises:
        MissingAssetError: The download failed.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError

    try:
        return Path(snapshot_download(name, allow_patterns=list(WEIGHTS)))
    except (HTTPError, OSError) as error:  # HfHubHTTPError is both
        raise MissingAssetError(
            f"{name}: the download from the Hub failed ({str(error) or type(error).__name__}). "
            "Start again: finished files stay in the Hub's cache."
        ) from error


def cached_folder(name: str) -> Path | None:
    """The folder of a model in the Hub's cache; None without a copy."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, CONFIG_FILE)
    return Path(config).parent if isinstance(config, str) else None
