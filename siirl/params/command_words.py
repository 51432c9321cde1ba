"""Separates a command's own `key=value` words from those of the configuration."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from envs.names import listed, nearest
from siirl.errors import ConfigError, UnknownNameError
from siirl.files.paths import find_model

LONGEST_NUMBER = 20  # characters; Python reads no number of more than 4300 digits


class Word(NamedTuple):
    """A command's own word: its default, its meaning, and its value as help shows it."""

    default: str
    help: str
    shown: str = ""
    """Empty: the default."""


def split_words(
    words: Sequence[str], known: Mapping[str, Word]
) -> tuple[dict[str, str], list[str]]:
    """The command's own words, each with its last value or default, and the remaining words.

    Raises:
        UnknownNameError: A flag, because such a command has only --help; or a misspelt word of the
            command.
    """
    own, others = {name: word.default for name, word in known.items()}, []
    for word in words:
        if word.startswith("-"):
            name, _, value = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            if name in known:
                example = value or known[name].shown or known[name].default
                raise UnknownNameError(f"Unknown flag {word!r}. Write {name}={example}.")
            raise UnknownNameError.of(kind="flag", name=word, known=["--help"])
        name, equals, value = word.partition("=")
        if equals and name in known:
            own[name] = value
        else:
            if equals and "." not in name:
                _refuse_misspelt(name, known)
            others.append(word)
    return own, others


def _refuse_misspelt(name: str, known: Mapping[str, Word]) -> None:
    """Refuse a name that is most like a word of the command, and none of the configuration's."""
    if not nearest(name, known):
        return
    from siirl.params.config_groups import options  # slow, for a misspelt word alone
    from siirl.params.parser import ROOT_NAMES

    of_configuration = ROOT_NAMES | options().keys()
    if name in of_configuration:
        return
    suggestion = nearest(name, {**known, **dict.fromkeys(of_configuration)})
    if suggestion == nearest(name, known):
        raise UnknownNameError(
            f"Unknown word {name!r}.{suggestion} Words of this command: {listed(name, known)}. "
            "Type --help for their meaning."
        )


def refuse_missing(sentence: str, *, words: Sequence[str]) -> NoReturn:
    """Refuse a line without a word that the command needs.

    Args:
        sentence: What is missing, and the remedy.
        words: The other words of the line. A misspelt one is reported instead of `sentence`,
            because it may be the missing word.

    Raises:
        ConfigError: Always.
    """
    from siirl.params.parser import parse  # slow, for a mistake alone

    parse(words)
    raise ConfigError(sentence)


def named_policy(path: str, *, words: Sequence[str]) -> Path:
    """The policy that a command's `checkpoint=` names; `words` are the other words of the line.

    Raises:
        ConfigError: An empty path; and as `siirl.files.paths.find`.
        MissingAssetError: As `siirl.files.paths.find`.
    """
    if not path:
        refuse_missing(
            "No policy given. Set checkpoint=FOLDER: a policy folder, a checkpoint, or a run "
            "folder.",
            words=words,
        )
    return find_model(path, key="checkpoint")


def whole_number(name: str, text: str, *, least: int, most: int) -> int:
    """The value of a word that is a count.

    Raises:
        ConfigError: Not a whole number, or out of range.
    """
    digits = text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER
    if not digits or not least <= int(text) <= most:
        raise ConfigError(
            f"{name}={text[:LONGEST_NUMBER]} must be a whole number from {least} to {most}."
        )
    return int(text)
