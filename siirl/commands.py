"""The `siirl` command: `siirl train …` is `python -m siirl.train …`, and so on.

    siirl train pipeline=grpo env=math
    siirl --version

A subcommand is an entry of `SUBCOMMANDS` and a module with `main(argv)` and `command()`, which is
imported only when used. Exit status: the subcommand's own; 2 if the command line names none.
"""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from siirl import __version__, check_companions, interrupts
from siirl.errors import UnknownNameError
from siirl.interrupts import leave


class Subcommand(NamedTuple):
    """Data of a subcommand for `siirl --help` and shell completion, without importing it."""

    module: str
    summary: str
    words: tuple[str, ...] = ()
    """Its flags and its own `key=value` words; a test compares them with the module's parser."""
    configures: bool = False
    """Whether it also takes the configuration's `group=option` and `key=value`."""


SUBCOMMANDS: Mapping[str, Subcommand] = {
    "train": Subcommand(
        "siirl.train",
        "train a policy; without arguments, the demo job",
        ("--help", "--plan", "--cfg", "--config"),
        configures=True,
    ),
    "evaluate": Subcommand(
        "siirl.evaluate",
        "success on held-out episodes, with intervals and videos",
        ("--help", "checkpoint=", "resume=", "actions=sampled", "actions=argmax", "actions=both"),
        configures=True,
    ),
    "reward-check": Subcommand(
        "siirl.reward_check",
        "how a reward ranks failures and idle videos",
        ("--help", "checkpoint=", "steps="),
        configures=True,
    ),
    "warm-start": Subcommand(
        "siirl.warm_start",
        "make an initial policy from demonstrations or correct answers",
        (
            *(
                "--help",
                "--output",
                "--demonstrations",
                "--noise",
                "--target-noise",
                "--updates",
                "--batch-rows",
                "--learning-rate",
                "--stop-at",
                "--groups",
            ),
            *("--fit-proprioception", "--no-fit-proprioception", "--clips", "--expert"),
            *("--lerobot", "--lerobot-cameras"),
        ),
        configures=True,
    ),
    "replay": Subcommand(
        "siirl.replay",
        "replay recorded episodes as a video or a LeRobot data set",
        (
            *("--help", "--every", "--size", "--output"),
            *("--lerobot", "--lerobot-version", "--fps"),
        ),
        configures=True,
    ),
    "serve": Subcommand(
        "siirl.serve",
        "serve an environment to other trainers, by OpenEnv's protocol",
        ("--help", "port=", "host=", "sessions=", "token_file=", "max_message_mib="),
        configures=True,
    ),
    "report": Subcommand(
        "siirl.report",
        "rebuild report.html, compare runs, print curves and rollouts",
        (
            *("--help", "--export", "--output"),
            *("--rollouts", "--step", "--kind", "--failures", "--count"),
        ),
    ),
    "export": Subcommand(
        "siirl.export",
        "write a policy as a folder for transformers and the Hub",
        ("--help", "--output", "--dtype", "--license", "--file-gb", "--base"),
    ),
    "doctor": Subcommand("siirl.doctor", "check which jobs this machine can run", ("--help",)),
    "gpu-check": Subcommand(
        "siirl.gpu_check",
        "try siirl on this machine's GPUs, with random weights",
        ("--help", "--minutes", "--json", "--only", "--force-group"),
    ),
    "completion": Subcommand(
        "siirl.completion",
        "print a completion script for bash, zsh or fish",
        ("--help", "bash", "zsh", "fish"),
    ),
}
GROUPS: Mapping[str, Sequence[str]] = {
    "Train and judge": ("train", "evaluate", "reward-check", "warm-start"),
    "Look at a run": ("report", "replay"),
    "Give to others": ("export", "serve"),
    "This machine": ("doctor", "gpu-check", "completion"),
}
"""Sections of `siirl --help`."""
FLAGS = ("--help", "--version")


def help_text() -> str:
    """Text of `siirl --help`."""
    width = max(map(len, SUBCOMMANDS))
    lines: list[str] = []
    for group, names in GROUPS.items():
        lines.append(f"{group}:")
        lines += [f"  {name:<{width}}  {SUBCOMMANDS[name].summary}" for name in names]
        lines.append("")
    return "\n".join(
        [
            "siirl SUBCOMMAND ...: reinforcement learning of robots and language models",
            "",
            *lines,
            "siirl SUBCOMMAND --help lists its arguments; siirl --version prints the version.",
        ]
    )


def main(argv: Sequence[str]) -> int:
    """Handle a command line without a subcommand, and return the exit status."""
    from siirl.terminal.exit_status import (  # imports envs, which `script` checks first
        REFUSED,
        exit_status,
    )

    if not argv:
        print(help_text(), file=sys.stderr)
        return REFUSED
    return exit_status(lambda: _answer(argv[0]))


def _answer(word: str) -> None:
    if word in ("--help", "-h"):
        print(help_text())
    elif word == "--version":
        print(f"siirl {__version__}")
    else:
        raise _unknown(word)


def _unknown(word: str) -> UnknownNameError:
    if word.startswith("-"):
        return UnknownNameError.of(kind="flag", name=word, known=FLAGS)
    if "=" in word:
        return UnknownNameError(
            f"{word!r} is not a subcommand. Did you mean 'siirl train {word}'? Known: "
            f"{', '.join(SUBCOMMANDS)}."
        )
    if word == "plan":
        return UnknownNameError("'plan' is not a subcommand: 'siirl train --plan' prints a plan.")
    return UnknownNameError.of(kind="subcommand", name=word, known=SUBCOMMANDS)


def command() -> None:
    """Run the process's command line; does not return."""
    interrupts.listen()
    name, rest = (sys.argv[1] if len(sys.argv) > 1 else ""), sys.argv[2:]
    if name not in SUBCOMMANDS:
        leave(main(sys.argv[1:]))
    sys.argv = [sys.argv[0], *rest]
    importlib.import_module(SUBCOMMANDS[name].module).command()


def script() -> None:
    """Console script; adds the working folder to the module path as `python -m` does."""
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()
        try:
            check_companions()
        except ImportError as error:  # the working folder has a package of the same name
            sys.exit(f"siirl: {error}")
    command()
