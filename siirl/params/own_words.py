"""Separates a command's own `key=value` words from those of the configuration."""

from collections.abc import Mapping, Sequence

from siirl.errors import UnknownNameError


def split_words(
    words: Sequence[str], defaults: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The command's own words, each with its last value or its default, and the other words.

    Raises:
        UnknownNameError: A flag; such a command has only --help.
    """
    own, others = dict(defaults), []
    for word in words:
        if word.startswith("-"):
            raise UnknownNameError.of(kind="flag", name=word, known=["--help"])
        name, equals, value = word.partition("=")
        if equals and name in defaults:
            own[name] = value
        else:
            others.append(word)
    return own, others
