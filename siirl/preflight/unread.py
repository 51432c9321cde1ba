"""Refuses keys that the user set and nothing of the job reads: a key that does nothing is a lie.

Set is a key that the command line names, unless with a default that asks for nothing (null, false,
0, empty); and one in a file whose value is neither its default nor what a shipped group gives it.
So a group's defaults are nobody's wish, and the config.yaml of a run, which names every key, is
read again. Left out: which key is read when (`siirl.preflight.key_readers`).
"""

from collections.abc import Collection, Iterator

from siirl.errors import ConfigError, SiirlError
from siirl.params import compose
from siirl.params.build import as_text
from siirl.params.schema import Key, keys_of, value_of
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.key_readers import READERS, ROBOTS_ONLY


def unread_problems(config: SiiRLArguments, *, named: Collection[str] = ()) -> list[SiirlError]:
    """Keys of both domains that the job does not read.

    Args:
        config: The job.
        named: Keys that the command line names.
    """
    return [
        _unread(config, key)
        for key in _asked_for(config, named)
        if not _of_one_domain(key) and not _is_read(config, key)
    ]


def unread_in_domain(
    config: SiiRLArguments, *, text: bool, named: Collection[str] = ()
) -> list[SiirlError]:
    """Keys of one domain that the job does not read.

    Args:
        config: The job.
        text: Whether it is of text; of robots otherwise.
        named: Keys that the command line names.
    """
    return list(_in_domain(config, text, named))


def _in_domain(config: SiiRLArguments, text: bool, named: Collection[str]) -> Iterator[SiirlError]:
    env = f"env={config.env.name}"
    for key in _asked_for(config, named):
        shown = f"{key.place}={as_text(value_of(config, key.place))}"
        if key.metadata["text_only"] and not text:
            yield ConfigError(
                f"{shown} is read by text jobs, and {env} is none: {key.metadata['text_only']}. Leave it out."
            )
        elif (
            key.place in ROBOTS_ONLY and text and value_of(config, key.place) != 0
        ):  # no videos, of jobs without any
            yield ConfigError(
                f"{shown} is read by jobs of robots, and {env} is text: {ROBOTS_ONLY[key.place]}. Leave it out."
            )
        elif _of_one_domain(key) and not _is_read(config, key):
            yield _unread(config, key)


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
    """What the groups under configs/ give a key; `${other.key}` stands for the other key's value."""
    return [
        value_of(config, value[2:-1])
        if isinstance(value, str) and value.startswith("${")
        else value
        for value in compose.shipped_values().get(place, ())
    ]


def _is_read(config: SiiRLArguments, key: Key) -> bool:
    return all(reader.there(config) for reader in READERS.get(key.place, ()))


def _unread(config: SiiRLArguments, key: Key) -> ConfigError:
    reader = next(reader for reader in READERS[key.place] if not reader.there(config))
    return ConfigError(
        f"{key.place}={as_text(value_of(config, key.place))} is read {reader.told.format_map(vars(config))}"
    )
