"""`python -m siirl.warm_start`: a policy folder to start RL from. Robots learn from demonstrations of scripted experts, text from answers.

    python -m siirl.warm_start --output my_policy env=mujoco env.tasks='[drawer-open,door-open]'
    python -m siirl.warm_start --output my_model env=math env.tasks='[sums-3]'

Environment and policy come from the same configuration as training (`env=`, `model=`, `trainer.seed`, `trainer.blind`); what only a warm
start knows are the flags. Deterministic from the seed. Too good a start leaves nothing to learn: fewer demonstrations and fewer
updates make a worse one.
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import Progress

from envs.base import Environment
from envs.registry import make_env
from siirl.engine.behaviour_cloning import CloningData, Demonstration, clone, collect_demonstration
from siirl.engine.supervised import warm_start_on_answers
from siirl.engine.teaching import LESSONS
from siirl.errors import ConfigError, SiirlError
from siirl.models.loader import build_policy, save_policy
from siirl.params import SiiRLArguments
from siirl.params.parser import parse_config
from siirl.params.references import load_reference

# Our scripted experts, and the first seed of demonstrations. Of mujoco the last tenth of the evaluation seeds (0 to 999,999,
# siirl.data_coordinator.loader), which no evaluation gets to. LIBERO has 50 initial states a task, and a seed only chooses one: below
# 1,000,000 those that evaluation starts from, above it the others.
EXPERTS = {"mujoco": ("envs.mujoco:expert", 900_000), "libero": ("envs.libero.expert:expert", 1_900_000)}
OTHER_FIRST_SEED = 900_000
CLIP_EVERY = 8  # environment steps between the frames of a clip, as `reward.frame_every`


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    flags = _parser().parse_intermixed_args(arguments)
    try:
        config = parse_config(["actor_rollout_ref.model.path=null", *flags.overrides])
        start = RUNS.get(config.env.name, run)
        start(flags, config, command="python -m siirl.warm_start " + shlex.join(sys.argv[1:] if arguments is None else arguments))
    except SiirlError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m siirl.warm_start", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--output", required=True, type=Path, help="policy folder to write")
    parser.add_argument("--demonstrations", type=int, default=2, help="successful expert episodes of each task")
    parser.add_argument("--noise", type=float, default=0.3, help="deviation of the noise on the expert's actions; shows how to recover")
    parser.add_argument("--updates", type=int, help="optimiser steps, at most; more give a better start (robots 300, text 700)")
    parser.add_argument("--batch-rows", type=int, help="observations or questions of an optimiser step (128)")
    parser.add_argument("--learning-rate", type=float, help="peak of the schedule (robots 1e-3, text 1.5e-3)")
    parser.add_argument("--stop-at", type=float, default=0.4, help="text: share of right answers that is enough")
    parser.add_argument("--clips", type=Path, help="also write the demonstrations' clips, for reward.demonstrations=FILE")
    parser.add_argument("--expert", help="module:function of your own: task name -> (environment -> action); default: ours")
    parser.add_argument("overrides", nargs="*", help="group=option and key=value, as for siirl.train")
    return parser


def run(flags: argparse.Namespace, config: SiiRLArguments, *, command: str) -> None:
    """Collect, clone, save."""
    torch.set_num_threads(1)
    _fill(flags, updates=300, batch_rows=128, learning_rate=1e-3)
    own_expert, first_seed = EXPERTS.get(config.env.name, (None, OTHER_FIRST_SEED))
    reference = flags.expert or own_expert
    if reference is None:
        raise ConfigError(f"env.name={config.env.name} has no scripted experts of ours: give --expert module:function.")
    make_expert: Callable[[str], Any] = load_reference(reference, place="--expert")
    environment = make_env(config.env.name, **config.env.constructor_kwargs())
    with Progress() as progress:
        demonstrations = _collect(flags, config, environment, make_expert, progress, first_seed=first_seed)
        policy = build_policy(
            config.actor_rollout_ref.model.policy,
            path=None,
            spec=environment.spec,
            seed=config.trainer.seed,
            options=config.actor_rollout_ref.model.options,
        )
        data = CloningData.from_demonstrations(demonstrations, policy)
        if config.trainer.blind:
            data.pixel_values.zero_()
        final = _clone(flags, config, policy, data, progress)
    notes = {"command": command, "demonstrations": len(demonstrations), "observations": len(data.tokens), **final}
    save_policy(policy, flags.output, notes=notes, dtype=torch.float16)  # half the size in a repository; training is in float32
    if flags.clips is not None:
        _save_clips(flags.clips, demonstrations)
    print(
        f"Saved {flags.output}: {final['token_accuracy']:.0%} of the experts' tokens. "
        f"Measure it: python -m siirl.evaluate checkpoint={flags.output}"
    )


def _collect(
    flags: argparse.Namespace,
    config: SiiRLArguments,
    environment: Environment,
    make_expert: Callable[[str], Any],
    progress: Progress,
    *,
    first_seed: int,
) -> list[Demonstration]:
    tasks = environment.spec.tasks
    bar = progress.add_task("demonstrations", total=flags.demonstrations * len(tasks))
    generator = np.random.default_rng(config.trainer.seed)
    demonstrations: list[Demonstration] = []
    for task in tasks:
        scripted = make_expert(task)
        attempts = range(first_seed, first_seed + 10 * flags.demonstrations)
        found: list[Demonstration] = []
        for seed in attempts:
            if len(found) == flags.demonstrations:
                break
            demonstration = collect_demonstration(environment, scripted, task=task, seed=seed, noise=flags.noise, generator=generator)
            if demonstration is not None:
                found.append(demonstration)
                progress.advance(bar)
        if len(found) < flags.demonstrations:
            raise ConfigError(f"The expert of {task!r} succeeded in {len(found)} of {len(attempts)} episodes: lower --noise={flags.noise}.")
        demonstrations += found
    return demonstrations


def _clone(flags: argparse.Namespace, config: SiiRLArguments, policy: Any, data: CloningData, progress: Progress) -> dict[str, float]:
    bar = progress.add_task("behaviour cloning", total=flags.updates)
    values: dict[str, float] = {}
    for values in clone(
        policy, data, steps=flags.updates, batch_rows=flags.batch_rows, learning_rate=flags.learning_rate, seed=config.trainer.seed
    ):
        progress.update(bar, advance=1, description=f"behaviour cloning, loss {values['loss']:.2f}")
    return {"loss": round(values["loss"], 4), "token_accuracy": round(values["token_accuracy"], 4)}


def _save_clips(file: Path, demonstrations: Sequence[Demonstration]) -> None:
    clips: dict[str, Any] = {
        f"{d.task}/{i:03d}": np.concatenate([d.pixel_values[::CLIP_EVERY, 0], d.pixel_values[-1:, 0]]) for i, d in enumerate(demonstrations)
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, allow_pickle=False, **clips)


def run_answers(flags: argparse.Namespace, config: SiiRLArguments, *, command: str) -> None:
    """Teach answers to a language model, save."""
    torch.set_num_threads(1)
    _fill(flags, updates=700, batch_rows=128, learning_rate=1.5e-3)
    chosen = {name: getattr(flags, name) for name in ("updates", "batch_rows", "learning_rate", "stop_at")}
    measured = warm_start_on_answers(config, flags.output, command=command, **chosen)["held_out"]
    print(
        f"Saved {flags.output}: of {measured['questions']} held-out questions {measured['greedy']:.0%} right greedily, "
        f"{measured['sampled']:.0%} sampled, entropy {measured['entropy']:.2f} nats a token."
    )


def _fill(flags: argparse.Namespace, **defaults: float) -> None:
    """What was not given, which each kind of policy has its own default for."""
    for name, value in defaults.items():
        if getattr(flags, name) is None:
            setattr(flags, name, value)


RUNS = dict.fromkeys(LESSONS, run_answers)
"""Environments whose policy learns from answers; all others from demonstrations."""


if __name__ == "__main__":
    sys.exit(main())
