"""Success of trained policies under each perturbation, beside their standard episodes.

    python -m benchmarks.embodied_learning tokens --arms grpo --seeds 1 2 3
    python -m benchmarks.perturbations RUN RUN RUN

A RUN is a run folder with a checkpoint. Each policy plays the same held-out seeds of each of its
tasks as standard episodes, with each factor of `envs.perturbations` and with all of them, at
strength 1. Actions are sampled. A finished evaluation of the same revision is not run again.
Results of other training commands stay in the file, with the machine and revision of each.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measured_on import describe_machine
from envs.perturbations import FACTORS
from siirl.reporting.config_difference import read_config

RESULTS = Path(__file__).parent / "results" / "perturbations.json"
OUTPUTS = Path("outputs/benchmarks/perturbations")
COLUMNS = ("standard", *FACTORS, "together")
TOTAL = "all"


def main() -> None:
    """Evaluate each policy, write the results after each one, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--episodes", type=int, default=60, help="of each task and column")
    flags = parser.parse_args()
    machine = describe_machine()
    runs: list[dict[str, Any]] = json.loads(RESULTS.read_text())["runs"]
    for run in flags.runs:
        found = evaluated(run, episodes=flags.episodes, revision=machine["revision"])
        runs = [other for other in runs if other["command"] != found["command"]]
        runs.append({**found, "machine": machine})
        result = {
            "command": "python -m benchmarks.perturbations RUN ... --episodes N",
            "note": "Each run has the command that trained its policy.",
            "runs": runs,
        }
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(text(runs))
    print(text(runs))


def evaluated(run: Path, *, episodes: int, revision: str) -> dict[str, Any]:
    """The results of a run's policy.

    Raises:
        subprocess.CalledProcessError: The evaluation failed.
    """
    folder = OUTPUTS / f"{run.resolve().name}_{episodes}_{revision}"
    if not _result(folder):
        words = [
            f"checkpoint={run}",
            f"trainer.val_episodes={episodes}",
            f"env.perturb=[{','.join(FACTORS)}]",
            "actions=sampled",
            "trainer.record_val_episodes=0",
            f"trainer.output_dir={folder}",
        ]
        subprocess.run([sys.executable, "-m", "siirl.evaluate", *words], check=True)
    evaluation = json.loads(_result(folder)[-1].read_text())
    config = read_config(run / "config.yaml")
    return {
        "environment": f"env={config['env']['name']}",
        "training": f"pipeline={config['dag']['pipeline']} reward={config['reward']['name']}, "
        f"{config['trainer']['total_steps']} steps",
        "command": training_command(run),
        "seed": config["trainer"]["seed"],
        "episodes_per_task": episodes,
        "first_seed": evaluation["first_seed"],
        "success": evaluation["success"],
    }


def training_command(run: Path) -> str:
    """The command of a run, without its output folder."""
    words = shlex.split(json.loads((run / "origin.json").read_text())["command"])
    return shlex.join(word for word in words if not word.startswith("trainer.output_dir="))


def _result(folder: Path) -> list[Path]:
    return sorted(folder.glob("evaluation/*/evaluation.json"))


def text(runs: Sequence[Mapping[str, Any]]) -> str:
    """The results as Markdown: a table of each kind of training."""
    kinds = {(run["environment"], run["training"]): None for run in runs}
    return "\n".join(
        _table([run for run in runs if (run["environment"], run["training"]) == kind])
        for kind in kinds
    )


def _table(runs: Sequence[Mapping[str, Any]]) -> str:
    first = runs[0]
    seeds = ", ".join(str(run["seed"]) for run in runs)
    lines = [
        f"`{first['environment']}`: {first['training']}, seed {seeds}; "
        f"{first['episodes_per_task']} held-out episodes of each task. Rows of tasks are means of "
        "the policies.",
        "",
        "| task | " + " | ".join(COLUMNS).replace("together", "all of them") + " |",
        "| --- |" + " --- |" * len(COLUMNS),
    ]
    tasks = [task for task in first["success"][f"sampled/{COLUMNS[0]}"] if task != TOTAL]
    for task in tasks:
        lines.append(_line(task, [_percent(runs, column, task) for column in COLUMNS]))
    for run in runs:
        of_run = [_percent([run], column, TOTAL) for column in COLUMNS]
        lines.append(_line(f"all, seed {run['seed']}", of_run))
    ends = [
        f"{100 * min(each['low'] for each in totals):.0f} to "
        f"{100 * max(each['high'] for each in totals):.0f}"
        for totals in ([_cell(run, column, TOTAL) for run in runs] for column in COLUMNS)
    ]
    return "\n".join([*lines, _line("95 % interval, over all seeds", ends), ""])


def _percent(runs: Sequence[Mapping[str, Any]], column: str, task: str) -> str:
    return f"{100 * statistics.fmean(_cell(run, column, task)['rate'] for run in runs):.0f} %"


def _cell(run: Mapping[str, Any], column: str, task: str) -> Any:
    return run["success"][f"sampled/{column}"][task]


def _line(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
