"""Success of the scripted expert on LIBERO's tasks, from initial states held out of evaluation.

    python -m benchmarks.libero_expert --suite object --episodes 5
    python -m benchmarks.libero_expert --suite goal+10 --tasks goal/7 10/2 --episodes 2

No image is drawn, so an episode takes one to three seconds. Results are kept task by task in one
file: an interrupted run continues, `--again` repeats recorded tasks (after a change of the expert),
    and `--table` prints the results as in docs/libero.md.
"""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

from benchmarks.measured_on import describe_machine
from envs.base import EpisodeFailed
from envs.libero.assets import STAND_IN, StandInWarning, find_assets
from envs.libero.expert.script import play
from envs.libero.folders import import_libero
from envs.libero.initial_states import STATES, state_number
from envs.libero.suites import LiberoTask, choose_tasks
from envs.seeds import FIRST_TRAINING_SEED

RESULT = Path(__file__).parent / "results" / "libero_expert.json"


def main() -> None:
    """Play what is missing and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suite", default="object")
    parser.add_argument("--tasks", nargs="+", help="names or numbers; all by default")
    parser.add_argument(
        "--episodes", type=int, default=5, help="of each task, from its first training states"
    )
    parser.add_argument("--assets", default=STAND_IN)
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--again", action="store_true", help="also tasks that have a result")
    parser.add_argument("--table", action="store_true", help="play nothing")
    flags = parser.parse_args()
    kept: dict[str, Any] = (
        json.loads(flags.result.read_text()) if flags.result.is_file() else {"tasks": {}}
    )
    if not flags.table:
        warnings.simplefilter("ignore", StandInWarning)  # the result names the assets
        assets = find_assets(flags.assets)
        for task in choose_tasks(flags.suite, flags.tasks):
            key = f"{task.suite}/{task.number}"
            before = kept["tasks"].get(key, {})
            if (
                flags.again
                or len(before.get("steps", ())) + before.get("diverged", 0) < flags.episodes
            ):
                kept["machine"] = describe_machine()
                told = {
                    "name": task.name,
                    "assets": assets.label,
                    "revision": kept["machine"]["revision"],
                }
                kept["tasks"][key] = {**told, **episodes(task, assets, flags.episodes)}
                flags.result.write_text(json.dumps(kept, indent=1) + "\n")
                print(row(key, kept["tasks"][key]), flush=True)
    else:
        print("\n".join(row(key, kept["tasks"][key]) for key in sorted(kept["tasks"], key=place)))


def episodes(task: LiberoTask, assets: Any, count: int) -> dict[str, Any]:
    """Steps to success of each episode, None for a failure; and how many diverged, which is
    neither.
    """
    import_libero()
    from envs.libero.libero_simulator import LiberoSimulator

    simulator = LiberoSimulator(task, assets)
    steps: list[int | None] = []
    diverged = 0
    for index in range(count):
        try:
            steps.append(
                play(
                    simulator,
                    state_number(FIRST_TRAINING_SEED + index, count=STATES, states="split"),
                )
            )
        except EpisodeFailed:
            diverged += 1
    return {"steps": steps, "diverged": diverged}


def row(key: str, result: dict[str, Any]) -> str:
    """One line of the table."""
    steps = [step for step in result["steps"] if step is not None]
    span = f"{min(steps)} to {max(steps)}" if steps else ""
    span += f" {result['diverged']} diverged" if result.get("diverged") else ""
    return (
        f"| {key} | {result['name'].replace('_', ' ')} | {len(steps)}/{len(result['steps'])} | "
        f"{span} |"
    )


def place(key: str) -> tuple[str, int]:
    """Sorts `suite/number`."""
    suite, number = key.split("/")
    return suite, int(number)


if __name__ == "__main__":
    main()
