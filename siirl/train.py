"""`siirl train [group=option ...] [key=value ...]`: reads and checks the configuration, prints the
plan, and runs.

`--help` lists the options. Invalid jobs are refused before a process starts, with all known reasons
at once. Exit status: 0 done, 1 the run failed, 2 the configuration cannot work, 128 + the signal's
number if interrupted: 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP (siirl.interrupts), 141 if its output is
closed.
Left out: the run itself (siirl.dag_worker).
"""

import os
import sys
from collections.abc import Sequence

from siirl import interrupts, program
from siirl.interrupts import leave
from siirl.jobs.threads import short_waits
from siirl.params.command_line import Action, CommandLine, note_repeated, read_command_line
from siirl.params.help import commented, help_text
from siirl.params.parser import ParsedConfig, parse, to_yaml
from siirl.terminal import warning_lines
from siirl.terminal.exit_status import exit_status
from siirl.terminal.terminal_lines import say, text_columns

USAGE = "[group=option ...] [key=value ...]: train a policy (default: the demo)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (without the program's name) and return the exit status."""
    words = sys.argv[1:] if argv is None else argv
    return exit_status(lambda: _run(read_command_line(words)), what="the run")


def _run(command: CommandLine) -> None:
    parsed = parse(command.overrides, config_file=command.config_file)
    note_repeated(command.overrides)
    for notice in parsed.notices:
        say(f"Note: {notice}")
    if command.action is Action.HELP:
        print(
            help_text(
                usage=f"{program('siirl.train')} {USAGE}",
                user_groups=parsed.user_groups,
                topic=command.topic,
            ),
            flush=True,
        )
    elif command.action is Action.PRINT_CONFIG:
        text = to_yaml(parsed.config)
        print(commented(text) if command.comments else text, end="", flush=True)
    else:
        _train(parsed, start=command.action is Action.RUN)


def _train(parsed: ParsedConfig, *, start: bool) -> None:
    # Imported in stages: --help and --cfg need none of these modules, and the first refusals no
    # torch.
    from siirl.preflight.early_checks import check_early

    config = parsed.config
    spec = check_early(config, named=parsed.named)
    from siirl.preflight.plan_text import render
    from siirl.preflight.prepare import prepare

    job = prepare(config, spec)
    for warning in job.warnings:
        warning_lines.warn(warning)
    print(render(job.plan, columns=text_columns()), flush=True)
    if not start:
        return
    from siirl.jobs.training_run import run
    from siirl.preflight.object_store import store_bytes
    from siirl.reporting.run_folder import PLAN_FILE, run_folder

    needed_bytes = int(job.plan.needs.disk_bytes)
    with run_folder(config, needed_bytes=needed_bytes, given=parsed.given) as folder:
        print(f"  run folder  {folder}", flush=True)
        if config.cluster.mode == "ray":  # nothing more is printed until its processes run
            print(f"  starting    {cluster_in_words(config.cluster.address)}", flush=True)
        (folder / PLAN_FILE).write_text(f"{render(job.plan)}\n")
        run(config, job.graph, folder, store_bytes=store_bytes(job.plan.needs.memory_parts))


def cluster_in_words(address: str | None) -> str:
    """What `cluster.address` lets a run start, as its output says it."""
    if address is None:
        return "a private Ray cluster"
    if address == "auto":
        return "processes on the running Ray cluster"
    return f"processes on Ray at {address}"


def command() -> None:
    """Entry of the process; signals may end it."""
    interrupts.listen()
    warning_lines.show()
    os.environ.update(short_waits())
    leave(main())


if __name__ == "__main__":
    command()
