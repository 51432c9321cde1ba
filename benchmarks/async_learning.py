"""Measures the gain of rollouts that run ahead of training: wall time to a success rate.

    # tools whose answers take a lognormal time, from 0.5 s (median) to 10 s (99th percentile)
    python -m benchmarks.async_learning tools --seeds 1 2 3
    # the demo job on simulators
    python -m benchmarks.async_learning robots --seeds 1 2 3
    # the same text job on colocated and on separate ranks: their learning curves and intervals
    python -m benchmarks.async_learning placement --seeds 1 2 3

An arm is `python -m siirl.train` with the overrides that the result file lists; all arms of a study
take the same number of training steps from the same weights. The clock runs from the first prompt
to the step at which the mean success of `WINDOW` steps reaches the target, without start and
evaluations. Arms of a seed follow each other, or run side by side with `--at-once`, so that other
load on the machine affects all of them; ratios compare arms of one seed. The control takes the most
staleness without the decoupled loss. Finished arms are kept and not run again. Left out: staleness
above 4, several machines.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.measured_on import describe_machine
from envs.tools.calls import CLOSING, OPENING, ToolCall, write_call
from siirl.files.paths import find
from siirl.reporting.statistics import success_interval

RESULTS = Path(__file__).parent / "results"
WINDOW = 5  # steps whose mean success is compared with the target
LOCKSTEP = "0"
PAIR = ("trainer.n_gpus_per_node=2", "dag.groups={rollout: 1, train: 1}")
DECOUPLED = "actor_rollout_ref.actor.loss=decoupled"
VANILLA = "actor_rollout_ref.actor.loss=vanilla"


def behind(versions: int, *more: str) -> tuple[str, ...]:
    """Overrides of an arm whose samples may be so many versions behind."""
    return (*PAIR, f"trainer.max_staleness={versions}", *more)


@dataclass(frozen=True)
class Study:
    """One job at several bounds of staleness."""

    common: tuple[str, ...]
    arms: dict[str, tuple[str, ...]]
    targets: tuple[float, ...]
    """Success rates to which the clock runs."""
    steps: int
    warm_start: tuple[str, ...] = ()
    """Arguments of siirl.warm_start for the weights that all arms start from, beginning with those
    of `short_calls`; none: the job's own.
    """


STUDIES = {
    # Start, rate and batch were chosen on seed 0, in lockstep with tools that answer at once; the
    # number of steps after a run of seed 0 with max_staleness=2.
    "tools": Study(
        common=(
            *("pipeline=grpo", "env=tools", "env.name=benchmarks.slow_tools:SlowToolEnv"),
            *("env.tasks=[sums-3]", "env.envs_per_server=1280", "data.max_response_length=48"),
            *("data.train_batch_size=16", "actor_rollout_ref.rollout.n=16"),
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "actor_rollout_ref.actor.optim.lr=5e-4",
            "actor_rollout_ref.actor.optim.scheduler=cosine_with_warmup",
            "actor_rollout_ref.actor.optim.warmup_steps=20",
            *("trainer.val_episodes=200", "trainer.max_minutes=null"),
        ),
        arms={
            LOCKSTEP: behind(0),
            "1": behind(1, DECOUPLED),
            "2": behind(2, DECOUPLED),
            "4": behind(4, DECOUPLED),
            "4 vanilla": behind(4, VANILLA),
        },
        targets=(0.7, 0.8, 0.9),
        steps=40,
        warm_start=(
            *("env=tools", "env.tasks=[sums-3]", "--updates=80", "--learning-rate=1e-3"),
            *("--batch-rows=32", "--stop-at=1"),
        ),
    ),
    "robots": Study(
        common=("trainer.max_minutes=null",),
        arms={
            LOCKSTEP: (),
            "1": behind(1, DECOUPLED),
            "0, two ranks": ("trainer.n_gpus_per_node=2",),
            "0, separate ranks": behind(0),
        },
        targets=(0.7, 0.8),
        steps=60,
    ),
    "placement": Study(
        common=(
            *("pipeline=grpo", "env=math", "actor_rollout_ref.actor.optim.scheduler=constant"),
            *("trainer.val_episodes=250", "trainer.max_minutes=null"),
        ),
        arms={
            "colocated": (),
            "colocated, two ranks": ("trainer.n_gpus_per_node=2",),
            LOCKSTEP: behind(0),
            "0 decoupled": behind(0, DECOUPLED),
            "1": behind(1, DECOUPLED),
            "1 vanilla": behind(1, VANILLA),
        },
        targets=(0.4, 0.5, 0.6),
        steps=100,
    ),
}


def main() -> None:
    """Run what is missing of a study, and write the summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", help="only these")
    parser.add_argument("--steps", type=int, help="training steps; by default the study's")
    parser.add_argument("--at-once", type=int, default=1, help="arms that run at the same time")
    parser.add_argument("--notice", default="", help="what a reader of the result has to know")
    parser.add_argument("--work", type=Path, default=Path("outputs/benchmarks/async_learning"))
    flags = parser.parse_args()
    study = STUDIES[flags.study]
    folder = flags.work / flags.study
    folder.mkdir(parents=True, exist_ok=True)
    start = _warm_start(study, folder)
    jobs = [(seed, arm) for seed in flags.seeds for arm in flags.arms or study.arms]
    with ThreadPoolExecutor(flags.at_once) as pool:
        runs = [
            pool.submit(_run, study, arm, seed, start, folder, flags.steps or study.steps)
            for seed, arm in jobs
        ]
        for run in runs:
            run.result()
    _summarise(flags.study, folder, notice=flags.notice)


def _warm_start(study: Study, folder: Path) -> tuple[str, ...]:
    if not study.warm_start:
        return ()
    weights, model = folder / "warm_start", "actor_rollout_ref.model.path"
    if not (weights / "config.json").is_file():
        short_calls(folder / "short_calls")
        command = [sys.executable, "-m", "siirl.warm_start", *study.warm_start]
        command += [f"{model}={folder / 'short_calls'}", f"--output={weights}"]
        subprocess.run(command, check=True)
    return (f"{model}={weights}",)


def short_calls(folder: Path) -> None:
    """The shipped model that calls tools, with one token for all of a call before the expression
    and one for all after it: an answer has 15 tokens instead of 70, so that waiting for tools, and
    not generating on two cores, takes the time.
    """
    shutil.copytree(find("assets/tiny_lm_tools"), folder, dirs_exist_ok=True)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    before, after = write_call(ToolCall("calculator", {"expression": "|"})).split("|")
    for token in tokenizer["added_tokens"]:
        token["content"] = {OPENING: before, CLOSING: after}.get(token["content"], token["content"])
    file.write_text(json.dumps(tokenizer))


def _run(study: Study, arm: str, seed: int, start: Sequence[str], folder: Path, steps: int) -> None:
    work = folder / f"{arm.replace(', ', '_').replace(' ', '_')}_seed{seed}"
    result = work / "result.json"
    if result.is_file():
        return
    work.mkdir(exist_ok=True)
    words = [
        *study.common,
        *study.arms[arm],
        f"trainer.seed={seed}",
        f"trainer.total_steps={steps}",
    ]
    words += ["trainer.val_before_train=false", "trainer.threads_per_rank=1"]
    words += ["trainer.record_episodes=0", "trainer.record_val_episodes=0", "trainer.save_freq=-1"]
    places = [*start, f"trainer.output_dir={work}", "trainer.experiment_name=run"]
    with (work / "log.txt").open("w") as log:
        command = [sys.executable, "-m", "siirl.train", *words, *places]
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    run = max((work / "run").iterdir())
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = measure([row for row in rows if row["step"] > 0], targets=study.targets)
    result.write_text(json.dumps({"arm": arm, "seed": seed, "overrides": words, **found}, indent=1))


def measure(rows: Sequence[dict[str, Any]], *, targets: Sequence[float]) -> dict[str, Any]:
    """A run's metrics, one row per step.

    Returns:
        Steps and seconds to each target (None: not reached) and of the whole run; the curve as
        step, seconds, success; held-out success after training; shares and versions behind.
    """
    evaluation = float(rows[-1].get("time/evaluation_s", 0.0))
    begin = rows[0]["time"] - rows[0]["time/step_s"]
    seconds = [row["time"] - begin for row in rows]
    seconds[-1] -= evaluation
    success = [row["reward/success_rate"] for row in rows]
    means = [statistics.fmean(success[max(0, i + 1 - WINDOW) : i + 1]) for i in range(len(rows))]
    reached = {
        target: next((i for i in range(WINDOW - 1, len(rows)) if means[i] >= target), None)
        for target in targets
    }
    ages = [row["staleness/samples"]["mean"] for row in rows if "staleness/samples" in row]
    return {
        "steps": len(rows),
        "steps_to": {f"{target}": i and i + 1 for target, i in reached.items()},
        "seconds_to": {f"{target}": i and seconds[i] for target, i in reached.items()},
        "seconds": seconds[-1],
        "success_at_the_end": statistics.fmean(success[-WINDOW:]),
        "held_out": {key: value for key, value in rows[-1].items() if key.startswith("val/")},
        "versions_behind": statistics.fmean(ages) if ages else None,
        "simulators_busy": simulators_busy(rows),
        **{
            name: _mean(rows, name)
            for name in (
                "staleness/stale_share",
                "staleness/mixed_share",
                "staleness/discarded_share",
                "group/train/idle_share",
                "group/rollout/idle_share",
                "env/busy_share",
                "policy/busy_share",
            )
        },
        "curve": [
            list(point) for point in zip(range(1, len(rows) + 1), seconds, success, strict=True)
        ],
    }


def simulators_busy(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Share of all steps during which a simulator worked; None: a run without simulators.

    `env/busy_share` is a share of the rollouts. Ranks with rollouts alone idle for the rest of
    their time; other ranks train.
    """
    found = [
        row["env/busy_share"] * (1 - row["group/rollout/idle_share"])
        if "group/rollout/idle_share" in row
        else row["env/busy_share"] * row["time/rollout_actor_s"] / row["time/step_s"]
        for row in rows
        if "env/busy_share" in row
    ]
    return statistics.fmean(found) if found else None


def _mean(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    found = [row[name] for row in rows if name in row]
    return statistics.fmean(found) if found else None


def _summarise(name: str, folder: Path, *, notice: str) -> None:
    """Write all finished arms with their ratios, and a table of them."""
    runs = [json.loads(file.read_text()) for file in sorted(folder.glob("*/result.json"))]
    summary = {
        "command": f"python -m benchmarks.async_learning {name}",
        "notice": notice,
        "machine": describe_machine(),
        "study": asdict(STUDIES[name]),
        "window_steps": WINDOW,
        "times_as_fast_as_lockstep": ratios(runs),
        "held_out": {arm: _held_out(runs, arm) for arm in STUDIES[name].arms},
        "runs": runs,
    }
    file = RESULTS / f"async_learning_{name}.json"
    file.write_text(json.dumps(summary, indent=1) + "\n")
    file.with_suffix(".md").write_text(table(runs))
    print(table(runs))


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Markdown: a row a run."""
    targets = list(runs[0]["seconds_to"]) if runs else []
    head = ["max_staleness", "seed", "seconds a step", *(f"seconds to {t}" for t in targets)]
    head += ["last training success", "held out, sampled", "discarded", "versions behind"]
    has_simulators = any(run.get("simulators_busy") for run in runs)
    if has_simulators:
        head.append("simulators busy")
    rows = [head, ["---"] * len(head)]
    for run in runs:
        reached = [run["seconds_to"][target] for target in targets]
        row = [
            *(run["arm"], str(run["seed"]), f"{run['seconds'] / run['steps']:.1f}"),
            *("never" if seconds is None else f"{seconds:.0f}" for seconds in reached),
            f"{run['success_at_the_end']:.0%}",
            f"{run['held_out'].get('val/all/success_rate', float('nan')):.0%}",
            *(
                "-" if value is None else f"{value:.2f}"
                for value in (run["staleness/discarded_share"], run["versions_behind"])
            ),
        ]
        rows.append([*row, f"{run['simulators_busy']:.0%}"] if has_simulators else row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def ratios(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[float | None]]]:
    """By arm, seed by seed: lockstep's seconds over the arm's, to each target and of a step."""
    lockstep = {run["seed"]: run for run in runs if run["arm"] == LOCKSTEP}
    found: dict[str, dict[str, list[float | None]]] = {}
    for run in runs:
        base = lockstep.get(run["seed"])
        if base is None or base is run:
            continue
        entry = found.setdefault(run["arm"], {name: [] for name in ("step", *run["seconds_to"])})
        entry["step"].append(base["seconds"] / base["steps"] / run["seconds"] * run["steps"])
        for target, seconds in run["seconds_to"].items():
            times = base["seconds_to"][target], seconds
            entry[target].append(None if None in times else times[0] / times[1])
    return found


def _held_out(runs: Sequence[dict[str, Any]], arm: str) -> dict[str, Any]:
    """Success of sampled actions on held-out tasks after training, over the seeds of an arm."""
    found = [run["held_out"] for run in runs if run["arm"] == arm]
    successes, episodes = (
        round(sum(values[f"val/all/{name}"] for values in found))
        for name in ("successes", "episodes")
    )
    return asdict(success_interval(successes, episodes)) if episodes else {}


if __name__ == "__main__":
    main()
