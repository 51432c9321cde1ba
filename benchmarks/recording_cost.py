"""Cost of recording videos: the shipped job with `trainer.record_episodes` as shipped and with 0,
paired.

    python -m benchmarks.recording_cost --steps 6 --pairs 3

Each run is `python -m siirl.train` with the shipped defaults but for its length and for
evaluations, which are left out: they record 4 of 300 episodes, a smaller share than training's 2 of
96. Both runs of a pair have the same seed, hence the same start states and random numbers; the
order alternates. The first step, in which simulators and renderers are built, is not counted.

Measured are wall time and processor time of all processes of the run (drawing, encoding and ffmpeg
included), each divided by the environment steps, because two policies drift apart by rounding and
then play episodes of other lengths. Other load disturbs the first measure, and hardly the second.
Aim: recording slows a run by at most a tenth.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measured_on import describe_machine
from siirl.reporting.jsonl import read_rows
from siirl.reporting.metric_writers import METRICS_FILE

RESULT = Path(__file__).parent / "results" / "recording_cost.json"
AIM = 0.1
POLL_S = 0.1  # ffmpeg lives for half a second and more
TICKS = os.sysconf("SC_CLK_TCK")
MEASURES = ("wall_s", "processor_s")


@dataclass(frozen=True)
class Measured:
    """The counted steps of one run."""

    wall_s: float
    processor_s: float
    environment_steps: float
    videos: int


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--steps", type=int, default=6, help="training steps of a run; the first is not counted"
    )
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("outputs/benchmarks/recording_cost"),
        help="run folders; kept",
    )
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("overrides", nargs="*", help="as for siirl.train")
    flags = parser.parse_args()
    pairs = [measure_pair(number, flags) for number in range(flags.pairs)]
    result: dict[str, Any] = {
        "command": f"python -m benchmarks.recording_cost {shlex.join(sys.argv[1:])}".strip(),
        "machine": describe_machine(),
        "aim": f"slower by at most {AIM:.0%}",
        "slowdown": {
            name: summarise([slowdown(pair, name) for pair in pairs]) for name in MEASURES
        },
        "pairs": [{arm: vars(measured) for arm, measured in pair.items()} for pair in pairs],
    }
    flags.output.write_text(json.dumps(result, indent=1) + "\n")
    for name, share in result["slowdown"].items():
        print(
            f"{name:<12} with recording / without - 1: {share['median']:+.1%} "
            f"[{share['lowest']:+.1%}, {share['highest']:+.1%}]"
        )
    print(f"written to {flags.output}")


def measure_pair(number: int, flags: argparse.Namespace) -> dict[str, Measured]:
    """Both runs of a pair; the other one first in every second pair."""
    arms = {"recording": (), "nothing": ("trainer.record_episodes=0",)}
    order = sorted(arms, reverse=number % 2 == 1)
    return {
        name: run(
            [*flags.overrides, *arms[name], f"trainer.seed={number}"],
            name=f"{number}_{name}",
            flags=flags,
        )
        for name in order
    }


def run(overrides: list[str], *, name: str, flags: argparse.Namespace) -> Measured:
    """Train, and read what the counted steps took."""
    command = [
        sys.executable,
        "-m",
        "siirl.train",
        f"trainer.total_steps={flags.steps}",
        "trainer.max_minutes=null",
    ]
    command += ["trainer.val_episodes=0", "trainer.save_freq=-1", "trainer.logger=[]"]
    command += [f"trainer.output_dir={flags.work}", f"trainer.experiment_name={name}", *overrides]
    before = set(flags.work.glob(f"{name}/*"))
    process = subprocess.Popen(command, start_new_session=True)
    meter = ProcessorTime(session=process.pid)
    marks: dict[int, float] = {}
    try:
        while process.poll() is None:
            seconds = meter.read()
            files = [
                file
                for folder in flags.work.glob(f"{name}/*")
                if folder not in before
                for file in folder.glob(METRICS_FILE)
            ]
            done = sum(1 for file in files for _ in read_rows(file))
            marks.setdefault(done, seconds)
            time.sleep(POLL_S)
    finally:  # a session of its own hears no Ctrl-C
        process.terminate()
        process.wait()
    if process.returncode:
        raise SystemExit(f"The run {name} failed: {shlex.join(command)}")
    (folder,) = set(flags.work.glob(f"{name}/*")) - before
    rows = [row for row in read_rows(folder / METRICS_FILE) if row["step"] > 1]
    return Measured(
        wall_s=sum(row["time/step_s"] for row in rows),
        processor_s=marks[flags.steps] - marks[1],
        environment_steps=sum(
            row["rollout/episodes"] * row["rollout/episode_length"] for row in rows
        ),
        videos=len(list(folder.glob("videos/train/*/*.mp4"))),
    )


class ProcessorTime:
    """Processor seconds of all processes of a session, those that have ended included, as far as
    they were seen.

    A session of the operating system holds a run's processes together, also those whose parent has
    ended.
    """

    def __init__(self, *, session: int) -> None:
        self.session = session
        self.seconds: dict[str, float] = {}

    def read(self) -> float:
        """Seconds up to now."""
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                self._note(folder)
        return sum(self.seconds.values())

    def _note(self, folder: Path) -> None:
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return  # it ended meanwhile
        if int(fields[3]) == self.session:
            self.seconds[f"{folder.name}-{fields[19]}"] = (
                int(fields[11]) + int(fields[12])
            ) / TICKS  # number and start: numbers return


def slowdown(pair: dict[str, Measured], name: str) -> float:
    """Relative slowdown of an environment step by recording; 0.1 is a tenth."""
    per_step = {
        arm: vars(measured)[name] / measured.environment_steps for arm, measured in pair.items()
    }
    return per_step["recording"] / per_step["nothing"] - 1


def summarise(values: list[float]) -> dict[str, Any]:
    """Median and range over the pairs."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


if __name__ == "__main__":
    main()
