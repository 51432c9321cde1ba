"""Records the result of a run of `make demo` in benchmarks/results/demo.json:
`python -m benchmarks.demo_result RUN_FOLDER`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.measured_on import describe_machine

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Summarise the metrics of a finished run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_folder", type=Path)
    rows = [
        json.loads(line)
        for line in (parser.parse_args().run_folder / "metrics.jsonl").read_text().splitlines()
    ]
    evaluated = [row for row in rows if "val/all/successes" in row]
    trained = [row for row in rows if "rollout/success_rate" in row]
    result = {
        "command": "make demo",
        "machine": describe_machine(),
        "minutes_of_training": round((trained[-1]["time"] - evaluated[0]["time"]) / 60, 1),
        "steps": len(trained),
        "environment_steps": sum(row["env/steps"] for row in trained),
        "before": counts(evaluated[0]),
        "after": counts(evaluated[-1]),
        "training_success": [round(row["rollout/success_rate"], 4) for row in trained],
        "environment_steps_per_s": [round(row["env/steps_per_s"]) for row in trained],
        "largest_log_prob_gap": max(
            row["rollout/log_prob_gap"] for row in trained if "rollout/log_prob_gap" in row
        ),
    }
    (RESULTS / "demo.json").write_text(json.dumps(result, indent=1) + "\n")


def counts(row: dict[str, Any]) -> dict[str, Any]:
    """Successes and episodes of each task, sampled actions."""
    return {
        name: value
        for name, value in row.items()
        if name.startswith("val/") and name.endswith(("/successes", "/episodes"))
    }


if __name__ == "__main__":
    main()
