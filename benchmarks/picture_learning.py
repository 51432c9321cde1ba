"""Measures whether the shipped vision-language model learns to count, and a blind one does not.

    python -m benchmarks.picture_learning --seeds 1 --steps 100

Two arms of GRPO from the same weights: `seeing` on the pictures of `benchmarks.counted_dots`, and
the control `blind` on grey noise in their place, in training and evaluation. Before and after, each
is measured on 500 held-out questions, which another seed drew. Interrupted, it continues with the
next arm that has no result.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.learning_studies import RESULTS
from benchmarks.measured_on import describe_machine
from benchmarks.plots import learning_curves
from siirl.reporting.statistics import success_interval

ARMS = {"seeing": (), "blind": ("--grey",)}
TRAIN_ROWS, TRAIN_SEED = 6400, 10
TEST_ROWS, TEST_SEED = 500, 20
KINDS = {"sampled": "val/all/success_rate", "argmax": "val/all/argmax_success_rate"}


def data_files(folder: Path, arm: str) -> list[str]:
    """Write the questions of an arm; overrides that name the files."""
    overrides = []
    for key, rows, seed in (
        ("train_files", TRAIN_ROWS, TRAIN_SEED),
        ("val_files", TEST_ROWS, TEST_SEED),
    ):
        file = folder / f"{key}.parquet"
        if not file.is_file():
            command = [sys.executable, "-m", "benchmarks.counted_dots", str(file)]
            sizes = [f"--rows={rows}", f"--seed={seed}"]
            subprocess.run([*command, *sizes, *ARMS[arm]], check=True)
        overrides.append(f"data.{key}=[{file}]")
    return overrides


def run_arm(arm: str, *, seed: int, steps: int, work: Path) -> dict[str, Any]:
    """Train and measure an arm, unless its result is there."""
    folder = (work / f"{arm}_seed{seed}").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "result.json"
    if kept.is_file():
        return json.loads(kept.read_text())
    job = [
        *("pipeline=grpo", "env=math", "model=tiny_vlm", "cluster=local"),
        *data_files(folder, arm),
        *("data.max_response_length=8", f"trainer.seed={seed}", f"trainer.total_steps={steps}"),
        *(f"trainer.val_episodes={TEST_ROWS}", "trainer.max_minutes=null"),
        *(f"trainer.output_dir={folder}", "trainer.experiment_name=train", "trainer.save_freq=-1"),
    ]
    subprocess.run([sys.executable, "-m", "siirl.train", *job], check=True)
    rows = [json.loads(line) for line in _metrics(folder).read_text().splitlines()]
    measured = [row for row in rows if KINDS["sampled"] in row]
    trained = [row for row in rows if row["step"] > 0]
    result = {
        "arm": arm,
        "seed": seed,
        "command": " ".join(
            ["siirl train", *(word.replace(str(folder.parent), "WORK") for word in job)]
        ),
        "steps": trained[-1]["step"],
        "minutes": sum(row["time/step_s"] for row in trained) / 60,
        "curve": [[row["step"], row["rollout/success_rate"]] for row in trained],
        "log_prob_gap_mean": max(row["rollout/log_prob_gap_mean"] for row in trained),
        "before": _success(measured[0]),
        "after": _success(measured[-1]),
    }
    kept.write_text(json.dumps(result, indent=1) + "\n")
    return result


def _metrics(folder: Path) -> Path:
    return max((folder / "train").glob("*/metrics.jsonl"))


def _success(row: dict[str, Any]) -> dict[str, Any]:
    """Success with its interval, in the form of `benchmarks.learning_studies`."""
    return {
        kind: {"all": asdict(success_interval(round(row[name] * TEST_ROWS), TEST_ROWS))}
        for kind, name in KINDS.items()
    }


def main() -> None:
    """See the head of this module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--work", type=Path, default=Path("outputs/benchmarks/picture_learning"))
    flags = parser.parse_args()
    results = [
        run_arm(arm, seed=seed, steps=flags.steps, work=flags.work)
        for seed in flags.seeds
        for arm in ARMS
    ]
    summary = {
        "command": " ".join(["python -m benchmarks.picture_learning", *sys.argv[1:]]),
        "machine": describe_machine(),
        "runs": results,
    }
    (RESULTS / "picture_learning.json").write_text(json.dumps(summary, indent=1) + "\n")
    learning_curves(results, RESULTS / "picture_learning.png")
    for result in results:
        rates = [result[when]["sampled"]["all"]["rate"] for when in ("before", "after")]
        print(f"{result['arm']:>8} seed {result['seed']}: {rates[0]:.3f} -> {rates[1]:.3f}")


if __name__ == "__main__":
    main()
