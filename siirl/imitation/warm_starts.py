"""What a policy learns before RL begins: robots from demonstrations of scripted experts, text from
answers.

What `python -m siirl.warm_start` does once its words are read. Left out: the learning itself,
`siirl.imitation.behaviour_cloning` and `siirl.imitation.supervised`.
"""

import argparse
import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import Progress

from envs.base import IMAGES, INSTRUCTION, PROPRIOCEPTION, Environment
from envs.registry import make_env
from siirl.dag_worker.checkpoint import let_others_read
from siirl.errors import ConfigError
from siirl.imitation.behaviour_cloning import (
    CloningData,
    Demonstration,
    Expert,
    clone,
    collect_demonstration,
    fit_scale,
)
from siirl.imitation.supervised import warm_start_on_answers
from siirl.imitation.teaching import LESSONS
from siirl.models.policy_loader import build_policy, save_policy
from siirl.params import SiiRLArguments
from siirl.params.domains import observation_parts
from siirl.params.env_spec import describe_env
from siirl.params.references import MISTAKES, describe_error, load_reference
from siirl.preflight.machine import check_machine
from siirl.preflight.prepare import check_policy

# Our scripted experts, and the first seed of demonstrations. Of mujoco the last tenth of the
# evaluation seeds (0 to 999,999, siirl.data_coordinator.task_stream), which no evaluation gets to.
# LIBERO has 50 initial states a task, and a seed only chooses one: below 1,000,000 those that
# evaluation starts from, above it the others.
EXPERTS = {
    "mujoco": ("envs.mujoco:expert", 900_000),
    "libero": ("envs.libero.expert.script:expert", 1_900_000),
}
OTHER_FIRST_SEED = 900_000
CLIP_EVERY = 8  # environment steps between the frames of a clip, as `reward.frame_every`


def warm_start(flags: argparse.Namespace, config: SiiRLArguments, *, command: str) -> None:
    """Make the folder `flags.output`; `command` is noted in it.

    Raises:
        ConfigError: What cannot be learned as it is asked for.
        MissingAssetError: The machine lacks something.
    """
    if config.env.name in LESSONS:
        run_answers(flags, config, command=command)
    else:
        check_robot(config)
        run(flags, config, command=command)
    let_others_read(flags.output)


def check_robot(config: SiiRLArguments) -> None:
    """Behaviour cloning needs a simulator that draws, all three inputs of a VLA policy, a flag of
    success, and a policy that fits.

    Raises:
        ConfigError: The environment or the policy lacks something, or the machine memory.
        MissingAssetError: The machine does.
    """
    spec, path = describe_env(config), config.actor_rollout_ref.model.path
    if path is not None:
        raise ConfigError(
            f"actor_rollout_ref.model.path={path}: behaviour cloning begins with new weights; leave it out."
        )
    lacks = [
        repr(part)
        for part in (IMAGES, PROPRIOCEPTION, INSTRUCTION)
        if part not in observation_parts(spec)
    ]
    lacks += [] if spec.reports_success else ["flag of success"]
    if lacks:
        raise ConfigError(
            f"env.name={config.env.name} has no {' and no '.join(lacks)}, which demonstrations need. RL can begin with new weights there: "
            "python -m siirl.train ... actor_rollout_ref.model.path=null"
        )
    check_machine(config, spec)
    check_policy(config, spec)


def run(flags: argparse.Namespace, config: SiiRLArguments, *, command: str) -> None:
    """Collect, clone, save."""
    torch.set_num_threads(1)
    _fill(flags, updates=300, batch_rows=128, learning_rate=1e-3)
    own_expert, first_seed = EXPERTS.get(config.env.name, (None, OTHER_FIRST_SEED))
    reference = flags.expert or own_expert
    if reference is None:
        raise ConfigError(
            f"env.name={config.env.name} has no scripted experts of ours: give --expert module:function."
        )
    environment = make_env(config.env.name, **config.env.constructor_kwargs())
    experts = make_experts(reference, environment.spec.tasks)
    with Progress() as progress, ExitStack() as stack:
        stack.callback(
            lambda: asyncio.run(environment.close())
        )  # or OpenGL complains when Python ends
        policy = build_policy(
            config.actor_rollout_ref.model.policy,
            path=None,
            spec=environment.spec,
            seed=config.trainer.seed,
            options=config.actor_rollout_ref.model.options,
        )
        if flags.fit_proprioception and policy.proprioception_layer is None:
            raise ConfigError(
                f"--fit-proprioception: {type(policy).__name__} has no proprioception_layer to fit; leave it out."
            )
        demonstrations = _collect(
            flags, config, environment, experts, progress, first_seed=first_seed
        )
        data = CloningData.from_demonstrations(demonstrations, policy)
        if policy.proprioception_layer is not None and flags.fit_proprioception:
            fit_scale(policy.proprioception_layer, data.proprioception)
        if config.trainer.blind:
            data.pixel_values.zero_()
        final = _clone(flags, config, policy, data, progress)
    counts = {"demonstrations": len(demonstrations), "observations": len(data.tokens)}
    notes = {"command": command, "tasks": list(experts), **counts, **final}
    save_policy(
        policy, flags.output, notes=notes, dtype=torch.float16
    )  # half the size in a repository; training is in float32
    if flags.clips is not None:
        _save_clips(flags.clips, demonstrations)
    print(
        f"Saved {flags.output}: {final['token_accuracy']:.0%} of the experts' tokens. "
        f"Measure it: python -m siirl.evaluate checkpoint={flags.output}"
    )


def make_experts(reference: str, tasks: Sequence[str]) -> dict[str, Expert]:
    """An expert for each task, from `module:function`.

    Raises:
        ConfigError: There is none of that name, or it makes no expert of a task's name.
    """
    make_expert: Callable[[str], Any] = load_reference(reference, place="--expert")
    experts: dict[str, Expert] = {}
    for task in tasks:
        try:
            experts[task] = make_expert(task)
        except MISTAKES as error:
            raise ConfigError(
                f"--expert={reference}: making the expert of {task!r} raised {describe_error(error)}."
            ) from error
        if not callable(experts[task]):
            made = type(experts[task]).__name__
            raise ConfigError(
                f"--expert={reference} made a {made} for {task!r}: it must be called with the environment."
            )
    return experts


def demonstrations_of_each(
    flags: Sequence[tuple[str | None, int]], tasks: Sequence[str]
) -> dict[str, int]:
    """How many demonstrations each task gets: what was said of it, else what was said of all, else
    two.

    Raises:
        ConfigError: A flag names a task that is not learned.
    """
    said = dict(flags)
    if unknown := sorted(task for task in said if task is not None and task not in tasks):
        raise ConfigError(
            f"--demonstrations {unknown[0]}={said[unknown[0]]}: the tasks (env.tasks) are {', '.join(tasks)}."
        )
    return {task: said.get(task, said.get(None, 2)) for task in tasks}


def _collect(
    flags: argparse.Namespace,
    config: SiiRLArguments,
    environment: Environment,
    experts: Mapping[str, Expert],
    progress: Progress,
    *,
    first_seed: int,
) -> list[Demonstration]:
    wanted = demonstrations_of_each(flags.demonstrations, list(experts))
    bar = progress.add_task("demonstrations", total=sum(wanted.values()))
    generator = np.random.default_rng(config.trainer.seed)
    demonstrations: list[Demonstration] = []
    for task, scripted in experts.items():
        attempts = range(first_seed, first_seed + 10 * wanted[task])
        found: list[Demonstration] = []
        for seed in attempts:
            if len(found) == wanted[task]:
                break
            demonstration = collect_demonstration(
                environment, scripted, task=task, seed=seed, noise=flags.noise, generator=generator
            )
            if demonstration is not None:
                found.append(demonstration)
                progress.advance(bar)
        if len(found) < wanted[task]:
            raise ConfigError(
                f"The expert of {task!r} succeeded in {len(found)} of {len(attempts)} episodes: lower --noise={flags.noise}."
            )
        demonstrations += found
    return demonstrations


def _clone(
    flags: argparse.Namespace,
    config: SiiRLArguments,
    policy: Any,
    data: CloningData,
    progress: Progress,
) -> dict[str, float]:
    bar = progress.add_task("behaviour cloning", total=flags.updates)
    values: dict[str, float] = {}
    for values in clone(
        policy,
        data,
        steps=flags.updates,
        batch_rows=flags.batch_rows,
        learning_rate=flags.learning_rate,
        seed=config.trainer.seed,
    ):
        progress.update(bar, advance=1, description=f"behaviour cloning, loss {values['loss']:.2f}")
    return {"loss": round(values["loss"], 4), "token_accuracy": round(values["token_accuracy"], 4)}


def _save_clips(file: Path, demonstrations: Sequence[Demonstration]) -> None:
    clips: dict[str, Any] = {
        f"{d.task}/{i:03d}": np.concatenate(
            [d.pixel_values[::CLIP_EVERY, 0], d.pixel_values[-1:, 0]]
        )
        for i, d in enumerate(demonstrations)
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, allow_pickle=False, **clips)


def run_answers(flags: argparse.Namespace, config: SiiRLArguments, *, command: str) -> None:
    """Teach answers to a language model, save."""
    torch.set_num_threads(1)
    _fill(flags, updates=700, batch_rows=128, learning_rate=1.5e-3)
    chosen = {
        name: getattr(flags, name) for name in ("updates", "batch_rows", "learning_rate", "stop_at")
    }
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
