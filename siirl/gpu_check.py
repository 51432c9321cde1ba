"""`siirl gpu-check`: tries siirl on this machine's GPUs, with random weights of published shapes.

    siirl gpu-check
    siirl gpu-check --minutes 8 --json results.json
    siirl gpu-check --only device attention

Checks over all GPUs of the machine start a process for each. Needs torch, transformers, numpy,
tensordict and omegaconf. Checks that need a missing package (ray, vLLM, MuJoCo, Gymnasium) are
skipped and name it. On a machine without a GPU, a small form of each check runs; tests use it. Exit
status: 0 if no check failed, 1 otherwise, 2 for a wrong command line. Left out: real weights,
training to a result, several machines.
"""

import argparse
import sys
from collections.abc import Sequence

import torch

from siirl import interrupts
from siirl.gpu_checks.catalogue import CHECKS
from siirl.gpu_checks.check import FORCE_GROUP
from siirl.gpu_checks.check_runner import run_checks
from siirl.gpu_checks.table import describe_row, summary, write_json
from siirl.interrupts import leave
from siirl.params.command_help import argument_parser, file_flag, real
from siirl.terminal.exit_status import FAILED, cannot_write, end

MINUTES = 8.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (without the program's name) and return the exit status."""
    arguments = _parser().parse_args(argv)
    names = arguments.only or [check.name for check in CHECKS]
    rows = []
    chosen = [check for check in CHECKS if check.name in names]
    apart = torch.cuda.is_available()
    for row in run_checks(
        chosen, minutes=arguments.minutes, apart=apart, force_group=arguments.force_group
    ):
        print(describe_row(row), flush=True)
        rows.append(row)
    print(summary(rows), flush=True)
    if arguments.json is not None:
        try:
            write_json(arguments.json, rows, minutes=arguments.minutes)
        except OSError as error:
            return end(FAILED, cannot_write(f"--json {arguments.json}", error), error)
    return FAILED if any(row.status == "failed" for row in rows) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argument_parser(__doc__, "siirl.gpu_check")
    parser.add_argument("--minutes", type=_minutes, default=MINUTES, help="time limit (default 8)")
    parser.add_argument(
        FORCE_GROUP,
        action="store_true",
        help="run the checks over all GPUs on a single one too, as a group of one rank",
    )
    parser.add_argument(
        "--json", type=file_flag, default=None, help="also write the results to this file"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[check.name for check in CHECKS],
        metavar="NAME",
        help=f"only these checks: {', '.join(check.name for check in CHECKS)}",
    )
    return parser


def _minutes(text: str) -> float:
    minutes = real(text)
    if not 0 < minutes < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return minutes


def command() -> None:
    """Entry of the process; signals may end it."""
    interrupts.listen()
    leave(main(sys.argv[1:]))


if __name__ == "__main__":
    command()
