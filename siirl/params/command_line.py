"""Reads the flags of the commands; the parser reads the rest of the line (`group=option`,
`key=value`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from siirl.errors import ConfigError, UnknownNameError
from siirl.files.paths import fault_of_path
from siirl.params.config_groups import options
from siirl.terminal.terminal_lines import say


class Action(Enum):
    """Action that the command line requests."""

    RUN = "run"
    HELP = "--help"
    PRINT_CONFIG = "--cfg"
    PLAN = "--plan"


@dataclass(frozen=True)
class CommandLine:
    """A command line, taken apart."""

    action: Action = Action.RUN
    config_file: str | None = None
    topic: str | None = None
    """Group or part of a key that `--help` is limited to."""
    comments: bool = False
    """Whether the printed configuration explains its keys."""
    overrides: tuple[str, ...] = field(default=())


PRINTED = ("job", "comments")
"""Values of --cfg: the configuration, or the same with a comment on each key."""
FLAGS = ("--help", "--plan", "--cfg", "--config")
NOT_SUPPORTED = {
    "-m": "several runs at once: one command is one run; write a loop in the shell",
    "--multirun": "several runs at once: one command is one run; write a loop in the shell",
    "--config-dir": "a second folder of groups: put keys into a file and give --config FILE",
    "--config-path": "another folder of groups: put keys into a file and give --config FILE",
    "--config-name": "another primary file: put keys into a file and give --config FILE",
}


def read_command_line(argv: Sequence[str]) -> CommandLine:
    """Take the flags out of `argv`.

    Raises:
        ConfigError: An unknown flag (the message lists the known ones), a flag without its value or
            with an unexpected one, or a second file.
    """
    action = Action.RUN
    config_file = None
    overrides = []
    topic, comments = None, False
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if not word.startswith("-"):
            if action is Action.HELP and topic is None and "=" not in word:
                topic = word
            else:
                overrides.append(word)
        elif flag in ("--help", "-h"):
            action, topic = Action.HELP, value or None
        elif flag == "--plan":
            if equals:
                raise ConfigError(f"{word}: --plan takes no value. Write --plan, or leave it out.")
            action = Action.PLAN
        elif flag == "--config":
            if config_file is not None:
                raise ConfigError(
                    "--config is given twice, but only one file is read: put the keys of "
                    f"{config_file} into the other file."
                )
            config_file = value if equals else _value_of(flag, next(words, None), example="my.yaml")
        elif flag in ("--cfg", "-c"):
            printed = value if equals else _value_of(flag, next(words, None), example="job")
            if printed not in PRINTED:
                raise UnknownNameError.of(kind="value of --cfg", name=printed, known=PRINTED)
            action, comments = Action.PRINT_CONFIG, printed == "comments"
        elif flag in NOT_SUPPORTED:
            raise ConfigError(f"{flag} is Hydra's and not supported ({NOT_SUPPORTED[flag]}).")
        else:
            raise UnknownNameError.of(kind="flag", name=flag, known=FLAGS)
    return CommandLine(action, config_file, topic, comments, tuple(overrides))


def note_repeated(words: Iterable[str]) -> None:
    """Report the values of `key=value` that a later word replaces; a group chosen twice is refused
    later.

    The last value counts, as in Hydra: scripts that end in "$@" change their own keys this way.
    """
    groups = options()
    last: dict[str, str] = {}
    for word in words:
        key, equals, value = word.lstrip("+").partition("=")
        if not equals or key in groups:
            continue
        if last.get(key, value) != value:
            note_replaced(key, last[key], value)
        last[key] = value


def note_replaced(name: str, earlier: object, value: object) -> None:
    """Report which of two values of a key or flag counts."""
    say(f"Note: {name} is given twice: {value} counts, the last value; {earlier} does not.")


def remedy_for_word(word: str) -> str | None:
    """The remedy for an option, a file or a folder without its key; None for another word."""
    chosen = [f"{group}={word}" for group, names in options().items() if word in names]
    if chosen:
        return f"Did you mean {' or '.join(chosen)}?"
    path = None if fault_of_path(word) else Path(word)
    if path is not None and path.is_file():
        return f"A file of keys is given by --config {word}."
    if path is not None and path.is_dir():
        return (
            f"The folder of a run is checkpoint={word} for siirl evaluate and reward-check, and "
            f"trainer.resume={word} for siirl train."
        )
    return None


def _value_of(flag: str, value: str | None, *, example: str) -> str:
    if value is None or value.startswith("-"):
        raise ConfigError(f"{flag} needs a value: {flag} {example}.")
    return value
