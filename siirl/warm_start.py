"""`python -m siirl.warm_start`: demonstrations from scripted experts, behaviour cloning on them, a policy folder to start RL from.

    python -m siirl.warm_start --output my_policy env=mujoco env.tasks='[drawer-open,door-open]'

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
from envs.mujoco import expert
from envs.registry import make_env
from siirl.engine.behaviour_cloning import CloningData, Demonstration, clone, collect_demonstration
from siirl.errors import ConfigError, SiirlError
from siirl.models.loader import build_policy, save_policy
from siirl.params import SiiRLArguments
from siirl.params.parser import parse_config
from siirl.params.references import load_reference

# The last tenth of the evaluation seeds (0 to 999,999, siirl.data_coordinator.loader), which no evaluation gets to.
FIRST_SEED = 900_000
CLIP_EVERY = 8  # environment steps between the frames of a clip, as `reward.frame_every`


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    flags = _parser().parse_intermixed_args(arguments)
    try:
        config = parse_config(["actor_rollout_ref.model.path=null", *flags.overrides])
        run(flags, config, command="python -m siirl.warm_start " + shlex.join(sys.argv[1:] if arguments is None else arguments))
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
    parser.add_argument("--updates", type=int, default=300, help="optimiser steps; more give a better start")
    parser.add_argument("--batch-rows", type=int, default=128, help="observations of an optimiser step")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="peak of the one-cycle schedule")
    parser.add_argument("--clips", type=Path, help="also write the demonstrations' clips, for reward.demonstrations=FILE")
    parser.add_argument("--expert", help="module:function of your own: task name -> (environment -> action); default: Meta-World's")
    parser.add_argument("overrides", nargs="*", help="group=option and key=value, as for siirl.train")
    return parser


def run(flags: argparse.Namespace, config: SiiRLArguments, *, command: str) -> None:
    """Collect, clone, save."""
    torch.set_num_threads(1)
    make_expert: Callable[[str], Any] = expert if flags.expert is None else load_reference(flags.expert, place="--expert")
    if flags.expert is None and config.env.name != "mujoco":
        raise ConfigError(f"env.name={config.env.name} has no scripted experts of ours: give --expert module:function.")
    environment = make_env(config.env.name, **config.env.constructor_kwargs())
    with Progress() as progress:
        demonstrations = _collect(flags, config, environment, make_expert, progress)
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
    flags: argparse.Namespace, config: SiiRLArguments, environment: Environment, make_expert: Callable[[str], Any], progress: Progress
) -> list[Demonstration]:
    tasks = environment.spec.tasks
    bar = progress.add_task("demonstrations", total=flags.demonstrations * len(tasks))
    generator = np.random.default_rng(config.trainer.seed)
    demonstrations: list[Demonstration] = []
    for task in tasks:
        scripted = make_expert(task)
        attempts = range(FIRST_SEED, FIRST_SEED + 10 * flags.demonstrations)
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


if __name__ == "__main__":
    sys.exit(main())
