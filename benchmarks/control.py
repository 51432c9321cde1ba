"""Compares PPO by segments with Stable-Baselines3's PPO: return at equal steps, and time.

    python -m benchmarks.control --tasks CartPole-v1 Pendulum-v1 --seeds 1 2 3
    python -m benchmarks.control --table              # prints the results again

Stable-Baselines3 (in requirements-test.lock) has the settings of RL Baselines3 Zoo
(github.com/DLR-RM/rl-baselines3-zoo, hyperparams/ppo.yml, 208b6fd), siirl a preset of
configs/trainer/ and the overrides that the result lists. Both have one process and one thread; arms
of a seed follow each other, so that other programs on the machine affect both. An arm is scored by
the episodes of its own training, which sample actions: the mean return of those that ended in the
last tenth of the steps, and the mean over tenths. Processor seconds are of the whole process,
imports included; a shared machine hardly changes them. Finished arms are kept and not run again.
Pendulum's overrides were chosen on seed 0, after a run of seed 1 with the preset had stalled.

Left out: CleanRL, whose file is not part of a package, and other servers than the process itself.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.measured_on import describe_machine

RESULTS = Path(__file__).parent / "results" / "control.json"
TENTHS = 10
ARMS = ("siirl", "sb3")
COMMON = ("env=gymnasium", "pipeline=ppo", "cluster=local", "env.num_servers=1")
OUTPUT = (
    "trainer.val_episodes=0",
    "trainer.save_freq=-1",
    "trainer.record_episodes=0",
    "trainer.logger=[console]",
)


@dataclass(frozen=True)
class Task:
    """A task, its length, and the settings of both arms."""

    steps: int
    siirl: tuple[str, ...]
    environments: int
    decisions: int
    sb3: dict[str, Any]
    """Arguments of `stable_baselines3.PPO`; `lin_x` falls from x to 0."""
    sb3_environments: int
    normalize: bool = False
    """Whether Stable-Baselines3 gets `VecNormalize`."""


MUJOCO_NETWORKS = {
    "log_std_init": -2,
    "ortho_init": False,
    "activation_fn": "ReLU",
    "net_arch": {"pi": [256, 256], "vf": [256, 256]},
}
"""The zoo's for Hopper and HalfCheetah."""
TASKS = {
    "CartPole-v1": Task(
        steps=50_176,
        siirl=("trainer=classic_control",),
        environments=8,
        decisions=32,
        sb3={
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": "lin_0.001",
            "clip_range": "lin_0.2",
        },
        sb3_environments=8,
    ),
    "Pendulum-v1": Task(
        steps=102_400,
        siirl=(
            "trainer=mujoco_control",
            "data.train_batch_size=4",
            "actor_rollout_ref.rollout.n_steps=1024",
            "algorithm.gamma=0.9",
            "algorithm.lam=0.95",
            "actor_rollout_ref.actor.optim.lr=1e-3",
            "actor_rollout_ref.actor.optim.scheduler=constant",
            "actor_rollout_ref.model.options={normalize: false}",
            "critic.cliprange_value=null",
        ),
        environments=4,
        decisions=1024,
        sb3={
            "n_steps": 1024,
            "gae_lambda": 0.95,
            "gamma": 0.9,
            "n_epochs": 10,
            "ent_coef": 0.0,
            "learning_rate": 1e-3,
            "clip_range": 0.2,
            "use_sde": True,
            "sde_sample_freq": 4,
        },
        sb3_environments=4,
    ),
    "LunarLander-v3": Task(
        steps=1_015_808,
        siirl=(
            "trainer=classic_control",
            "data.train_batch_size=16",
            "env.envs_per_server=16",
            "actor_rollout_ref.rollout.n_steps=1024",
            "algorithm.gamma=0.999",
            "algorithm.lam=0.98",
            "actor_rollout_ref.actor.ppo_epochs=4",
            "actor_rollout_ref.actor.ppo_mini_batch_size=64",
            "actor_rollout_ref.actor.entropy_coef=0.01",
            "actor_rollout_ref.actor.optim.lr=3e-4",
            "actor_rollout_ref.actor.optim.scheduler=constant",
        ),
        environments=16,
        decisions=1024,
        sb3={
            "n_steps": 1024,
            "batch_size": 64,
            "gae_lambda": 0.98,
            "gamma": 0.999,
            "n_epochs": 4,
            "ent_coef": 0.01,
        },
        sb3_environments=16,
    ),
    "Hopper-v5": Task(
        steps=1_001_472,
        siirl=("trainer=mujoco_control",),
        environments=1,
        decisions=2048,
        sb3={
            "batch_size": 32,
            "n_steps": 512,
            "gamma": 0.999,
            "learning_rate": 9.80828e-05,
            "ent_coef": 0.00229519,
            "clip_range": 0.2,
            "n_epochs": 5,
            "gae_lambda": 0.99,
            "max_grad_norm": 0.7,
            "vf_coef": 0.835671,
            "policy_kwargs": MUJOCO_NETWORKS,
        },
        sb3_environments=1,
        normalize=True,
    ),
    "HalfCheetah-v5": Task(
        steps=1_001_472,
        siirl=("trainer=mujoco_control",),
        environments=1,
        decisions=2048,
        sb3={
            "batch_size": 64,
            "n_steps": 512,
            "gamma": 0.98,
            "learning_rate": 2.0633e-05,
            "ent_coef": 0.000401762,
            "clip_range": 0.1,
            "n_epochs": 20,
            "gae_lambda": 0.92,
            "max_grad_norm": 0.8,
            "vf_coef": 0.58096,
            "policy_kwargs": MUJOCO_NETWORKS,
        },
        sb3_environments=1,
        normalize=True,
    ),
}
"""The zoo has LunarLander-v2, Hopper-v4 and HalfCheetah-v4; later versions get their settings."""

Episodes = list[tuple[int, float, int]]
"""Environment steps so far, mean return, and number of the episodes that ended there."""


def main(words: Sequence[str] | None = None) -> None:
    """Run the missing arms, write them, print the table."""
    arguments = _arguments(words)
    if arguments.sb3:
        _train_sb3(arguments.sb3, seed=arguments.seeds[0], file=Path(arguments.file))
        return
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"runs": []}
    done = {(run["task"], run["seed"], run["arm"]) for run in results["runs"]}
    for task in () if arguments.table else arguments.tasks:
        for seed in arguments.seeds:
            for arm in ARMS:
                if (task, seed, arm) in done:
                    continue
                results["runs"].append(_run(task, seed=seed, arm=arm))
                results |= {"machine": describe_machine(), "note": arguments.note}
                results["stable_baselines3"] = version("stable-baselines3")
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(table(results))
    print(table(results))


def _run(task: str, *, seed: int, arm: str) -> dict[str, Any]:
    settings = TASKS[task]
    with tempfile.TemporaryDirectory() as folder:
        command = (
            _siirl_command(task, seed=seed, folder=folder)
            if arm == "siirl"
            else _sb3_command(task, seed=seed, folder=folder)
        )
        print(f"{task}, seed {seed}, {arm}: {' '.join(command[1:])}", flush=True)
        begin, used = time.monotonic(), _children_seconds()
        subprocess.run(
            command,
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        seconds, processor = time.monotonic() - begin, _children_seconds() - used
        episodes = _siirl_episodes(folder, task) if arm == "siirl" else _sb3_episodes(folder)
    tenths = by_tenths(episodes, steps=settings.steps)
    return {
        "task": task,
        "seed": seed,
        "arm": arm,
        "command": [word for word in command[1:] if folder not in word],
        "steps": settings.steps,
        "tenths": tenths,
        "last": tenths[-1],
        "mean": statistics.fmean(value for value in tenths if value is not None),
        "revision": describe_machine()["revision"],
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor, 1),
    }


def _siirl_command(task: str, *, seed: int, folder: str) -> list[str]:
    settings = TASKS[task]
    updates = settings.steps // (settings.environments * settings.decisions)
    return [
        sys.executable,
        *("-m", "siirl.train", *COMMON, f"env.id={task}", *settings.siirl, *OUTPUT),
        *(f"trainer.total_steps={updates}", f"trainer.seed={seed}"),
        f"trainer.output_dir={folder}",
    ]


def _sb3_command(task: str, *, seed: int, folder: str) -> list[str]:
    return [
        sys.executable,
        *("-m", "benchmarks.control", "--sb3", task, "--seeds", str(seed)),
        *("--file", f"{folder}/episodes.json"),
    ]


def _siirl_episodes(folder: str, task: str) -> Episodes:
    (file,) = Path(folder).glob("*/*/metrics.jsonl")
    settings = TASKS[task]
    of_update = settings.environments * settings.decisions
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return [
        (record["step"] * of_update, record["rollout/return"], int(record["rollout/episodes"]))
        for record in records
        if record.get("rollout/episodes")
    ]


def _sb3_episodes(folder: str) -> Episodes:
    found = json.loads((Path(folder) / "episodes.json").read_text())
    return [(steps, value, 1) for steps, value in found]


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def by_tenths(episodes: Episodes, *, steps: int) -> list[float | None]:
    """Mean return of the episodes that ended in each tenth of the steps; None without any."""
    result: list[float | None] = []
    for tenth in range(TENTHS):
        first, last = steps * tenth / TENTHS, steps * (tenth + 1) / TENTHS
        inside = [(value, count) for at, value, count in episodes if first < at <= last]
        episodes_inside = sum(count for _, count in inside)
        total = sum(value * count for value, count in inside)
        result.append(total / episodes_inside if episodes_inside else None)
    return result


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "# python -m benchmarks.control",
        "",
        f"Stable-Baselines3 {results.get('stable_baselines3', '')} with the zoo's settings. "
        f"{results.get('note', '')}".strip(),
        "",
        "| task | steps | seeds | arm | return in the last tenth (each seed) | mean over tenths | "
        "processor s | s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task in TASKS:
        for arm in ARMS:
            runs = [run for run in results["runs"] if (run["task"], run["arm"]) == (task, arm)]
            if not runs:
                continue
            seeds = ", ".join(str(run["seed"]) for run in runs)
            last = [run["last"] for run in runs]
            lines.append(
                f"| {task} | {runs[0]['steps']:,} | {seeds} | "
                f"{arm} | {statistics.fmean(last):.1f} ({', '.join(f'{x:.0f}' for x in last)}) | "
                f"{statistics.fmean(run['mean'] for run in runs):.1f} | "
                f"{statistics.fmean(run['processor_seconds'] for run in runs):.0f} | "
                f"{statistics.fmean(run['seconds'] for run in runs):.0f} |"
            )
    return "\n".join(lines) + "\n"


def _train_sb3(task: str, *, seed: int, file: Path) -> None:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    settings = TASKS[task]
    environment: Any = make_vec_env(task, n_envs=settings.sb3_environments, seed=seed)
    if settings.normalize:
        environment = VecNormalize(environment, gamma=settings.sb3["gamma"])
    found: list[tuple[int, float]] = []

    class Episodes(BaseCallback):
        def _on_step(self) -> bool:
            for info in self.locals["infos"]:
                if "episode" in info:
                    found.append((self.num_timesteps, float(info["episode"]["r"])))
            return True

    options = {name: _schedule(value) for name, value in settings.sb3.items()}
    if "policy_kwargs" in options:
        kind = getattr(torch.nn, options["policy_kwargs"]["activation_fn"])
        options["policy_kwargs"] = {**options["policy_kwargs"], "activation_fn": kind}
    model = PPO("MlpPolicy", environment, seed=seed, device="cpu", **options)
    model.learn(settings.steps, callback=Episodes())
    file.write_text(json.dumps(found))


def _schedule(value: Any) -> Any:
    if not (isinstance(value, str) and value.startswith("lin_")):
        return value
    first = float(value.removeprefix("lin_"))
    return lambda left: first * left


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--note", default="", help="what else ran on the machine")
    parser.add_argument("--table", action="store_true", help="print the results, run nothing")
    parser.add_argument("--sb3", help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
