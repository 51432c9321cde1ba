"""Runs the arms of a learning study and measures success before, during and after training.

Every arm is `python -m siirl.train` with the shipped defaults and the differences that its study
names, so it can be repeated by hand. Before and after, each policy is measured by `python -m
siirl.evaluate` on seeds that nothing else uses (from 500,000 on), with sampled actions and with the
most likely ones. A benchmark can be interrupted: a finished arm is kept and not run again, and an
unfinished one continues from its last checkpoint.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.measured_on import describe_machine
from benchmarks.plots import learning_curves
from siirl.files.paths import find
from siirl.reporting.statistics import success_interval

RESULTS = Path(__file__).parent / "results"
FIRST_TEST_SEED = 500_000  # tuning used those below
COMMAND = "command.txt"  # in an arm's folder, once its training is done
MODEL = "actor_rollout_ref.model.path"
SAMPLING = "actor_rollout_ref.model.options"
LAST = 5  # steps of training that are measured where nothing is held out


@dataclass(frozen=True)
class Arm:
    """One way to train: what differs from the shipped defaults."""

    overrides: tuple[str, ...]
    warm_start: tuple[str, ...] = ()
    """Differences of its warm start from that of the study."""


@dataclass(frozen=True)
class Study:
    """Arms on the same tasks and from warm starts made alike."""

    common: tuple[str, ...]
    arms: dict[str, Arm]
    steps: int
    """Training steps of every arm, where its learning rate falls to the end of them."""
    shipped: str = "assets/tiny_vla"
    """Weights that it starts from."""
    warm_start: tuple[str, ...] = ()
    """What differs in the making of the warm start from the shipped weights; none: those
    themselves.
    """
    goes_on_from: str = ""
    """Another study: each arm goes on from the last checkpoint of its arm of that name and seed,
    and counts what that took.
    """
    held_out: bool = True
    """False: all exercises are trained on, and training's own samples are measured: the first
    step's, and the last `LAST` steps'.
    """


def run_studies(studies: Mapping[str, Study], *, name: str, description: str | None) -> None:
    """The command line of a benchmark: run what is missing of a study, and write the summary."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=studies)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--episodes", type=int, default=100, help="test episodes of each task")
    parser.add_argument(
        "--steps", type=int, help="training steps of an arm; by default the study's"
    )
    parser.add_argument("--arms", nargs="+", help="only these")
    parser.add_argument(
        "--work", type=Path, default=Path("outputs/benchmarks") / name, help="run folders; kept"
    )
    flags = parser.parse_args()
    study = studies[flags.study]
    flags.steps = flags.steps or study.steps
    for seed in flags.seeds:
        for arm in flags.arms or study.arms:
            run_arm(study, arm, seed=seed, flags=flags)
    summarise(name, flags)


def run_arm(study: Study, name: str, *, seed: int, flags: argparse.Namespace) -> None:
    """Train and measure one arm, unless its result is there."""
    result_file = arm_folder(flags, name, seed) / "result.json"
    if result_file.is_file():
        return
    start = warm_start(study, name, flags)
    if study.goes_on_from:
        adopt_runs(study, name, seed=seed, flags=flags)
    overrides = overrides_of(study, name, start=start)
    folder = arm_folder(flags, name, seed)
    runs = train(
        folder,
        [
            *overrides,
            f"trainer.seed={seed}",
            f"trainer.total_steps={flags.steps}",
            f"{MODEL}={start}",
        ],
    )
    trained = training_steps(runs)
    result = {
        "arm": name,
        "seed": seed,
        "notice": trained[-1].get("notice", ""),
        "command": (folder / COMMAND).read_text().strip(),
        "steps": trained[-1]["step"],
        "environment_steps": sum(row["env/steps"] for row in trained),
        "minutes": sum(row["time/step_s"] for row in trained) / 60,
        "curve": [[row["step"], row["rollout/success_rate"]] for row in trained],
        "rank_correlation": [row.get("reward/oracle_rank_correlation") for row in trained],
        **(
            measured(study, name, start, runs[-1], flags)
            if study.held_out
            else of_training(trained)
        ),
    }
    result_file.write_text(json.dumps(result, indent=1) + "\n")


def overrides_of(study: Study, name: str, *, start: str) -> list[str]:
    """What an arm sets beside its steps, seed and weights; `{folder}` stands for those weights."""
    words = (*study.common, *study.arms[name].overrides)
    return [word.format(folder=start) for word in words]


def adopt_runs(study: Study, name: str, *, seed: int, flags: argparse.Namespace) -> None:
    """Copy the training runs of the finished study that an arm continues."""
    first, runs = (
        folder / "train"
        for folder in (
            arm_folder(flags, name, seed, study=study.goes_on_from),
            arm_folder(flags, name, seed),
        )
    )
    if not (first.parent / "result.json").is_file():
        raise SystemExit(
            f"{flags.study} continues {study.goes_on_from}, whose {name} of seed {seed} has not "
            "been run."
        )
    if not runs.is_dir():
        shutil.copytree(first, runs, symlinks=True)


def train(folder: Path, overrides: list[str]) -> list[Path]:
    """Train to the end, from the last checkpoint where that was begun; returns the folder of that
    run behind those that were cut off.
    """
    command = ["-m", "siirl.train", *overrides, "trainer.max_minutes=null", *quiet(folder)]
    if not (folder / COMMAND).is_file():
        subprocess.run([sys.executable, *command, "trainer.resume=auto"], check=True)
        (folder / COMMAND).write_text(" ".join(command) + "\n")
    return sorted((folder / "train").iterdir())  # their names are times


def training_steps(runs: list[Path]) -> list[dict[str, Any]]:
    """Metrics of each step, from the last run that did it."""
    rows = [
        json.loads(line)
        for run in runs
        for line in (run / "metrics.jsonl").read_text().splitlines()
    ]
    by_step = {row["step"]: row for row in rows if row["step"] > 0}
    return [by_step[step] for step in sorted(by_step)]


def measured(
    study: Study, name: str, start: str, run: Path, flags: argparse.Namespace
) -> dict[str, Any]:
    """Success on the test seeds before and after an arm, whose run is beside what is measured of
    it, by its own configuration.
    """
    return {
        "before": measure_start(start, study.arms[name], name, common=study.common, flags=flags),
        "after": measure(str(run), (), folder=run.parent.parent / "after", flags=flags),
    }


def of_training(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Success of the samples that training drew at its beginning and at its end, each before it
    learnt from them.
    """

    def success(chosen: list[dict[str, Any]]) -> dict[str, Any]:
        episodes = [round(row["rollout/episodes"]) for row in chosen]
        successes = sum(
            round(row["rollout/success_rate"] * count)
            for row, count in zip(chosen, episodes, strict=True)
        )
        return {"sampled": {"all": asdict(success_interval(successes, sum(episodes)))}}

    return {"before": success(rows[:1]), "after": success(rows[-LAST:])}


def quiet(folder: Path) -> list[str]:
    """Overrides that keep a training run to training."""
    return [
        "trainer.val_before_train=false",
        "trainer.val_episodes=0",
        "trainer.record_episodes=0",
        f"trainer.output_dir={folder}",
        "trainer.experiment_name=train",
    ]


def warm_start(study: Study, name: str, flags: argparse.Namespace) -> str:
    """The policy folder that an arm starts from: the shipped one, or one made by the same command
    with what differs here.
    """
    differences = (*study.warm_start, *study.arms[name].warm_start)
    if not differences:
        return study.shipped
    folder = (
        flags.work
        / flags.study
        / (f"warm_start_{name}" if study.arms[name].warm_start else "warm_start")
    )
    if not (folder / "config.json").is_file():
        made_by = shlex.split(command_of(find(study.shipped)))
        changed = [str(folder) if word == study.shipped else word for word in made_by[1:]]
        subprocess.run(
            [sys.executable, *changed, *(word.format(folder=folder) for word in differences)],
            check=True,
        )
    return str(folder)


def command_of(weights: Path) -> str:
    """The command that made shipped weights: language models have it in a file of its own, policies
    in their config.
    """
    notes = weights / "warm_start.json"
    if notes.is_file():
        return str(json.loads(notes.read_text())["command"])
    return str(json.loads((weights / "config.json").read_text())["notes"]["command"])


def measure_start(
    start: str, arm: Arm, name: str, *, common: tuple[str, ...], flags: argparse.Namespace
) -> dict[str, Any]:
    """Success of the policy that an arm starts from; the same for all seeds, and for all arms that
    start from the same one and sample in the same way.
    """
    own = bool(arm.warm_start) or any(word.startswith(SAMPLING) for word in arm.overrides)
    kept = flags.work / flags.study / (f"before_{name}.json" if own else "before.json")
    if not kept.is_file():
        overrides = [*common, *(arm.overrides if own else ())]
        kept.write_text(
            json.dumps(measure(start, overrides, folder=kept.with_suffix(""), flags=flags))
        )
    return json.loads(kept.read_text())


def measure(
    checkpoint: str, overrides: Sequence[str], *, folder: Path, flags: argparse.Namespace
) -> dict[str, Any]:
    """Success on the test seeds by way of acting and task."""
    command = [sys.executable, "-m", "siirl.evaluate", f"checkpoint={checkpoint}", *overrides]
    command += [
        f"trainer.val_seed_offset={FIRST_TEST_SEED}",
        f"trainer.val_episodes={flags.episodes}",
        "trainer.record_val_episodes=0",
    ]
    subprocess.run([*command, f"trainer.output_dir={folder}"], check=True)
    return json.loads((max((folder / "evaluation").iterdir()) / "evaluation.json").read_text())[
        "success"
    ]


def arm_folder(flags: argparse.Namespace, name: str, seed: int, *, study: str = "") -> Path:
    """Folder of an arm's runs and result for one seed."""
    folder = flags.work / (study or flags.study) / f"{name}_seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def summarise(benchmark: str, flags: argparse.Namespace) -> None:
    """Collect what is there into one json and one picture, and print a table."""
    results = [
        json.loads(file.read_text())
        for file in sorted((flags.work / flags.study).glob("*/result.json"))
    ]
    name = f"{benchmark}_{flags.study}"
    summary = {
        "command": " ".join([f"python -m benchmarks.{benchmark}", *sys.argv[1:]]),
        "machine": describe_machine(),
        "runs": results,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(summary, indent=1) + "\n")
    learning_curves(results, RESULTS / f"{name}.png")
    for result in results:
        if result.get("notice"):
            print(result["notice"])
        cells = []
        for kind in result["after"]:
            before, after = (result[when][kind]["all"] for when in ("before", "after"))
            spans = [
                f"{100 * x['rate']:.0f} % [{100 * x['low']:.0f}, {100 * x['high']:.0f}]"
                for x in (before, after)
            ]
            cells.append(f"{kind} {spans[0]} -> {spans[1]}")
        length = (
            f"{result['steps']} steps, {result['environment_steps']:.0f} of environments, "
            f"{result['minutes']:.1f} min"
        )
        print(f"{result['arm']:>20} seed {result['seed']}: {'; '.join(cells)}; {length}")
