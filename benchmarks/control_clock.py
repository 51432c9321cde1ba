"""Compares the clock of PPO with that of Stable-Baselines3, from the command to its end.

    python -m benchmarks.control_clock --repetitions 2

`benchmarks.control_tasks` has the settings, and `benchmarks.control` what they learn. Environments
step in the training process (`siirl`, `sb3`), or in one process a core (`siirl, servers`) or an
environment (`sb3, processes`: SubprocVecEnv). Contenders alternate. Nothing else may run meanwhile.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.control import contender_words, siirl_words
from benchmarks.control_tasks import TASKS
from benchmarks.measured_on import describe_machine

RESULTS = Path(__file__).parent / "results" / "control_clock.json"
CORES = 2
CONTENDERS = ("siirl", "siirl, servers", "sb3", "sb3, processes")
SEED = 1


def main() -> None:
    """Run, write the results after each run, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["CartPole-v1", "Pendulum-v1"])
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--steps", type=int, help="cut longer tasks at this number of steps")
    parser.add_argument("--repetitions", type=int, default=2)
    flags = parser.parse_args()
    seconds: dict[str, dict[str, list[float]]] = {}
    for _, task, contender in product(range(flags.repetitions), flags.tasks, flags.contenders):
        steps = TASKS[task].steps_within(flags.steps)
        of_task = seconds.setdefault(f"{task}, {steps:,} steps", {})
        of_task.setdefault(contender, []).append(clock(contender, task, steps=steps))
        results = {"machine": describe_machine(), "seconds": seconds}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(table(seconds))
    RESULTS.with_suffix(".md").write_text(table(seconds))


def clock(contender: str, task: str, *, steps: int) -> float:
    """Seconds of a contender's command.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, *_words(contender, task, steps=steps, folder=folder)],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return round(time.perf_counter() - begin, 2)


def _words(contender: str, task: str, *, steps: int, folder: str) -> list[str]:
    name, _, elsewhere = contender.partition(", ")
    if name == "sb3":
        arm = (task, SEED, name)
        words = contender_words(arm, steps=steps, folder=folder, cleanrl=None)
        return [*words, *(["--processes"] if elsewhere else [])]
    words = siirl_words((task, SEED, "siirl"), steps=steps, folder=folder)
    if not elsewhere:
        return words
    of_a_server = max(1, TASKS[task].environments // CORES)
    return [*words, f"env.num_servers={CORES}", f"env.envs_per_server={of_a_server}"]


def table(seconds: dict[str, dict[str, list[float]]]) -> str:
    """The results as Markdown; each ratio is to the faster form of Stable-Baselines3."""
    lines = [
        "# python -m benchmarks.control_clock",
        "",
        "| task | contender | seconds (each repetition) | ratio |",
        "|---|---|---|---|",
    ]
    for task, found in seconds.items():
        medians = {contender: statistics.median(each) for contender, each in found.items()}
        sb3 = min((m for name, m in medians.items() if name.startswith("sb3")), default=None)
        lines += [_line(task, name, found[name], medians[name], sb3) for name in found]
    return "\n".join(lines) + "\n"


def _line(task: str, name: str, each: list[float], median: float, sb3: Any) -> str:
    ratio = "" if sb3 is None else f"{median / sb3:.2f}"
    times = ", ".join(f"{value:.1f}" for value in each)
    return f"| {task} | {name} | {median:.1f} ({times}) | {ratio} |"


if __name__ == "__main__":
    main()
