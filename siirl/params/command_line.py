"""The flags of the commands; everything else on the line is `group=option` or `key=value` and
belongs to the parser.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from siirl.errors import ConfigError, UnknownNameError


class Action(Enum):
    """What a command is asked to do."""

    RUN = "run"
    HELP = "--help"
    PRINT_CONFIG = "--cfg"
    PLAN = "--plan"


@dataclass(frozen=True)
class CommandLine:
    """A command line, taken apart."""

    action: Action = Action.RUN
    config_file: str | None = None
    overrides: tuple[str, ...] = field(default=())


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
        ConfigError: An unknown flag (answered with the known ones), or one without its value.
    """
    action, config_file, overrides = Action.RUN, None, []
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if not word.startswith("-"):
            overrides.append(word)
        elif flag in ("--help", "-h"):
            action = Action.HELP
        elif flag == "--plan":
            action = Action.PLAN
        elif flag == "--config":
            config_file = value if equals else _value_of(flag, next(words, None), example="my.yaml")
        elif flag in ("--cfg", "-c"):
            printed = value if equals else _value_of(flag, next(words, None), example="job")
            if printed != "job":
                raise UnknownNameError.of(kind="value of --cfg", name=printed, known=["job"])
            action = Action.PRINT_CONFIG
        elif flag in NOT_SUPPORTED:
            raise ConfigError(f"{flag} is Hydra's and not supported ({NOT_SUPPORTED[flag]}).")
        else:
            raise UnknownNameError.of(kind="flag", name=flag, known=FLAGS)
    return CommandLine(action, config_file, tuple(overrides))


def _value_of(flag: str, value: str | None, *, example: str) -> str:
    if value is None or value.startswith("-"):
        raise ConfigError(f"{flag} needs a value: {flag} {example}.")
    return value
