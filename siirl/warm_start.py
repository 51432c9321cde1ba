"""`siirl warm-start`: makes a policy folder to start RL from.

    siirl warm-start --output my_policy env=metaworld env.tasks='[drawer-open]'
    siirl warm-start --output my_policy env=libero --lerobot hf://OWNER/DATASET
    siirl warm-start --output my_model env=math env.tasks='[sums-3]'

VLA policies learn from demonstrations (scripted experts or a LeRobot data set), language models
from answers. Environment and policy come from the same configuration as in training (`env=`,
`model=`, `trainer.seed`, `trainer.blind`); settings of the warm start are flags. The result is
deterministic for a seed. If the start is too good for RL to improve, use fewer demonstrations and
updates.
"""

import argparse
import math
import shlex
import sys
import tempfile
from collections.abc import Sequence

from siirl import interrupts
from siirl.errors import ConfigError, SiirlError
from siirl.interrupts import leave
from siirl.params.command_help import argument_parser, integer, path_flag, real
from siirl.params.command_line import note_repeated
from siirl.params.model_args import LARGEST_RATE
from siirl.params.parser import parse_config
from siirl.reporting.origin import ORIGIN_FILE
from siirl.terminal import warning_lines
from siirl.terminal.exit_status import exit_status

IN_THIS_PROCESS = (
    *("env.num_servers=1", "trainer.nnodes=1", "trainer.n_gpus_per_node=1"),
    *("cluster.mode=local", "cluster.address=null"),
)
# One environment collects the demonstrations.
ALONE = (*IN_THIS_PROCESS, "env.envs_per_server=1")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Exit status: 0 done, 1 failed, 2 refused, 130, 143 or 129 interrupted, 141 output closed.
    """
    words = sys.argv[1:] if arguments is None else arguments
    flags = _parser().parse_intermixed_args(words)
    command = f"siirl warm-start {shlex.join(words)}"
    failures = (SiirlError, OSError)
    return exit_status(lambda: _run(flags, command), what="the warm start", failures=failures)


def _run(flags: argparse.Namespace, command: str) -> None:
    check_places(flags)
    note_repeated(flags.overrides)
    config = parse_config(["actor_rollout_ref.model.path=null", *flags.overrides, *ALONE])
    if config.actor_rollout_ref.model.lora.rank > 0:
        raise ConfigError(
            "actor_rollout_ref.model.lora.rank: a warm start trains all weights. Leave it out, and "
            "train with it."
        )
    # slow: imports torch; Ctrl-C works meanwhile
    from siirl.imitation.warm_starts import warm_start

    warm_start(flags, config, command=command)
    if flags.groups:
        from siirl.jobs.start_groups import report_groups  # slow

        report_groups(flags.output, flags.overrides, groups=flags.groups, alone=IN_THIS_PROCESS)


def check_places(flags: argparse.Namespace) -> None:
    """Check before the work that the output folder is writable; leaves no file there.

    Raises:
        ConfigError: The place is not writable, or of a training run.
    """
    if flags.output.exists() and not flags.output.is_dir():
        raise ConfigError(f"--output {flags.output} is a file: name a folder.")
    places = (flags.output.absolute(), *flags.output.absolute().parents)
    if run := next((place for place in places if (place / ORIGIN_FILE).is_file()), None):
        raise ConfigError(
            f"--output {flags.output} is in the folder of a run, {run}, whose files it would mix "
            "with or replace: name another folder."
        )
    if flags.clips is not None and flags.clips.is_dir():
        raise ConfigError(f"--clips {flags.clips} is a folder: name a file in it.")
    for flag, folder in (
        ("--output", flags.output),
        *([("--clips", flags.clips.parent)] if flags.clips is not None else []),
    ):
        there = next(
            place for place in (folder.absolute(), *folder.absolute().parents) if place.exists()
        )
        try:
            tempfile.TemporaryFile(dir=there).close()
        except OSError as error:
            raise ConfigError(
                f"{flag} {folder} cannot be written: {error.strerror} ({there}). Choose another "
                "folder."
            ) from error


def _parser() -> argparse.ArgumentParser:
    parser = argument_parser(__doc__, "siirl.warm_start")
    parser.add_argument("--output", required=True, type=path_flag, help="policy folder to write")
    parser.add_argument(
        "--demonstrations",
        action="append",
        type=demonstrations_wanted,
        default=[],
        metavar="[TASK=]N",
        help="successful expert episodes of each task (2; 12 for env=libero), or of one task; may "
        "be repeated",
    )
    parser.add_argument(
        "--noise",
        type=number,
        help="deviation of the noise on the expert's actions, in units of half their range (0.3; "
        "0.15 for env=libero; integers have none); shows how to recover",
    )
    parser.add_argument(
        "--target-noise",
        type=number,
        help="robots: deviation of the noise on the cloned actions, in units of half their range "
        "(0.25 for env=metaworld, else 0): the policy then acts around the demonstrated "
        "actions, and rollouts from one start state end differently (docs/learning.md)",
    )
    parser.add_argument(
        "--updates",
        type=whole_number,
        help="maximum number of optimiser steps; more give a better start (robots 300, env=libero "
        "500, text 700 per task)",
    )
    parser.add_argument(
        "--batch-rows",
        type=whole_number,
        help="observations or questions of an optimiser step (128)",
    )
    parser.add_argument(
        "--learning-rate",
        type=learning_rate,
        help="peak of the schedule (robots 1e-3, text 1.5e-3)",
    )
    parser.add_argument(
        "--stop-at",
        type=number,
        help="text: stop when every task has this share of right answers (0.4); above 1: never",
    )
    parser.add_argument(
        "--fit-proprioception",
        action=argparse.BooleanOptionalAction,
        help="robots: standardise proprioception to the mean and deviation of the demonstrations; "
        "for values that move by centimetres (env=libero: yes, else no)",
    )
    parser.add_argument(
        "--groups",
        type=count,
        help="robots: play this number of groups of rollouts of each task with the result, and say "
        "how many have a success and a failure, from which a 0/1 reward learns (4; 0: none)",
    )
    _add_sources(parser)
    parser.add_argument(
        "overrides", nargs="*", help="group=option and key=value, as for siirl train"
    )
    return parser


def _add_sources(parser: argparse.ArgumentParser) -> None:
    """Add flags for the source and the destination of demonstrations."""
    parser.add_argument(
        "--clips",
        type=path_flag,
        help="also write the demonstrations' clips, for reward.demonstrations=FILE",
    )
    parser.add_argument(
        "--expert",
        help="module:function: task name -> (environment -> action); default: the environment's",
    )
    parser.add_argument(
        "--lerobot",
        metavar="DATASET",
        help="robots: demonstrations from a LeRobot data set, a folder or hf://owner/name, instead "
        "of an expert's; --demonstrations then limits them",
    )
    parser.add_argument(
        "--lerobot-cameras",
        metavar="NAME,NAME",
        help="cameras of the data set, in the environment's order; by default the first ones",
    )


def whole_number(text: str) -> int:
    """A count from 1 to a million."""
    value = integer(text)
    if not 1 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1 and at most 1000000")
    return value


def count(text: str) -> int:
    """From 0 to a million."""
    return 0 if text == "0" else whole_number(text)


def demonstrations_wanted(text: str) -> tuple[str | None, int]:
    """`N` for each task, or `TASK=N` for one."""
    task, _, count = text.rpartition("=")
    return task or None, whole_number(count)


def number(text: str) -> float:
    """A finite number that is not negative."""
    value = real(text)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text} must be a finite number of at least 0")
    return value


def learning_rate(text: str) -> float:
    """A number above 0 that changes float32 weights by finite numbers."""
    value = real(text)
    if not 0 < value <= LARGEST_RATE:
        raise argparse.ArgumentTypeError(
            f"{text} must be a number above 0, and at most {LARGEST_RATE:g}"
        )
    return value


def command() -> None:
    """Entry of the process; signals may end it."""
    interrupts.listen()
    warning_lines.show()
    leave(main())


if __name__ == "__main__":
    command()
