"""Refuses keys that the user set and that nothing in the job reads.

A key counts as set if the command line names it, unless with a default that asks for nothing (null,
false, 0, empty), or if a file gives it a value that is neither its default nor a shipped group's.
So defaults of groups do not count, and a run's config.yaml, which names every key, can be read
again. Left out: the condition under which a key is read (`siirl.preflight.key_readers`).
"""

from collections.abc import Collection, Iterator

from siirl.errors import ConfigError, SiirlError
from siirl.params import compose
from siirl.params.build import as_text
from siirl.params.schema import Key, keys_of, value_of
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.key_readers import READERS, ROBOTS_ONLY


def unread_problems(config: SiiRLArguments, *, named: Collection[str] = ()) -> list[SiirlError]:
    """Set keys of both domains that the job does not read.

    Args:
        config: The job.
        named: Keys that the command line names.
    """
    return [error for _, error in _of_both(config, named)]


def unread_keys(
    config: SiiRLArguments, *, text: bool, named: Collection[str] = ()
) -> dict[str, SiirlError]:
    """All set keys that the job does not read, by their place; arguments as below."""
    found = (*_of_both(config, named), *_in_domain(config, text, named))
    return {key.place: error for key, error in found}


def unread_in_domain(
    config: SiiRLArguments, *, text: bool, named: Collection[str] = ()
) -> list[SiirlError]:
    """Set keys of one domain that the job does not read.

    Args:
        config: The job.
        text: Whether it is a text job; else a robot job.
        named: Keys that the command line names.
    """
    return [error for _, error in _in_domain(config, text, named)]


def _of_both(config: SiiRLArguments, named: Collection[str]) -> Iterator[tuple[Key, SiirlError]]:
    for key in _asked_for(config, named):
        if not _of_one_domain(key) and not _is_read(config, key):
            yield key, _unread(config, key)


def _in_domain(
    config: SiiRLArguments, text: bool, named: Collection[str]
) -> Iterator[tuple[Key, SiirlError]]:
    env = f"env={config.env.name}"
    for key in _asked_for(config, named):
        setting = f"{key.place}={as_text(value_of(config, key.place))}"
        if key.metadata["text_only"] and not text:
            yield (
                key,
                ConfigError(
                    f"{setting} is read by text jobs only, and {env} is no text: "
                    f"{key.metadata['text_only']}. Leave it out."
                ),
            )
        elif (
            key.place in ROBOTS_ONLY and text and value_of(config, key.place) != 0
        ):  # 0 videos is harmless in a text job
            yield (
                key,
                ConfigError(
                    f"{setting} is read by robot jobs only, and {env} is text: "
                    f"{ROBOTS_ONLY[key.place]}. Leave it out."
                ),
            )
        elif _of_one_domain(key) and not _is_read(config, key):
            yield key, _unread(config, key)


def _of_one_domain(key: Key) -> bool:
    return bool(key.metadata["text_only"]) or key.place in ROBOTS_ONLY


def _asked_for(config: SiiRLArguments, named: Collection[str]) -> Iterator[Key]:
    for key in keys_of(SiiRLArguments):
        value = value_of(config, key.place)
        if key.metadata["derived"] or (value == key.default and not (value and key.place in named)):
            continue
        if key.place in named or value not in _shipped(config, key.place):
            yield key


def _shipped(config: SiiRLArguments, place: str) -> list[object]:
    """Values that the groups under configs/ give a key; `${other.key}` is resolved."""
    return [
        value_of(config, value[2:-1])
        if isinstance(value, str) and value.startswith("${")
        else value
        for value in compose.shipped_values().get(place, ())
    ]


def _is_read(config: SiiRLArguments, key: Key) -> bool:
    return all(reader.applies(config) for reader in READERS.get(key.place, ()))


def _unread(config: SiiRLArguments, key: Key) -> ConfigError:
    reader = next(reader for reader in READERS[key.place] if not reader.applies(config))
    return ConfigError(
        f"{key.place}={as_text(value_of(config, key.place))} is read "
        f"{reader.clause.format_map(vars(config))}"
    )
