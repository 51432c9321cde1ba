"""Measures learning on tasks that no default was tuned on, with the documented commands alone.

    python -m benchmarks.any_tasks metaworld --half find --seeds 11
    python -m benchmarks.any_tasks metaworld --half kept --arms defaults success --seeds 1 2 3
    # what each part of the defaults contributes
    python -m benchmarks.any_tasks metaworld --half find --groups 1 --seeds 11 --result ablation \
        --arms defaults without_target_noise without_correlation without_target_kl learnable dapo
    # ten minutes of training on two cores, in a result file of its own
    python -m benchmarks.any_tasks metaworld --half kept --steps 120 --work outputs/ten
    python -m benchmarks.any_tasks metaworld --half fresh --steps 120 --arms defaults success
    python -m benchmarks.any_tasks text
    python -m benchmarks.any_tasks control
    python -m benchmarks.any_tasks libero --seeds 1

`benchmarks.any_tasks_suites` has the tasks. Of Meta-World, half `find` is for choosing defaults;
half `kept` is run when they are chosen. `fresh` was drawn after that, and after the length.

An arm is two commands without an option for a task: `siirl.warm_start`, then `siirl.train` on its
result, which evaluates before and after on held-out episodes. `defaults` has no option but for
what names the environment and, where the demo's do not fit, the algorithm: GRPO for text, PPO and
`trainer=classic_control` from new weights for control. `earlier_defaults` are those before this
benchmark, and each `without_...` arm omits one part of today's. The alternatives of a user get no
RL: `cloning` more demonstrations and updates, `supervised` further answers, for the processor time
that the training of `defaults` took. `benchmarks.control` has the alternatives of control.

A finished arm is kept in the work folder and not run again. Text and control run in one process, so
that their processor time is known; minutes of the clock depend on what else the machine does.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.any_tasks_arms import ARMS, Found, Job
from benchmarks.any_tasks_suites import FRESH_TRIOS, RESULTS, TRIOS, Suite, suites
from benchmarks.measured_on import describe_machine
from siirl.reporting.statistics import success_interval

HALVES = {
    "find": range(1, TRIOS // 2 + 1),
    "kept": range(TRIOS // 2 + 1, TRIOS + 1),
    "fresh": range(TRIOS + 1, TRIOS + FRESH_TRIOS + 1),
}
COMPARED = {
    "metaworld": ("defaults", "earlier_defaults", "cloning"),
    "libero": ("defaults", "cloning"),
    "text": ("defaults", "supervised"),
    "control": ("defaults",),
}
"""Arms that run without `--arms`."""


def main() -> None:
    """Run what is missing, write the results, print a table."""
    flags = _flags()
    suite = suites()[flags.suite]
    numbers = HALVES[flags.half] if flags.half else range(1, len(suite.groups) + 1)
    for seed in flags.seeds:
        for number in flags.groups or numbers:
            for arm in flags.arms or COMPARED[flags.suite]:
                job = Job(
                    suite=suite,
                    number=number,
                    seed=seed,
                    episodes=flags.episodes or suite.episodes,
                    steps=flags.steps,
                    work=flags.work / flags.suite,
                )
                run_arm(job, arm, flags.suite)
    write(flags, suite, numbers)


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", choices=ARMS)
    parser.add_argument("--half", choices=HALVES, help="of metaworld")
    parser.add_argument("--groups", type=int, nargs="+", help="numbers from 1; by default all")
    parser.add_argument("--arms", nargs="+", help="by default those that are compared")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--episodes", type=int, help="held-out episodes of each task")
    parser.add_argument("--steps", type=int, help="training steps; by default the preset's")
    parser.add_argument("--work", type=Path, default=Path("outputs/benchmarks/any_tasks"))
    parser.add_argument("--result", help="name of the result file; by default the half or suite")
    parser.add_argument("--note", help="beside the result, such as what else the machine did")
    flags = parser.parse_args()
    if (flags.suite == "metaworld") != (flags.half is not None):
        parser.error("metaworld needs --half, and no other suite has halves")
    unknown = set(flags.arms or ()) - set(ARMS[flags.suite])
    if unknown:
        parser.error(f"{flags.suite} has the arms {', '.join(ARMS[flags.suite])}, not {unknown}")
    return flags


def run_arm(job: Job, arm: str, suite: str) -> None:
    """Run an arm and keep its result, unless that is there."""
    folder = job.folder(arm)
    if (folder / "result.json").is_file():
        return
    measured = ARMS[suite][arm].run(job, folder)
    result = {
        **{"group": job.number, "tasks": list(measured["before"]), "arm": arm, "seed": job.seed},
        **measured,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")


def write(flags: argparse.Namespace, suite: Suite, numbers: Sequence[int]) -> None:
    """Collect all results of the work folder, beside the command and the machine."""
    files = sorted((flags.work / flags.suite).glob("*/result.json"))
    results = [json.loads(file.read_text()) for file in files]
    chosen = [result for result in results if result["group"] in numbers]
    summary = {
        "command": " ".join(["python -m benchmarks.any_tasks", *sys.argv[1:]]),
        "machine": describe_machine(),
        **({"notice": flags.note} if flags.note else {}),
        "runs": chosen,
    }
    text = success_table(chosen) if suite.measure == "success" else return_table(chosen)
    length = "" if flags.steps is None else f"_{flags.steps}_steps"
    name = flags.result or flags.half or flags.suite
    file = RESULTS / f"any_tasks_{name}{length}.json"
    file.write_text(json.dumps(summary, indent=1) + "\n")
    file.with_suffix(".md").write_text(text)
    print(text)


def success_table(results: Sequence[Mapping[str, Any]]) -> str:
    """A row a run, and the mean gain of each arm."""
    lines = _table("group", "arm", "seed", "before", "after", "each task", "steps", *TIMES)
    gains: dict[str, list[float]] = {}
    for result in results:
        before, after = (interval(result[when]) for when in ("before", "after"))
        each = ", ".join(
            f"{task} {share(result['before'][task])} → {share(result['after'][task])}"
            for task in result["tasks"]
        )
        lines.append(
            f"| {result['group']} | {result['arm']} | {result['seed']} | {before} | {after} "
            f"| {each} | {result.get('steps', '')} | {times(result)} |"
        )
        gains.setdefault(result["arm"], []).append(
            100 * (rate(result["after"]) - rate(result["before"]))
        )
    lines += ["", *_table("arm", "runs", "mean gain, points", "lowest")]
    lines += [
        f"| {arm} | {len(found)} | {statistics.fmean(found):+.1f} | {min(found):+.1f} |"
        for arm, found in gains.items()
    ]
    return "\n".join(lines) + "\n"


def return_table(results: Sequence[Mapping[str, Any]]) -> str:
    """A row a run: mean returns of tasks without a flag of success."""
    lines = _table("task", "arm", "seed", "before", "after", "environment steps", *TIMES)
    for result in results:
        for task in result["tasks"]:
            (before,), (after,) = result["before"][task], result["after"][task]
            lines.append(
                f"| {task} | {result['arm']} | {result['seed']} | {before:.1f} | {after:.1f} "
                f"| {result['environment_steps']:,.0f} | {times(result)} |"
            )
    return "\n".join(lines) + "\n"


TIMES = ("minutes", "processor minutes")


def _table(*columns: str) -> list[str]:
    """Its first two lines."""
    return [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]


def times(result: Mapping[str, Any]) -> str:
    """Minutes and processor minutes, of the warm start and of training together."""
    clock, processor = (
        sum(result[name] for name in (f"start_{kind}", kind) if name in result)
        for kind in ("minutes", "processor_minutes")
    )
    return f"{clock:.1f} | {processor:.1f}" if processor else f"{clock:.1f} | "


def rate(found: Found) -> float:
    """Success over all tasks."""
    return sum(good for good, _ in found.values()) / sum(number for _, number in found.values())


def interval(found: Found) -> str:
    """Success over all tasks in percent, with its 95 % interval."""
    totals = [round(sum(pair[place] for pair in found.values())) for place in (0, 1)]
    measured = success_interval(*totals)
    return f"{measured.rate:.1%} [{100 * measured.low:.1f}, {100 * measured.high:.1f}]"


def share(pair: Sequence[float]) -> str:
    """Success of one task in percent."""
    return f"{pair[0] / pair[1]:.0%}"


if __name__ == "__main__":
    main()
