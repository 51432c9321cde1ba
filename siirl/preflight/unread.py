"""Refuses keys that the user set but the job does not read.

A key counts as set if the command line names it (unless its value is a default that turns a feature
off: null, false, 0, empty), or if a file gives it a value that is neither its default nor a shipped
group's. Defaults of groups therefore do not count, and a run's config.yaml, which names every key,
can be read again. Left out: the condition under which a key is read
(`siirl.preflight.key_readers`).
"""

from collections.abc import Collection

from envs.registry import asks_questions
from siirl.errors import ConfigError, SiirlError
from siirl.params import compose
from siirl.params.build import as_text
from siirl.params.schema import Key, keys_of, value_of
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.key_readers import READERS, ROBOTS_ONLY

OF_GENERATORS = frozenset({"wording", "num_tests"})
"""Keys of `env.kwargs` that control how an environment generates questions."""


def unread_problems(config: SiiRLArguments, *, named: Collection[str] = ()) -> list[SiirlError]:
    """Set keys of both domains that the job does not read.

    Args:
        config: The job.
        named: Keys that the command line names.
    """
    return list(SetKeys(config, named).unread_of_both().values())


def unread_in_domain(
    config: SiiRLArguments, *, text: bool, named: Collection[str] = ()
) -> list[SiirlError]:
    """Set keys of one domain that the job does not read.

    Args:
        config: The job.
        text: Whether it is a text job; else a robot job.
        named: Keys that the command line names.
    """
    return list(SetKeys(config, named).unread_in(text=text).values())


def unread_keys(
    config: SiiRLArguments, *, text: bool, named: Collection[str] = ()
) -> dict[str, SiirlError]:
    """All set keys that the job does not read, by their place; arguments as above."""
    keys = SetKeys(config, named)
    return keys.unread_of_both() | keys.unread_in(text=text)


class SetKeys:
    """Keys that the user of a job set, with the reason for each that the job does not read.

    Args:
        config: The job.
        named: Keys that the command line names.
    """

    def __init__(self, config: SiiRLArguments, named: Collection[str]) -> None:
        self.config, self.named = config, named
        self.keys = [key for key in keys_of(SiiRLArguments) if self._is_set(key, named)]

    def unread_of_both(self) -> dict[str, SiirlError]:
        """Unread keys of both domains, by their place."""
        found: dict[str, SiirlError] = {}
        for key in self.keys:
            if not _of_one_domain(key) and (error := self._unread(key)):
                found[key.place] = error
        return found | self._of_generators()

    def unread_in(self, *, text: bool) -> dict[str, SiirlError]:
        """Unread keys of one domain, and set keys of the other, by their place."""
        found: dict[str, SiirlError] = {}
        for key in self.keys:
            error = self._of_other_domain(key, text=text)
            if error is None and _of_one_domain(key):
                error = self._unread(key)
            if error is not None:
                found[key.place] = error
        return found

    def _of_generators(self) -> dict[str, SiirlError]:
        """Arguments set for the environment's generators although the questions come from files."""
        env = self.config.env
        files = "data.train_files" if self.config.data.train_files else "env.kwargs.files"
        given = self.config.data.train_files or env.kwargs.get("files")
        if not given or not asks_questions(env.name):
            return {}
        found: dict[str, SiirlError] = {}
        for name in OF_GENERATORS & env.kwargs.keys():
            place, value = f"env.kwargs.{name}", env.kwargs[name]
            if place in self.named or value not in compose.shipped_values().get(place, ()):
                found[place] = ConfigError(
                    f"{place}={as_text(value)} is read by generators of questions, but here the "
                    f"questions come from {files}: leave one of the two out."
                )
        return found

    def _is_set(self, key: Key, named: Collection[str]) -> bool:
        value = value_of(self.config, key.place)
        asks_for_nothing = value == key.default and not (value and key.place in named)
        if key.metadata["derived"] or asks_for_nothing:
            return False
        return key.place in named or value not in self._shipped(key)

    def _shipped(self, key: Key) -> list[object]:
        """Values that the groups under configs/ give a key; `${other.key}` is resolved."""
        values = []
        for value in compose.shipped_values().get(key.place, ()):
            refers = isinstance(value, str) and value.startswith("${")
            values.append(value_of(self.config, value[2:-1]) if refers else value)
        return values

    def _of_other_domain(self, key: Key, *, text: bool) -> ConfigError | None:
        env, setting = f"env={self.config.env.name}", self._setting(key)
        if key.metadata["text_only"] and not text:
            return ConfigError(
                f"{setting} is read by text jobs only, but {env} is not a text environment: "
                f"{key.metadata['text_only']}. Leave it out."
            )
        # 0 videos and a ratio of single tokens are what a text job has
        if (
            key.place in ROBOTS_ONLY
            and text
            and value_of(self.config, key.place) not in (0, "token")
        ):
            return ConfigError(
                f"{setting} is read by robot jobs only, but {env} is text: "
                f"{ROBOTS_ONLY[key.place]}. Leave it out."
            )
        return None

    def _unread(self, key: Key) -> ConfigError | None:
        for reader in READERS.get(key.place, ()):
            if not reader.applies(self.config):
                clause = reader.clause.format_map(vars(self.config))
                return ConfigError(f"{self._setting(key)} is read {clause}")
        return None

    def _setting(self, key: Key) -> str:
        return f"{key.place}={as_text(value_of(self.config, key.place))}"


def _of_one_domain(key: Key) -> bool:
    return bool(key.metadata["text_only"]) or key.place in ROBOTS_ONLY
