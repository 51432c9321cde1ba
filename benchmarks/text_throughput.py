"""One GRPO step (generate, score, update) of siirl beside TRL's GRPOTrainer: samples per second,
and peak memory.

    python -m venv /tmp/trl
    /tmp/trl/bin/pip install trl==1.16.0 transformers==5.19.0 torch==2.13.0
    python -m benchmarks.text_throughput --trl /tmp/trl/bin/python

The same model (an ordinary folder of weights), the same questions, prompts x group, lengths, type
(float32), optimiser steps and cores; one after the other, in turns, each in its own virtual
environment and in one process (siirl with cluster=local; its graders are separate processes,
which count). TRL is given the micro-batch of `--micro-batches` that is fastest for it. A step's
time is that of the trainer's own step; the first `WARM_UP` of a run are left out. Memory is the
largest proportional set size of the process with its children, and processor time theirs from the
end of the warm-up to that of the last step: on a machine with other work it is the fairer number.

`short` are the shipped job's answers (a few tokens: the overhead of a step shows), `long` is a
model of 26 million weights that writes 64 tokens to each question (arithmetic shows).
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from benchmarks.measured_on import describe_machine
from siirl.files.paths import asset_path
from siirl.models.tiny_lm import TinyLMShape, new_tiny_lm, tiny_tokenizer

RESULT = Path(__file__).parent / "results" / "text_throughput.json"
WARM_UP = 2  # steps: allocations, the optimiser's moments
SAMPLE_EVERY_S = 0.2


@dataclass(frozen=True)
class Setting:
    """The task that both contenders train on."""

    shape: TinyLMShape | None
    """None: the shipped weights."""
    prompts: int
    group: int
    tokens: int
    learning_rate: float


SETTINGS = {
    "short": Setting(shape=None, prompts=32, group=16, tokens=8, learning_rate=2e-4),
    "long": Setting(
        shape=TinyLMShape(width=512, layers=8, heads=8, feed_forward=1408),
        prompts=8,
        group=8,
        tokens=64,
        learning_rate=1e-5,
    ),
}


def main() -> None:
    """Measure in turns and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trl", required=True, help="Python of an environment that has trl")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument(
        "--micro-batches",
        type=int,
        nargs="+",
        default=[64, 512],
        help="rows of a pass of TRL's to choose from",
    )
    parser.add_argument("--threads", type=int, default=0, help="of each; 0: those it takes itself")
    flags = parser.parse_args()
    words = ["/tmp/trl/bin/python" if word == flags.trl else word for word in sys.argv[1:]]
    command = " ".join(["python -m benchmarks.text_throughput", *words])
    measured = {"command": command, "machine": describe_machine()}
    results = json.loads(RESULT.read_text())["results"]  # the other setting's stays
    with tempfile.TemporaryDirectory() as folder:
        for name in flags.settings:
            found = compare(SETTINGS[name], Path(folder), flags)
            results[name] = measured | found
            found = {key: value for key, value in found.items() if key != "runs"}
            print(name, json.dumps(found, indent=1))
    RESULT.write_text(json.dumps(measured | {"results": results}, indent=1) + "\n")


def compare(setting: Setting, folder: Path, flags: argparse.Namespace) -> dict[str, Any]:
    """Run both in turns; medians over the runs' medians."""
    model = model_of(setting, folder)
    questions = folder / "questions.jsonl"
    questions.write_text(
        "".join(json.dumps(question) + "\n" for question in made_up_questions(2000))
    )
    samples = setting.prompts * setting.group
    sizes = sorted({min(size, samples) for size in flags.micro_batches})
    tried = {
        size: run_trl(setting, model, questions, folder, flags, micro_batch=size, steps=WARM_UP + 3)
        for size in sizes
    }
    fastest = min(tried, key=lambda size: tried[size]["step_s"])
    runs: dict[str, list[dict[str, Any]]] = {"siirl": [], "trl": []}
    for _ in range(flags.repeats):
        runs["siirl"].append(run_siirl(setting, model, folder, flags))
        runs["trl"].append(
            run_trl(
                setting, model, questions, folder, flags, micro_batch=fastest, steps=flags.steps
            )
        )
    seconds = {name: median(run["step_s"] for run in found) for name, found in runs.items()}
    memory = {name: median(run["peak_mb"] for run in found) for name, found in runs.items()}
    work = {name: median(run["processor_s"] for run in found) for name, found in runs.items()}
    return {
        "setting": {
            "prompts": setting.prompts,
            "group": setting.group,
            "tokens": setting.tokens,
            "trl_micro_batch": fastest,
        },
        "samples_per_s": {name: samples / value for name, value in seconds.items()},
        "speedup": seconds["trl"] / seconds["siirl"],
        "processor_s_per_step": work,
        "processor_speedup": work["trl"] / work["siirl"],
        "peak_mb": memory,
        "runs": runs,
    }


def model_of(setting: Setting, folder: Path) -> Path:
    """The folder of weights that both load."""
    if setting.shape is None:
        return asset_path("tiny_lm")
    path = folder / f"width{setting.shape.width}"
    if not path.is_dir():
        new_tiny_lm(seed=0, shape=setting.shape).save_pretrained(path)
        tiny_tokenizer().save_pretrained(path)
    return path


def made_up_questions(count: int) -> list[dict[str, str]]:
    """Sums of two-digit numbers, as env=math words them."""
    generator = random.Random(0)
    pairs = [(generator.randint(10, 99), generator.randint(10, 99)) for _ in range(count)]
    return [{"prompt": f"{left}+{right}=", "answer": str(left + right)} for left, right in pairs]


def run_trl(
    setting: Setting,
    model: Path,
    questions: Path,
    folder: Path,
    flags: argparse.Namespace,
    *,
    micro_batch: int,
    steps: int,
) -> dict[str, Any]:
    """One run of TRL's."""
    words = [
        flags.trl,
        str(Path(__file__).parent / "trl_grpo.py"),
        "--model",
        str(model),
        "--questions",
        str(questions),
    ]
    words += [
        "--prompts",
        str(setting.prompts),
        "--group",
        str(setting.group),
        "--tokens",
        str(setting.tokens),
        "--steps",
        str(steps),
    ]
    words += [
        "--micro-batch",
        str(micro_batch),
        "--learning-rate",
        str(setting.learning_rate),
        "--output",
        str(folder / "trl"),
    ]
    seen = watched(words, threads=flags.threads)
    told = json.loads(seen.output.strip().splitlines()[-1])
    return {
        "step_s": median(told["step_s"][WARM_UP:]),
        "processor_s": seen.processor_s(told["ended"]),
        "peak_mb": seen.peak_mb,
        "reward": told["reward"],
        "length": told["length"],
    }


def run_siirl(
    setting: Setting, model: Path, folder: Path, flags: argparse.Namespace
) -> dict[str, Any]:
    """One run of ours, with the user's own command."""
    words = [
        sys.executable,
        "-m",
        "siirl.train",
        "pipeline=grpo",
        "env=math",
        "cluster=local",
        f"actor_rollout_ref.model.path={model}",
    ]
    words += [
        f"data.train_batch_size={setting.prompts}",
        f"actor_rollout_ref.rollout.n={setting.group}",
    ]
    words += [
        f"data.max_response_length={setting.tokens}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={setting.prompts}",
    ]
    words += [
        f"actor_rollout_ref.actor.optim.lr={setting.learning_rate}",
        f"trainer.total_steps={flags.steps}",
        "trainer.max_minutes=null",
    ]
    words += [
        "trainer.val_episodes=0",
        "trainer.save_freq=-1",
        f"trainer.output_dir={folder}/siirl",
        "trainer.experiment_name=run",
    ]
    words += ["trainer.logger=[]", f"env.envs_per_server={setting.prompts * setting.group}"]
    if flags.threads:
        words.append(f"trainer.threads_per_rank={flags.threads}")
    seen = watched(words, threads=flags.threads)
    newest = max((folder / "siirl" / "run").iterdir())
    rows = [json.loads(line) for line in (newest / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["step"] > 0]
    return {
        "step_s": median(row["time/step_s"] for row in rows[WARM_UP:]),
        "processor_s": seen.processor_s([row["time"] for row in rows]),
        "peak_mb": seen.peak_mb,
        "reward": [row["reward/mean_score"] for row in rows],
        "length": [row["rollout/avg_response_length"] for row in rows],
    }


@dataclass
class Seen:
    """What a command printed and used, with its children."""

    output: str = ""
    peak_mb: float = 0.0
    used: list[tuple[float, float]] = field(default_factory=list)
    """Time of the clock, and processor time until then."""

    def processor_s(self, ended: list[float]) -> float:
        """Processor time of a step, from the clock's times at which the steps ended."""
        times, seconds = zip(*self.used, strict=True)
        begin, end = np.interp([ended[WARM_UP - 1], ended[-1]], times, seconds)
        return float(end - begin) / (len(ended) - WARM_UP)


def watched(words: list[str], *, threads: int) -> Seen:
    """Run a command, with so many threads of OpenMP unless 0."""
    environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    seen = Seen()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(words, stdout=output, stderr=errors, text=True, env=environment)
        while process.poll() is None:
            look(process.pid, seen)
            time.sleep(SAMPLE_EVERY_S)
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            raise SystemExit(
                f"{' '.join(words)} ended with {process.returncode}:\n{errors.read()[-3000:]}"
            )
        seen.output = output.read()
        return seen


def look(pid: int, seen: Seen) -> None:
    """Note the memory and the processor time of a process and its children."""
    memory, work = 0.0, 0.0
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for member in family:
        try:
            memory += member.memory_full_info().pss
            times = member.cpu_times()
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # it has just ended
            continue
        work += times.user + times.system
    seen.peak_mb = max(seen.peak_mb, memory / 1e6)
    seen.used.append((time.time(), work))


if __name__ == "__main__":
    main()
