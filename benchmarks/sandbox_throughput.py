"""Tests per second of a sandbox, and the cost of isolation.

    python -m benchmarks.sandbox_throughput
    python -m benchmarks.sandbox_throughput --rounds 1 --seconds 3      # a quick look

One program, ten tests on standard input, as many programs at once as there are cores. Contenders
take turns in rounds, so that other load on the machine affects all; every ratio is taken within a
round.

- `subprocess`: `python -I -S` for each test, isolated from nothing: the strongest simple baseline,
  and the cost of an interpreter.
- `bwrap per test`: the naive sandbox, `bwrap --unshare-all` around that, for each test.
- `sandbox`: ours as shipped, one sandbox per program and a forked process per test, with system
  call filter and limits.
- `sandbox, one test each`: ours without sharing a sandbox among a program's tests.
- `sandbox without walls`: ours with env.isolation=none.

Control: every contender judges the right program and one that prints a constant, before the clock
starts.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.env_throughput import markdown
from benchmarks.measured_on import describe_machine
from benchmarks.rate_ratios import summarise_ratios
from envs.sandbox.generator import GeneratedTask, draw_row
from envs.sandbox.limits import Limits, Sandbox
from envs.sandbox.problems import Problem, output_lines
from envs.sandbox.sandbox_env import make_sandbox
from envs.sandbox.scoring import judge, program_of

RESULTS = Path(__file__).parent / "results"
PYTHON = os.path.realpath(sys.executable)
NAIVE = [
    "bwrap",
    "--unshare-all",
    "--die-with-parent",
    "--ro-bind",
    "/",
    "/",
    "--dev",
    "/dev",
    "--proc",
    "/proc",
    "--tmpfs",
    "/tmp",
]
CONSTANT = "print(0)"
Contender = Callable[
    [Problem, str], Coroutine[Any, Any, int]
]  # runs a program on all tests; returns how many were passed


def process_per_test(prefix: list[str]) -> Contender:
    """An interpreter for each test, behind `prefix`."""

    async def run(problem: Problem, program: str) -> int:
        passed = 0
        for case in problem.cases:
            process = await asyncio.create_subprocess_exec(
                *prefix,
                PYTHON,
                "-I",
                "-S",
                "-c",
                program,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            output, _ = await process.communicate(case.given)
            passed += output_lines(output.decode()) == output_lines(case.expected)
        return passed

    return run


def in_sandbox(sandbox: Sandbox) -> Contender:
    """A sandbox for each program."""

    async def run(problem: Problem, program: str) -> int:
        return (await judge(sandbox, problem, program, stop_early=False)).passed

    return run


def in_sandboxes(sandbox: Sandbox) -> Contender:
    """A sandbox for each test."""
    run_one = in_sandbox(sandbox)

    async def run(problem: Problem, program: str) -> int:
        return sum(
            [await run_one(replace(problem, cases=(case,)), program) for case in problem.cases]
        )

    return run


def make_contenders() -> dict[str, Contender]:
    """Everything that is measured."""
    isolated = make_sandbox("bubblewrap", limits=Limits())
    return {
        "subprocess": process_per_test([]),
        "bwrap per test": process_per_test(NAIVE),
        "sandbox": in_sandbox(isolated),
        "sandbox, one test each": in_sandboxes(isolated),
        "sandbox without walls": in_sandbox(make_sandbox("none", limits=Limits())),
    }


PAIRS = {
    "shipped sandbox against plain subprocesses": ("sandbox", "subprocess"),
    "shipped sandbox against bwrap for each test": ("sandbox", "bwrap per test"),
    "cause: one sandbox for all tests of a program": ("sandbox", "sandbox, one test each"),
    "what the walls cost": ("sandbox without walls", "sandbox"),
    "our walls against naive ones, both for each test": (
        "sandbox, one test each",
        "bwrap per test",
    ),
}


async def check(contenders: dict[str, Contender], problem: Problem, right: str) -> None:
    """The control.

    Raises:
        RuntimeError: A contender that does not tell right from wrong.
    """
    for name, run in contenders.items():
        found = await run(problem, right), await run(problem, CONSTANT)
        if found[0] != len(problem.cases) or found[1] > problem.best_constant:
            raise RuntimeError(
                f"{name} counted {found[0]} and {found[1]} tests of {len(problem.cases)} for a "
                "right program and a constant."
            )


async def rate(
    run: Contender, problem: Problem, program: str, *, seconds: float, workers: int
) -> float:
    """Tests per second with `workers` programs at a time."""
    begin = time.perf_counter()

    async def work() -> int:
        tests = 0
        while time.perf_counter() - begin < seconds:
            await run(problem, program)
            tests += len(problem.cases)
        return tests

    tests = sum(await asyncio.gather(*(work() for _ in range(workers))))
    return tests / (time.perf_counter() - begin)


async def latency_ms(
    run: Contender, problem: Problem, program: str, *, programs: int
) -> list[float]:
    """Seconds of each program, run one at a time."""
    taken = []
    for _ in range(programs):
        begin = time.perf_counter()
        await run(problem, program)
        taken.append(1000 * (time.perf_counter() - begin))
    return taken


async def measure(flags: argparse.Namespace) -> dict[str, Any]:
    """All rounds."""
    row = draw_row(
        GeneratedTask.of("lines-2"),
        split="train",
        heldout_share=0.1,
        num_tests=flags.num_tests,
        wording="words",
        seed=0,
    )
    problem, right = Problem.of(row), program_of(str(row.extra_info["solution"]))
    contenders = make_contenders()
    await check(contenders, problem, right)
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(flags.rounds):
        for name, run in contenders.items():
            rates[name].append(
                await rate(run, problem, right, seconds=flags.seconds, workers=flags.workers)
            )
            print(
                f"round {number + 1} of {flags.rounds}: {name:<24} {rates[name][-1]:8.0f} tests/s",
                flush=True,
            )
    taken = {
        name: await latency_ms(run, problem, right, programs=flags.programs)
        for name, run in contenders.items()
    }
    return {
        "tests_per_s": rates,
        "ratios": summarise_ratios(rates, PAIRS),
        "ms_per_program": taken,
        "program": right,
    }


def latency_table(taken: dict[str, list[float]], num_tests: int) -> str:
    """Median and range of the time a program takes."""
    lines = [
        f"| contender, one program at a time, {num_tests} tests | ms, median | range |",
        "|---|---|---|",
    ]
    for name, values in taken.items():
        lines.append(
            f"| {name} | {statistics.median(values):.0f} | {min(values):.0f} to {max(values):.0f} |"
        )
    return "\n".join([*lines, ""])


def main(arguments: Iterable[str] | None = None) -> None:
    """Measure, print the tables, write them and the raw numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="of each contender in each round"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="programs at once; by default one a core",
    )
    parser.add_argument(
        "--num-tests", type=int, default=10, help="of a program; the shipped default"
    )
    parser.add_argument(
        "--programs", type=int, default=20, help="of each contender, for the time one takes"
    )
    parser.add_argument("--output", type=Path, default=RESULTS / "sandbox_throughput.json")
    flags = parser.parse_args(None if arguments is None else list(arguments))

    found = asyncio.run(measure(flags))
    tables = [markdown("Tests of programs", found["tests_per_s"], found["ratios"], "tests/s")]
    tables.append(latency_table(found["ms_per_program"], flags.num_tests))
    command = " ".join(["python -m benchmarks.sandbox_throughput", *sys.argv[1:]])
    settings = {name: value for name, value in vars(flags).items() if name != "output"}
    flags.output.parent.mkdir(parents=True, exist_ok=True)
    flags.output.write_text(
        json.dumps(
            {"command": command, "machine": describe_machine(), "settings": settings, **found},
            indent=1,
        )
        + "\n"
    )
    flags.output.with_suffix(".md").write_text(f"# {command}\n\n" + "\n".join(tables))
    print("\n".join(tables))


if __name__ == "__main__":
    main()
