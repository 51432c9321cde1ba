"""Compares PPO by segments with Stable-Baselines3's PPO and CleanRL's: return at equal steps.

    python -m benchmarks.control --cleanrl FOLDER --steps 300000 --jobs 2
    python -m benchmarks.control --table              # prints the results again

FOLDER has ppo.py and ppo_continuous_action.py of CleanRL, which are not part of a package; without
it that arm is left out. LunarLander needs gymnasium[box2d]. `benchmarks.control_tasks` has the
settings. Every arm has one process and one thread. It is scored by the episodes of its own
training, which sample actions: the mean return of those that ended in the last tenth of the steps,
and the mean over tenths. Processor seconds are of the whole process, imports included.
Finished arms are kept and not run again; those that `--minutes` ended are not recorded.

Left out: the clock (`benchmarks.control_clock`).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.control_tasks import MUJOCO_OPTIONS, TASKS
from benchmarks.measured_on import describe_machine

RESULTS = Path(__file__).parent / "results" / "control.json"
TENTHS = 10
ORTHOGONAL = "siirl_orthogonal"
"""siirl with orthogonal first weights, on tasks where the zoo's are PyTorch's."""
SIIRL = ("siirl", ORTHOGONAL)
ARMS = (*SIIRL, "sb3", "cleanrl")
COMMON = ("env=gymnasium", "pipeline=ppo", "cluster=local", "env.num_servers=1")
OUTPUT = (
    "trainer.val_episodes=0",
    "trainer.val_before_train=false",
    "trainer.save_freq=-1",
    "trainer.record_episodes=0",
    "trainer.logger=[console]",
)

Episodes = list[tuple[int, float, int]]
"""Environment steps so far, mean return, and number of the episodes that ended there."""
Arm = tuple[str, int, str]
"""Task, seed, contender."""


def main(words: Sequence[str] | None = None) -> None:
    """Run the missing arms, write them, print the table."""
    arguments = _arguments(words)
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"runs": []}
    if not arguments.table:
        _run_missing(results, arguments)
    RESULTS.with_suffix(".md").write_text(table(results))
    print(table(results))


def _run_missing(results: dict[str, Any], arguments: argparse.Namespace) -> None:
    done = {(run["task"], run["seed"], run["arm"], run["steps"]) for run in results["runs"]}
    missing = [
        (task, seed, arm)
        for task in arguments.tasks
        for seed in arguments.seeds
        for arm in ARMS
        if arm in arguments.arms
        and (arm != "cleanrl" or arguments.cleanrl)
        and (arm != ORTHOGONAL or MUJOCO_OPTIONS in TASKS[task].siirl)
        and (task, seed, arm, TASKS[task].steps_within(arguments.steps)) not in done
    ]
    results["stable_baselines3"] = version("stable-baselines3")
    deadline = time.monotonic() + 60 * arguments.minutes
    failed = []
    with ThreadPoolExecutor(arguments.jobs) as executor:
        jobs = {executor.submit(_run, arm, arguments, deadline): arm for arm in missing}
        for job in as_completed(jobs):
            try:
                results["runs"].append(job.result())
            except (subprocess.CalledProcessError, TimeoutError) as error:
                failed.append(f"{jobs[job]}: {error}")
                continue
            results |= {"machine": describe_machine(), "note": arguments.note}
            results["runs"].sort(key=_place)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    if failed:
        print("Not finished:", *failed, sep="\n")


def _place(run: dict[str, Any]) -> tuple[int, int, int, int]:
    return list(TASKS).index(run["task"]), run["steps"], ARMS.index(run["arm"]), run["seed"]


def _run(arm: Arm, arguments: argparse.Namespace, deadline: float) -> dict[str, Any]:
    task, seed, contender = arm
    steps = TASKS[task].steps_within(arguments.steps)
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            *(
                siirl_words(arm, steps=steps, folder=folder)
                if contender in SIIRL
                else contender_words(arm, steps=steps, folder=folder, cleanrl=arguments.cleanrl)
            ),
        ]
        seconds = _processor_seconds(command, deadline=deadline)
        episodes = _siirl_episodes(folder, task) if contender in SIIRL else _episodes(folder)
    tenths = by_tenths(episodes, steps=steps)
    print(f"{task}, seed {seed}, {contender}: {tenths[-1]}", flush=True)
    return {
        "task": task,
        "seed": seed,
        "arm": contender,
        "command": [
            word for word in command[1:] if word != str(arguments.cleanrl) and folder not in word
        ],
        "steps": steps,
        "tenths": tenths,
        "last": tenths[-1],
        "mean": statistics.fmean(value for value in tenths if value is not None),
        "revision": describe_machine()["revision"],
        "processor_seconds": round(seconds, 1),
    }


def _processor_seconds(command: list[str], *, deadline: float) -> float:
    """Runs a command.

    Raises:
        TimeoutError: It had not ended at `deadline`.
        subprocess.CalledProcessError: It failed.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("not begun")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    timer = threading.Timer(min(left, threading.TIMEOUT_MAX), process.kill)
    timer.start()
    _, status, usage = os.wait4(process.pid, 0)
    timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    if time.monotonic() >= deadline:
        raise TimeoutError("ended at the deadline")
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage.ru_utime + usage.ru_stime


def siirl_words(arm: Arm, *, steps: int, folder: str) -> list[str]:
    """Words of siirl's command after `python`."""
    task, seed, contender = arm
    updates = steps // TASKS[task].steps_of_update
    return [
        *("-m", "siirl.train", *COMMON, f"env.id={task}", *TASKS[task].siirl, *OUTPUT),
        *(("actor_rollout_ref.model.options.orthogonal=true",) if contender == ORTHOGONAL else ()),
        *(f"trainer.total_steps={updates}", f"trainer.seed={seed}"),
        f"trainer.output_dir={folder}",
    ]


def contender_words(arm: Arm, *, steps: int, folder: str, cleanrl: Path | None) -> list[str]:
    """The same of another contender."""
    task, seed, contender = arm
    return [
        *("-m", "benchmarks.control_contenders", contender, "--task", task, "--seed", str(seed)),
        *("--steps", str(steps), "--folder", folder),
        *(("--cleanrl", str(cleanrl)) if contender == "cleanrl" else ()),
    ]


def _siirl_episodes(folder: str, task: str) -> Episodes:
    (file,) = Path(folder).glob("*/*/metrics.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return [
        (
            record["step"] * TASKS[task].steps_of_update,
            record["rollout/return"],
            int(record["rollout/episodes"]),
        )
        for record in records
        if record.get("rollout/episodes")
    ]


def _episodes(folder: str) -> Episodes:
    found = json.loads((Path(folder) / "episodes.json").read_text())
    return [(steps, value, 1) for steps, value in found]


def by_tenths(episodes: Episodes, *, steps: int) -> list[float | None]:
    """Mean return of the episodes that ended in each tenth of the steps; None without any."""
    result: list[float | None] = []
    for tenth in range(TENTHS):
        first, last = steps * tenth / TENTHS, steps * (tenth + 1) / TENTHS
        inside = [(value, count) for at, value, count in episodes if first < at <= last]
        episodes_inside = sum(count for _, count in inside)
        total = sum(value * count for value, count in inside)
        result.append(total / episodes_inside if episodes_inside else None)
    return result


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "# python -m benchmarks.control",
        "",
        f"Stable-Baselines3 {results.get('stable_baselines3', '')} with the zoo's settings, "
        f"CleanRL's files with their defaults. {results.get('note', '')}".strip(),
        "Ratio: processor time against Stable-Baselines3's run of the same seed, if both ran on "
        "one revision; the machine's speed differed between sittings.",
        "",
        "| task | steps | arm | seeds | return in the last tenth (each seed) | mean over tenths | "
        "processor s | ratio (seed) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    ordered = sorted(results["runs"], key=_place)
    beside = {_sitting(run): run["processor_seconds"] for run in ordered if run["arm"] == "sb3"}
    lines += [
        _line(list(runs), beside=beside)
        for _, runs in groupby(ordered, key=lambda run: _place(run)[:3])
    ]
    return "\n".join(lines) + "\n"


def _sitting(run: dict[str, Any]) -> tuple[Any, ...]:
    """Task, steps, seed and revision of a run."""
    revision = str(run["revision"]).removesuffix("-dirty")
    return run["task"], run["steps"], run["seed"], revision


def _line(runs: list[dict[str, Any]], *, beside: Mapping[tuple[Any, ...], float]) -> str:
    """A line of the table; `beside` has Stable-Baselines3's processor seconds by `_sitting`."""
    last = [run["last"] for run in runs]
    ratios = [
        f"{run['processor_seconds'] / beside[_sitting(run)]:.2f} ({run['seed']})"
        for run in runs
        if run["arm"] in SIIRL and _sitting(run) in beside
    ]
    cells = [
        runs[0]["task"],
        f"{runs[0]['steps']:,}",
        runs[0]["arm"],
        _joined(str(run["seed"]) for run in runs),
        f"{statistics.fmean(last):.1f} ({_joined(f'{value:.0f}' for value in last)})",
        f"{statistics.fmean(run['mean'] for run in runs):.1f}",
        f"{statistics.fmean(run['processor_seconds'] for run in runs):.0f}",
        _joined(ratios),
    ]
    return f"| {' | '.join(cells)} |"


def _joined(words: Iterable[str]) -> str:
    return ", ".join(words)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, help="cut longer tasks at this number of steps")
    parser.add_argument("--cleanrl", type=Path, help="folder of CleanRL's two files")
    parser.add_argument("--jobs", type=int, default=1, help="arms at a time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end what still runs")
    parser.add_argument("--note", default="", help="what else ran on the machine")
    parser.add_argument("--table", action="store_true", help="print the results, run nothing")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
