"""Checks that LIBERO's 6,500 initial states settle on the installed assets, as many as fit into the
given minutes.

    python -m benchmarks.libero_states --minutes 10             # continues the last run
    python -m benchmarks.libero_states --suite goal+10 --states 5 --seed 1
    python -m benchmarks.libero_states --table

A state is sound if nothing moves faster than `SETTLED` after the benchmark's ten settling steps and
one step more, and the simulation has not diverged. States are drawn by seed, and tasks with the
fewest checked states come first: with `--states 5` a run checks a few states of many tasks. Results
are kept task by task in one file, with the states that were checked. A simulator takes 0.6 s of a
core to build, and a state 0.1 s.
"""

import argparse
import json
import random
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measured_on import describe_machine
from envs.base import EpisodeFailed
from envs.libero.assets import STAND_IN, Assets, StandInWarning, find_assets
from envs.libero.folders import import_libero
from envs.libero.initial_states import STATES
from envs.libero.suites import STEP_LIMITS, LiberoTask, choose_tasks

RESULT = Path(__file__).parent / "results" / "libero_states.json"
SETTLED = (
    0.05  # metres or radians a second: an object that is let go is at 0.5 after a control step
)
WAIT = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0], np.float32)


def main() -> None:
    """Check what is missing and print what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suite", default="+".join(STEP_LIMITS))
    parser.add_argument("--tasks", nargs="+", help="names or numbers; all by default")
    parser.add_argument(
        "--states",
        type=int,
        default=STATES,
        help="of each task at most, of those that are not checked yet",
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="draws the order of tasks and states")
    parser.add_argument("--assets", default=STAND_IN)
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--table", action="store_true", help="check nothing")
    flags = parser.parse_args()
    kept: dict[str, Any] = (
        json.loads(flags.result.read_text()) if flags.result.is_file() else {"tasks": {}}
    )
    if not flags.table:
        warnings.simplefilter("ignore", StandInWarning)  # the result names the assets
        check_until(
            time.monotonic() + 60 * flags.minutes, find_assets(flags.assets), flags=flags, kept=kept
        )
    print("\n".join(summary(kept["tasks"])))


def check_until(
    deadline: float, assets: Assets, *, flags: argparse.Namespace, kept: dict[str, Any]
) -> None:
    """Check task after task, the least known first, and write the result after each."""
    draw = random.Random(flags.seed)
    tasks = list(choose_tasks(flags.suite, flags.tasks))
    draw.shuffle(tasks)
    for task in sorted(tasks, key=lambda task: len(checked(kept["tasks"], task))):
        done = checked(kept["tasks"], task)
        missing = [state for state in range(STATES) if state not in done]
        if not missing:
            continue
        if time.monotonic() > deadline:
            return
        found = check(task, assets, draw.sample(missing, min(flags.states, len(missing))))
        before = kept["tasks"].get(name(task), {"core_seconds": 0.0, "speeds": {}})
        speeds = before["speeds"] | found["speeds"]
        kept["tasks"][name(task)] = {
            "assets": assets.label,
            "core_seconds": round(before["core_seconds"] + found["core_seconds"], 2),
            "speeds": {state: speeds[state] for state in sorted(speeds, key=int)},
        }
        kept["machine"] = describe_machine()
        flags.result.write_text(json.dumps(kept) + "\n")


def check(task: LiberoTask, assets: Assets, states: Iterable[int]) -> dict[str, Any]:
    """State to the speed that is left, None where the simulation diverged; and the seconds of a
    core, the building included.
    """
    import_libero()
    from envs.libero.libero_simulator import LiberoSimulator

    begin = time.process_time()
    simulator = LiberoSimulator(task, assets)
    speeds = {str(state): left_speed(simulator, state) for state in states}
    return {"core_seconds": time.process_time() - begin, "speeds": speeds}


def left_speed(simulator: Any, state: int) -> float | None:
    """The fastest that an object moves after a state has settled and a step was taken; None where
    the simulation diverged.
    """
    from envs.libero.scene import object_speed

    try:
        simulator.reset(state)
        speed = object_speed(simulator)
        simulator.step(WAIT)
        return round(max(speed, object_speed(simulator)), 5)
    except EpisodeFailed:
        return None


def checked(results: dict[str, Any], task: LiberoTask) -> set[int]:
    """States of a task that a result has."""
    return {int(state) for state in results.get(name(task), {}).get("speeds", {})}


def name(task: LiberoTask) -> str:
    """`suite/number`."""
    return f"{task.suite}/{task.number}"


def unsound(results: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """Of each task the states that do not settle, with the speed that is left, or None where the
    simulation diverged.
    """
    found = {
        task: {
            state: speed
            for state, speed in result["speeds"].items()
            if speed is None or speed >= SETTLED
        }
        for task, result in results.items()
    }
    return {task: states for task, states in found.items() if states}


def summary(results: dict[str, Any]) -> list[str]:
    """Number of checked states, seconds, and the unsound states."""
    count = sum(len(result["speeds"]) for result in results.values())
    seconds = sum(result["core_seconds"] for result in results.values())
    bad = unsound(results)
    unsettled = sum(map(len, bad.values()))
    looked_at = f"{len(results)} of 130 tasks, {count} of {130 * STATES} states"
    lines = [f"{looked_at} checked in {seconds / 60:.1f} min of a core; {unsettled} do not settle"]
    return lines + [f"{task}: {states}" for task, states in sorted(bad.items())]


if __name__ == "__main__":
    main()
