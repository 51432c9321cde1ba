"""Downloads the Hugging Face Hub locations of a configuration, and pins them to their commits.

Afterwards the keys name `hf://owner/name@COMMIT/path`, so the run's config.yaml identifies
the files, and a resumed run reads the same ones. Other processes find the files in the Hub's cache.
Left out: a language model by its id alone, which transformers reads (siirl.models.hub).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from siirl.errors import MissingAssetError
from siirl.files.hub_files import local_copy
from siirl.files.hub_place import DATASET, MODEL, SCHEME, HubPlace, hub_place, is_hub_id
from siirl.files.paths import find, not_as_id
from siirl.params.policies import LANGUAGE_MODEL
from siirl.params.training_args import SiiRLArguments

MODELS = (
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.ref.path",
    "critic.path",
    "reward_model.path",
    "reward.encoder",
)
"""Keys that name a model."""
DATA = ("data.train_files", "data.val_files", "reward.demonstrations")
"""Keys that name data."""
IDS_OF_POLICIES = MODELS[:3]
"""Keys whose bare ids are also pinned, for a policy that is not a language model."""
PROMPT_FILES = (".parquet", ".jsonl")


def names_of_hub(config: SiiRLArguments) -> Iterator[tuple[str, str, HubPlace]]:
    """Key, value and place of everything that is read from the Hub.

    Raises:
        ConfigError: `hf://` without a valid location after it.
    """
    for keys, kind in ((MODELS, MODEL), (DATA, DATASET)):
        for key in keys:
            for value in _values(config, key):
                place = hub_place(value, place=key, kind=kind)
                if place is None and _is_bare_id(
                    key, value, policy=config.actor_rollout_ref.model.policy
                ):
                    place = HubPlace(kind, value)
                if place is not None:
                    yield key, value, place


def pin_hub_places(config: SiiRLArguments) -> None:
    """Download the places, and replace the values of their keys.

    Raises:
        ConfigError: `hf://` without a valid location after it.
        MissingAssetError: See `siirl.files.hub_files.local_copy`.
    """
    pinned = {
        (key, value): _pinned(key, value, place) for key, value, place in names_of_hub(config)
    }
    for key in {key for key, _ in pinned}:
        *groups, name = key.split(".")
        owner: Any = config
        for group in groups:
            owner = getattr(owner, group)
        value = getattr(owner, name)
        if isinstance(value, str):
            setattr(owner, name, pinned[key, value])
        else:
            setattr(owner, name, tuple(pinned.get((key, each), each) for each in value))


def _pinned(key: str, value: str, place: HubPlace) -> str:
    try:
        return str(local_copy(place, key=key)[1])
    except MissingAssetError as error:
        if value.startswith(SCHEME):
            raise
        raise not_as_id(value, key=key, error=error) from error


def _values(config: SiiRLArguments, key: str) -> tuple[str, ...]:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


def _is_bare_id(key: str, value: str, *, policy: str) -> bool:
    """Whether `owner/name` is read as an id: no such path exists, nothing else reads the key."""
    if value.startswith(SCHEME) or not is_hub_id(value) or find(value).exists():
        return False
    if key.startswith("data."):
        return Path(value).suffix not in PROMPT_FILES
    return key in IDS_OF_POLICIES and policy != LANGUAGE_MODEL
