"""Memory of a rank that loads, saves, resumes and syncs a model, on two and on four CPU ranks.

    python -m benchmarks.model_sizes --before CHECKOUT

Models have Qwen2.5's architecture and random weights. Each rank is a process
(`benchmarks.model_sizes_rank`); measured is its largest resident memory during a call above what it
had before. `--before` names a checkout of an older revision, which is measured on the smaller
models: each of its ranks holds a whole one.

Aims: loading takes at most 1.3 times the rank's shard of float32 weights. A sync to vLLM takes the
memory of one bucket.

Left out: asynchronous saves, which also copy a rank's shard; GPUs.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measured_on import describe_machine
from benchmarks.memory_meter import MIB, RETURNED_AT_ONCE, qwen_config, set_one_thread, write_model

REPOSITORY = Path(__file__).resolve().parents[1]
RESULT = Path(__file__).parent / "results" / "model_sizes.json"
AIM = 1.3  # of loading, in shards
FLOAT32 = 4
BUCKET_MIB = 16
MODELS = {
    "64 M": qwen_config(layers=12, width=512, hidden=1792),
    "96 M": qwen_config(layers=10, width=768, hidden=2304),
    "300 M": qwen_config(layers=19, width=1024, hidden=3584),
}


@dataclass(frozen=True)
class Job:
    """A measurement: which model, on how many ranks, with or without vLLM."""

    model: str
    ranks: int = 1
    vllm: str = ""
    """Name of the engine; empty: no vLLM."""
    options: dict[str, Any] = field(default_factory=dict)


SHARDED = [Job("96 M", ranks=2), Job("64 M", ranks=4)]
LARGE = [Job("300 M", ranks=2), Job("300 M", ranks=4)]
ENGINES = [Job("64 M", vllm=name) for name in ("VLLMEngine", "AsyncVLLMEngine")]


def main() -> None:
    """Measure this checkout and an older one, and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="checkout of an older revision")
    parser.add_argument("--output", type=Path, default=RESULT)
    flags = parser.parse_args()
    rows = []
    set_one_thread()
    for job in (*LARGE, *ENGINES, *SHARDED):
        rows.append(run(job, checkout=REPOSITORY))
        print(summary(rows[-1]), flush=True)
        if flags.before is not None and job not in LARGE:
            rows.append(run(job, checkout=flags.before))
            print(summary(rows[-1]), flush=True)
    result = {
        "command": f"python -m benchmarks.model_sizes {shlex.join(sys.argv[1:])}".strip(),
        "machine": describe_machine(),
        "aims": {"load_shards": AIM, "sync": f"one bucket, here of {BUCKET_MIB} MiB"},
        "rows": rows,
    }
    flags.output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {flags.output}")


def summary(row: dict[str, Any]) -> str:
    """One line of a measurement."""
    figures = ", ".join(f"{name} {value:.2f}" for name, value in row["found"].items())
    what = row["vllm"] or f"{row['ranks']} ranks"
    return f"{row['revision']}, {row['parameters'] / 1e6:.0f} M, {what}: {figures}"


def run(job: Job, *, checkout: Path) -> dict[str, Any]:
    """Measure a job on a checkout."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        parameters = write_model(folder / "model", MODELS[job.model])
        write_model(folder / "warm", qwen_config(layers=1, width=128, hidden=128))
        here = checkout == REPOSITORY
        bucket = {"bucket_bytes": BUCKET_MIB * MIB} if here and job.vllm else {}
        content = {
            **{"model": str(folder / "model"), "ranks": job.ranks},
            **{"vllm": job.vllm, "options": bucket},
        }
        (folder / "job.json").write_text(json.dumps(content))
        script = Path(__file__).with_name("model_sizes_rank.py")
        processes = [
            subprocess.Popen(
                [sys.executable, str(script), str(folder / "job.json"), str(rank)],
                cwd=checkout,
                env={
                    **os.environ,
                    **RETURNED_AT_ONCE,
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": str(checkout),
                    "BENCHMARKS": str(script.parent),
                },
            )
            for rank in range(job.ranks)
        ]
        statuses = [process.wait() for process in processes]
        if any(statuses):
            raise SystemExit(f"{job} failed on {checkout}: {statuses}")
        found = [
            json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(job.ranks)
        ]
    return {
        "revision": "this" if here else _revision(checkout),
        "parameters": parameters,
        "ranks": job.ranks,
        "vllm": job.vllm,
        "mib": {name: [each[name] / MIB for each in found] for name in found[0]},
        "found": _ratios(job, found, parameters=parameters),
    }


def _ratios(job: Job, found: list[dict[str, float]], *, parameters: int) -> dict[str, float]:
    """What the aims are about; the worst rank counts."""
    if job.vllm:
        [only] = found
        return {
            "sync, bytes a parameter": only["extra"] / parameters,
            "sync, MiB": only["extra"] / MIB,
            "seconds": only["seconds"],
        }
    whole = FLOAT32 * parameters
    largest = {name: max(each[name] for each in found) for name in found[0]}
    return {
        "load, shards": largest["load"] / (whole / job.ranks),
        "resume, shards of both moments": largest["resume"] / (2 * whole / job.ranks),
        **{f"{name}, models": largest[name] / whole for name in ("save", "gather")},
        "sync, bytes a parameter": largest["sync"] / parameters,
        "sync, MiB": largest["sync"] / MIB,
    }


def _revision(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
