"""Measures learning on tasks that no default was tuned on, with the documented commands alone.

    python -m benchmarks.any_tasks --half find --seeds 11
    python -m benchmarks.any_tasks --half kept --arms defaults success --seeds 1 2 3
    # ten minutes of training on two cores, in a result file of its own
    python -m benchmarks.any_tasks --half kept --arms defaults --seeds 1 --steps 120 --work ten

Eight trios of Meta-World's tasks: those whose scripted expert succeeds within the demo's 120 steps
in nine of ten episodes (`any_tasks_experts.json`), without the five that the shipped policies were
tuned on. The first two trios are tasks that earlier defaults did not improve; `DRAW_SEED` draws the
others. Half `find` is for choosing defaults; half `kept` is run when they are chosen.

An arm is two commands without an option for a task: `siirl.warm_start`, then `siirl.train` on its
result, which evaluates before and after on held-out episodes. `defaults` has no option at all;
`earlier_defaults` are those before this benchmark, and each `without_...` arm omits one part
of today's. `cloning` is the alternative: no RL, the same minutes spent on more demonstrations and
updates.

A finished arm is kept in the work folder and not run again.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measured_on import describe_machine
from siirl.reporting.statistics import success_interval

RESULTS = Path(__file__).parent / "results"
EXPERTS = RESULTS / "any_tasks_experts.json"
TUNED = {"drawer-open", "button-press", "button-press-topdown", "window-open", "door-open"}
STUCK = (
    ("plate-slide", "coffee-push", "door-close"),
    ("hammer", "coffee-button", "handle-pull-side"),
)
DRAW_SEED = 20261124
EPISODE_STEPS = 120  # env=metaworld's
TRIOS = 8

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class Arm:
    """What differs from the defaults of the two commands."""

    warm_start: tuple[str, ...] = ()
    train: tuple[str, ...] = ()
    trains: bool = True


NO_TARGET_NOISE = ("--target-noise", "0")
INDEPENDENT = (f"{ROLLOUT}.noise_correlation=0",)
BY_SCHEDULE = (f"{ACTOR}.target_kl=null", f"{ACTOR}.ppo_epochs=2")
ARMS = {
    "defaults": Arm(),
    "success": Arm(train=("reward=success",)),
    "video_value": Arm(train=("reward=video_value",)),
    "oracle": Arm(train=("reward=oracle",)),
    "ppo": Arm(train=("pipeline=ppo",)),
    # about as long as training and its evaluations
    "cloning": Arm(
        warm_start=(*NO_TARGET_NOISE, "--demonstrations", "40", "--updates", "3000"), trains=False
    ),
    "earlier_defaults": Arm(warm_start=NO_TARGET_NOISE, train=(*INDEPENDENT, *BY_SCHEDULE)),
    "without_target_noise": Arm(warm_start=NO_TARGET_NOISE),
    "without_correlation": Arm(train=INDEPENDENT),
    "without_target_kl": Arm(train=BY_SCHEDULE),
}


def main() -> None:
    """Run what is missing, write the results, print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--half", choices=("find", "kept"), required=True)
    parser.add_argument("--trios", type=int, nargs="+", help="numbers from 1; all of the half")
    parser.add_argument(
        "--arms", nargs="+", choices=ARMS, default=["defaults", "earlier_defaults", "cloning"]
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--episodes", type=int, default=50, help="held-out episodes of each task")
    parser.add_argument("--steps", type=int, help="training steps; by default the demo's")
    parser.add_argument("--work", type=Path, default=Path("outputs/benchmarks/any_tasks"))
    flags = parser.parse_args()
    trios = draw_trios(json.loads(EXPERTS.read_text()))
    halves = {"find": range(1, TRIOS // 2 + 1), "kept": range(TRIOS // 2 + 1, TRIOS + 1)}
    for seed in flags.seeds:
        for number in flags.trios or halves[flags.half]:
            for arm in flags.arms:
                run_arm(number, trios[number - 1], arm, seed=seed, flags=flags)
    write(flags)


def draw_trios(experts: Mapping[str, Sequence[int | None]]) -> list[tuple[str, ...]]:
    """The eight trios.

    Args:
        experts: Steps to success of ten episodes of each task's expert; None: not within 500.
    """
    able = [
        task
        for task, steps in sorted(experts.items())
        if sum(step is not None and step <= EPISODE_STEPS for step in steps) >= 0.9 * len(steps)
    ]
    stuck = {task for trio in STUCK for task in trio}
    others = [task for task in able if task not in TUNED | stuck]
    drawn = random.Random(DRAW_SEED).sample(others, 3 * (TRIOS - len(STUCK)))
    return [*STUCK, *zip(drawn[::3], drawn[1::3], drawn[2::3], strict=True)]


def run_arm(
    number: int, tasks: Sequence[str], name: str, *, seed: int, flags: argparse.Namespace
) -> None:
    """Make an arm's start, train, and keep what its evaluations counted, unless that is there."""
    arm = ARMS[name]
    folder = flags.work / f"trio{number}_{name}_seed{seed}"
    if (folder / "result.json").is_file():
        return
    environment = ["env=metaworld", f"env.tasks=[{','.join(tasks)}]", f"trainer.seed={seed}"]
    weights, start_minutes = start(number, arm.warm_start, environment, seed=seed, flags=flags)
    quiet = [
        f"trainer.output_dir={folder}",
        f"trainer.val_episodes={flags.episodes}",
        "trainer.record_val_episodes=0",
    ]
    if arm.trains:
        measured = train(weights, [*environment, *arm.train, *quiet], steps=flags.steps)
    else:
        plain, _ = start(number, NO_TARGET_NOISE, environment, seed=seed, flags=flags)
        measured = {
            "before": evaluate(plain, [*environment, *quiet], folder=folder),
            "after": evaluate(weights, [*environment, *quiet], folder=folder),
        }
    result = {
        **{"trio": number, "tasks": list(tasks), "arm": name, "seed": seed},
        "start_minutes": start_minutes,
        **measured,
    }
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")


def start(
    number: int,
    words: tuple[str, ...],
    environment: Sequence[str],
    *,
    seed: int,
    flags: argparse.Namespace,
) -> tuple[Path, float]:
    """Weights of `siirl.warm_start`, and the minutes that it took; made once."""
    weights = flags.work / f"start{number}{''.join(words)}_seed{seed}"
    note = weights / "minutes.json"
    if not note.is_file():
        begun = time.monotonic()
        call("siirl.warm_start", "--output", str(weights), *words, *environment)
        note.write_text(json.dumps((time.monotonic() - begun) / 60))
    return weights, json.loads(note.read_text())


def train(weights: Path, words: Sequence[str], *, steps: int | None) -> dict[str, Any]:
    """Train by the defaults but for `words`; what metrics and evaluations say."""
    length = [] if steps is None else [f"trainer.total_steps={steps}"]
    output = next(word for word in words if word.startswith("trainer.output_dir="))
    command = call(
        "siirl.train",
        *(*words, *length, f"actor_rollout_ref.model.path={weights}"),
        *("trainer.experiment_name=run", "trainer.max_minutes=null", "trainer.record_episodes=0"),
    )
    (run,) = (Path(output.partition("=")[2]) / "run").iterdir()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["step"] > 0]
    evaluated = [row for row in rows if "val/all/successes" in row]
    return {
        "command": command,
        "minutes": sum(row["time/step_s"] for row in trained) / 60,
        "steps": trained[-1]["step"],
        "environment_steps": sum(row["env/steps"] for row in trained),
        "curve": [row["rollout/success_rate"] for row in trained],
        "before": counts(evaluated[0]),
        "after": counts(evaluated[-1]),
    }


def counts(row: Mapping[str, float]) -> dict[str, list[int]]:
    """Successes and episodes of each task in one evaluation."""
    names = [name.split("/") for name in row if name.startswith("val/")]
    tasks = [parts[1] for parts in names if len(parts) == 3 and parts[2] == "successes"]
    return {
        task: [round(row[f"val/{task}/{kind}"]) for kind in ("successes", "episodes")]
        for task in tasks
        if task != "all"
    }


def evaluate(weights: Path, words: Sequence[str], *, folder: Path) -> dict[str, list[int]]:
    """Successes and episodes of each task on the episodes that training holds out."""
    call("siirl.evaluate", f"checkpoint={weights}", *words)
    found = json.loads((max((folder / "evaluation").iterdir()) / "evaluation.json").read_text())
    return {
        task: [measured["successes"], measured["episodes"]]
        for task, measured in found["success"]["sampled"].items()
        if task != "all"
    }


def call(module: str, *words: str) -> str:
    """Run `python -m module`; returns the command."""
    subprocess.run([sys.executable, "-m", module, *words], check=True)
    return " ".join(["python -m", module, *words])


def write(flags: argparse.Namespace) -> None:
    """Collect all results of the work folder, beside the command and the machine."""
    results = [json.loads(file.read_text()) for file in sorted(flags.work.glob("*/result.json"))]
    chosen = [
        result for result in results if (result["trio"] <= TRIOS // 2) == (flags.half == "find")
    ]
    summary = {
        "command": " ".join(["python -m benchmarks.any_tasks", *sys.argv[1:]]),
        "machine": describe_machine(),
        "runs": chosen,
    }
    table = markdown(chosen)
    length = "" if flags.steps is None else f"_{flags.steps}_steps"
    file = RESULTS / f"any_tasks_{flags.half}{length}.json"
    file.write_text(json.dumps(summary, indent=1) + "\n")
    file.with_suffix(".md").write_text(table)
    print(table)


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """A row a run, and the mean gain of each arm."""
    lines = [
        "| trio | arm | seed | before | after | each task | steps | minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    gains: dict[str, list[float]] = {}
    for result in results:
        before, after = (interval(result[when]) for when in ("before", "after"))
        each = ", ".join(
            f"{task} {share(result['before'][task])} → {share(result['after'][task])}"
            for task in result["tasks"]
        )
        lines.append(
            f"| {result['trio']} | {result['arm']} | {result['seed']} | {before} | {after} "
            f"| {each} | {result.get('steps', '')} | {minutes(result):.1f} |"
        )
        gains.setdefault(result["arm"], []).append(
            100 * (rate(result["after"]) - rate(result["before"]))
        )
    lines += ["", "| arm | runs | mean gain, points | lowest |", "|---|---|---|---|"]
    lines += [
        f"| {arm} | {len(found)} | {sum(found) / len(found):+.1f} | {min(found):+.1f} |"
        for arm, found in gains.items()
    ]
    return "\n".join(lines) + "\n"


def minutes(result: Mapping[str, Any]) -> float:
    """Of the warm start and of training."""
    return float(result["start_minutes"] + result.get("minutes", 0.0))


def rate(found: Mapping[str, Sequence[int]]) -> float:
    """Success over all tasks."""
    return sum(good for good, _ in found.values()) / sum(number for _, number in found.values())


def interval(found: Mapping[str, Sequence[int]]) -> str:
    """Success over all tasks in percent, with its 95 % interval."""
    totals = [sum(pair[place] for pair in found.values()) for place in (0, 1)]
    measured = success_interval(*totals)
    return f"{measured.rate:.1%} [{100 * measured.low:.1f}, {100 * measured.high:.1f}]"


def share(pair: Sequence[int]) -> str:
    """Success of one task in percent."""
    return f"{pair[0] / pair[1]:.0%}"


if __name__ == "__main__":
    main()
