"""Shows the results of runs: report.html, a comparison, exported curves, or rollouts.

    # writes report.html
    siirl report outputs/run/TIME
    # compares runs: comparison.html in the working folder
    siirl report outputs/one/TIME outputs/two/TIME
    # for a paper: metrics as CSV; a .pdf has all charts, a folder a PDF and an
    # SVG of each
    siirl report outputs/run/TIME --export curves.csv
    siirl report outputs/run/TIME --export charts/
    # of the newest step, what went wrong
    siirl report outputs/run/TIME --rollouts --failures
    siirl report outputs/run/TIME --rollouts --step 40 --kind val --count 3

A run rewrites report.html at intervals; this command writes it again, also during a run.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from siirl import interrupts
from siirl.errors import ConfigError, MissingAssetError, SiirlError
from siirl.interrupts import leave
from siirl.params.command_help import argument_parser, integer, path_flag
from siirl.reporting.agent_folders import folders_of_agents, hint
from siirl.reporting.command_console import CommandConsole
from siirl.reporting.comparison import COMPARISON_FILE, names_of, write_comparison
from siirl.reporting.report_page import read_run, with_earlier, write_report
from siirl.reporting.rollout_files import KINDS, ROLLOUTS_FOLDER, read_rollouts, steps_of
from siirl.reporting.rollout_view import show
from siirl.reporting.run_folder import require_folder
from siirl.terminal.exit_status import exit_status

SHOWN_ROLLOUTS = 10


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Exit status: 0 done, 1 failed, 2 refused, 130, 143 or 129 interrupted, 141 output closed.
    """
    parser = argument_parser(__doc__, "siirl.report")
    parser.add_argument(
        "folders",
        metavar="RUN",
        type=path_flag,
        nargs="+",
        help="folder of a run, outputs/<name>/<time>; several are compared",
    )
    parser.add_argument(
        "--export",
        type=path_flag,
        metavar="PATH",
        help="write curves instead: FILE.csv, FILE.pdf, or a folder of PDF and SVG files",
    )
    parser.add_argument(
        "--output",
        type=path_flag,
        help=f"page of a comparison ({COMPARISON_FILE})",
    )
    parser.add_argument("--rollouts", action="store_true", help="print rollouts instead")
    parser.add_argument(
        "--step", type=integer, help="training step of the rollouts; by default the newest"
    )
    parser.add_argument(
        "--kind", choices=KINDS, help="only rollouts of training, or of the evaluation"
    )
    parser.add_argument("--failures", action="store_true", help="only rollouts that failed")
    parser.add_argument(
        "--count", type=integer, help=f"maximum number of rollouts to print ({SHOWN_ROLLOUTS})"
    )
    flags = parser.parse_args(argv)
    return exit_status(lambda: _run(flags), failures=(SiirlError, ValueError), place=_place(flags))


def _run(flags: argparse.Namespace) -> None:
    _check(flags)
    if flags.export is not None:
        from siirl.reporting.chart_files import export  # matplotlib takes a second to import

        named = names_of(flags.folders)
        runs = {name: with_earlier(read_run(folder), folder) for name, folder in named.items()}
        print(*export(runs, flags.export), sep="\n")
    elif flags.rollouts:
        if len(flags.folders) > 1:
            raise ConfigError(f"--rollouts shows one run; {len(flags.folders)} are named.")
        show_rollouts(
            flags.folders[0],
            step=flags.step,
            kind=flags.kind,
            failures_only=flags.failures,
            count=SHOWN_ROLLOUTS if flags.count is None else flags.count,
        )
    elif len(flags.folders) > 1:
        print(write_comparison(flags.folders, flags.output or Path(COMPARISON_FILE)))
    else:
        print(write_report(flags.folders[0]))


def _place(flags: argparse.Namespace) -> str:
    """Destination of the chosen result."""
    if flags.export is not None:
        return f"--export {flags.export}"
    return f"RUN={flags.folders[0]}" if flags.output is None else f"--output {flags.output}"


def _check(flags: argparse.Namespace) -> None:
    """Refuse flags that the chosen result does not read."""
    given = {
        name for name, value in vars(flags).items() if value is not None and value is not False
    }
    unread = sorted({"step", "kind", "failures", "count"} & given)
    if flags.count is not None and flags.count < 1:
        raise ConfigError(f"--count {flags.count} must be at least 1.")
    if unread and not flags.rollouts:
        raise ConfigError(f"--{unread[0]} selects rollouts to print: add --rollouts.")
    if flags.rollouts and flags.export is not None:
        raise ConfigError(
            "--export writes curves and --rollouts prints rollouts: give one of them."
        )
    if flags.output is not None and (len(flags.folders) == 1 or flags.export or flags.rollouts):
        raise ConfigError(
            f"--output {flags.output} is the page of a comparison: name two runs or more, without "
            "--export and --rollouts."
        )


def show_rollouts(
    folder: Path, *, step: int | None, kind: str | None, failures_only: bool, count: int
) -> None:
    """Print the rollouts of a step, by default of the newest.

    Raises:
        MissingAssetError: The run has no rollouts, or its folder does not exist.
        ConfigError: It has no rollouts of this step.
    """
    require_folder(folder)
    rollouts = folder / ROLLOUTS_FOLDER
    steps = steps_of(rollouts)
    if not steps:
        raise MissingAssetError(
            f"{folder} has no rollouts: name the folder of a run of a language model, with "
            f"trainer.save_rollouts above 0.{hint(folder, ROLLOUTS_FOLDER)}"
        )
    step = steps[-1] if step is None else step
    if step not in steps:
        raise ConfigError(
            f"{folder} has no rollouts of step {step}; its steps are {_listed(steps)}."
        )
    found = list(read_rollouts(rollouts, kind=kind, step=step, failures_only=failures_only))
    console = CommandConsole()
    show(found[:count], console)
    console.print(
        f"{min(count, len(found))} of {len(found)} {'failed ' if failures_only else ''}rollouts of "
        f"step {step}"
    )
    for other in folders_of_agents(folder, ROLLOUTS_FOLDER):
        console.print(f"rollouts of another agent: {other}", soft_wrap=True)


def _listed(steps: Sequence[int]) -> str:
    numbers = [str(step) for step in steps]
    return ", ".join(numbers if len(numbers) <= 10 else [*numbers[:5], "…", *numbers[-4:]])


def command() -> None:
    """Entry of the process; signals may end it."""
    interrupts.listen()
    leave(main())


if __name__ == "__main__":
    command()
