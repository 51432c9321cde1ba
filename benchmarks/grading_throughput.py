"""Answers that MathEnv grades per second of wall and processor time: numbers, and LaTeX in workers.

    # 1 and 2 workers; writes benchmarks/results/grading_throughput.json
    python -m benchmarks.grading_throughput
    python -m benchmarks.grading_throughput --workers 4

Answers differ from each other, so that no cache of math-verify helps. Rates by the clock depend on
other load on the machine; answers per second of processor time (of this process and its workers
together) hardly do.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measured_on import describe_machine
from envs.math.grading import Grader

RESULTS = Path(__file__).parent / "results"
CASES = {
    "plain numbers": [(str(n), f"so\n#### {n + n % 2}") for n in range(20_000)],
    "fractions in LaTeX": [
        (f"\\frac{{{n}}}{{7}}", f"\\boxed{{\\frac{{{2 * n}}}{{14}}}}") for n in range(1, 1001)
    ],
    "polynomials in LaTeX": [
        (f"x^2+{2 * n}x+{n * n}", f"\\boxed{{(x+{n})^2}}") for n in range(1, 101)
    ],
}


def main() -> None:
    """Measure each kind with each number of workers, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--output", type=Path, default=RESULTS / "grading_throughput.json")
    flags = parser.parse_args()
    rates = []
    for workers in flags.workers:
        for name, pairs in CASES.items():
            rates.append(asyncio.run(measure(name, pairs, workers=workers)))
            print(rates[-1], flush=True)
    command = " ".join(["python -m benchmarks.grading_throughput", *sys.argv[1:]])
    flags.output.write_text(
        json.dumps({"command": command, "machine": describe_machine(), "rates": rates}, indent=1)
        + "\n"
    )


async def measure(name: str, pairs: Sequence[tuple[str, str]], *, workers: int) -> dict[str, Any]:
    """Grade all `pairs` at once."""
    grader = Grader(num_workers=workers, cpu_s=10.0)
    warm = [
        grader.grade("\\boxed{(x+1)^3}", truth="x^3+3x^2+3x+1", style="rule")
        for _ in range(2 * workers)
    ]
    await asyncio.gather(*warm)  # sympy is imported in pieces
    before, began, own = children_cpu_s(grader), time.perf_counter(), time.process_time()
    grades = await asyncio.gather(
        *(grader.grade(text, truth=truth, style="rule") for truth, text in pairs)
    )
    wall_s, cpu_s = (
        time.perf_counter() - began,
        time.process_time() - own + children_cpu_s(grader) - before,
    )
    grader.close()
    return {
        "answers": name,
        "workers": workers,
        "correct": sum(grade.correct for grade in grades),
        "of": len(grades),
        "per_second": round(len(grades) / wall_s),
        "per_cpu_second": round(len(grades) / cpu_s),
    }


def children_cpu_s(grader: Grader) -> float:
    """Processor time of the grader's worker processes so far."""
    pool = grader._workers
    ticks = 0
    for worker in pool._alive if pool is not None else ():
        with open(f"/proc/{worker._process.pid}/stat") as stream:
            fields = stream.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime and stime, proc(5)
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
