"""Warm starts before RL: VLA policies from demonstrations, text from answers.

Implements `siirl warm-start` after argument parsing. Left out: the training itself
(`siirl.imitation.behaviour_cloning`, `siirl.imitation.sft`).
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from envs.base import IMAGES, INSTRUCTION, PROPRIOCEPTION, Environment, EnvSpec
from envs.names import listed_tasks
from envs.registry import make_env
from envs.seeds import FIRST_DEMONSTRATION_SEED
from siirl.engine.training.tensor_files import let_others_read
from siirl.errors import ConfigError
from siirl.imitation.behaviour_cloning import (
    CloningData,
    Demonstration,
    clone,
    collect_demonstration,
    fit_scale,
)
from siirl.imitation.lerobot_demonstrations import read_demonstrations
from siirl.imitation.scripted_experts import ScriptedExpert, check_noise, make_experts
from siirl.imitation.sft import warm_start_on_answers
from siirl.imitation.sft_examples import SFT_SOURCES, sft_source
from siirl.imitation.warm_start_flags import (
    DEMONSTRATIONS,
    DIFFERENT_DEFAULTS,
    ROBOT_DEFAULTS,
    check_read,
    fill,
    text_defaults,
)
from siirl.imitation.work_progress import WorkProgress
from siirl.models.policy_loader import build_policy, save_policy
from siirl.params import SiiRLArguments
from siirl.params.domains import observation_parts
from siirl.params.env_args import EnvArguments
from siirl.params.env_spec import describe_env
from siirl.params.policies import LANGUAGE_MODEL
from siirl.params.training_args import TrainingArguments
from siirl.preflight.check_embodied import check_policy
from siirl.preflight.machine import check_machine

HARDLY_EVER = 0.01  # share of right samples: five of six groups of sixteen have none, so no signal
LONG = 0.8  # share of an episode's steps from which a demonstration leaves a policy little time
CLIP_EVERY = 8  # environment steps between frames of a clip, see `reward.frame_every`


def warm_start(flags: argparse.Namespace, config: SiiRLArguments, *, command: str) -> None:
    """Create the folder `flags.output`; `command` is recorded in it.

    Raises:
        ConfigError: The warm start is not possible with this configuration.
        MissingAssetError: The machine lacks an asset.
    """
    check_read(flags, env=config.env.name)
    if config.env.name in SFT_SOURCES:
        run_answers(flags, config, command=command)
    else:
        check_robot(config)
        run(flags, config, command=command)
    let_others_read(flags.output)


def check_robot(config: SiiRLArguments) -> None:
    """Check that environment, policy and memory allow behaviour cloning.

    It needs rendering, all three inputs of a VLA policy, a success flag, and a fitting policy.

    Raises:
        ConfigError: The environment or policy does not fit, or the machine lacks memory.
        MissingAssetError: The machine lacks an asset.
    """
    spec, path = describe_env(config), config.actor_rollout_ref.model.path
    if path is not None:
        raise ConfigError(
            f"actor_rollout_ref.model.path={path}: behaviour cloning starts from new weights; "
            "leave it out."
        )
    lacks = [
        repr(part)
        for part in (IMAGES, PROPRIOCEPTION, INSTRUCTION)
        if part not in observation_parts(spec)
    ]
    lacks += [] if spec.reports_success else ["flag of success"]
    if lacks:
        raise ConfigError(
            f"env.name={config.env.name} has no {' and no '.join(lacks)}, which demonstrations "
            "need. RL can start from new weights: "
            "siirl train ... actor_rollout_ref.model.path=null"
        )
    check_machine(config, spec)
    check_policy(config, spec)


def run(flags: argparse.Namespace, config: SiiRLArguments, *, command: str) -> None:
    """Collect or read demonstrations, clone, save."""
    torch.set_num_threads(1)
    asked_to_fit, asked_noise = flags.fit_proprioception, flags.noise
    fill(flags, ROBOT_DEFAULTS | DIFFERENT_DEFAULTS.get(config.env.name, {}))
    with WorkProgress() as progress, ExitStack() as stack:
        source = (
            _Experts(flags, config.env, config.trainer, stack)
            if flags.lerobot is None
            else _RecordedDemonstrations(flags, describe_env(config))
        )
        policy = build_policy(
            config.actor_rollout_ref.model.policy,
            path=None,
            spec=source.spec,
            seed=config.trainer.seed,
            options=config.actor_rollout_ref.model.options,
        )
        if asked_to_fit and policy.proprioception_layer is None:
            raise ConfigError(
                f"--fit-proprioception: {type(policy).__name__} has no proprioception_layer to "
                "fit; leave it out."
            )
        discrete = policy.action_tokenizer.discrete
        check_noise("--noise", asked_noise, discrete=discrete)
        flags.noise = 0.0 if discrete else flags.noise
        check_noise("--target-noise", flags.target_noise, discrete=discrete)
        demonstrations = source.demonstrations(progress)
        for line in describe_length(demonstrations, limit=source.spec.max_episode_steps):
            progress.console.print(line, soft_wrap=True, highlight=False, markup=False)
        data = CloningData.from_demonstrations(demonstrations, policy)
        if policy.proprioception_layer is not None and flags.fit_proprioception:
            fit_scale(policy.proprioception_layer, data.proprioception)
        if config.trainer.blind:
            data.pixel_values.zero_()
        final = _clone(flags, config.trainer, policy, data, progress)
    counts = {"demonstrations": len(demonstrations), "observations": len(data.actions)}
    tasks = list(dict.fromkeys(demonstration.task for demonstration in demonstrations))
    notes = {"command": command, "tasks": tasks, **counts, **final}
    # half the file size; training uses float32
    save_policy(policy, flags.output, notes=notes, dtype=torch.float16)
    if flags.clips is not None:
        _save_clips(flags.clips, demonstrations)
    print(
        f"Saved {flags.output}: {_describe_fit(final)}. "
        f"Measure it: siirl evaluate checkpoint={flags.output}"
    )


class _Experts:
    """Demonstrations from scripted experts in the environment."""

    def __init__(
        self,
        flags: argparse.Namespace,
        env: EnvArguments,
        trainer: TrainingArguments,
        stack: ExitStack,
    ) -> None:
        self.flags, self.trainer = flags, trainer
        self.usual_count = DEMONSTRATIONS.get(env.name, 2)
        self.environment = make_env(env.name, **env.constructor_kwargs())
        # otherwise OpenGL reports errors at interpreter exit
        stack.callback(lambda: asyncio.run(self.environment.close()))
        self.spec = self.environment.spec
        self.first_seed = self.spec.expert_seed or FIRST_DEMONSTRATION_SEED
        reference = flags.expert or self.spec.expert
        if not reference:
            raise ConfigError(
                f"env.name={env.name} has no scripted experts: give --expert module:function, or "
                "--lerobot DATASET."
            )
        place = "--expert" if flags.expert else f"expert of {env.name}"
        self.experts = make_experts(reference, self.spec.tasks, spec=self.spec, place=place)

    def demonstrations(self, progress: WorkProgress) -> list[Demonstration]:
        """Successful episodes of every task."""
        return _collect(
            self.flags,
            self.trainer,
            self.environment,
            self.experts,
            progress,
            first_seed=self.first_seed,
            default=self.usual_count,
        )


class _RecordedDemonstrations:
    """Demonstrations of a LeRobot data set."""

    def __init__(self, flags: argparse.Namespace, spec: EnvSpec) -> None:
        self.flags, self.spec = flags, spec

    def demonstrations(self, progress: WorkProgress) -> list[Demonstration]:
        """The data set's episodes of the environment's tasks."""
        bar = progress.add_task("reading demonstrations", total=None)
        cameras = self.flags.lerobot_cameras
        found = read_demonstrations(
            self.flags.lerobot,
            self.spec,
            cameras=None if cameras is None else cameras.split(","),
            most=self.flags.demonstrations,
        )
        progress.update(bar, total=len(found), completed=len(found))
        return found


def demonstrations_of_each(
    flags: Sequence[tuple[str | None, int]], tasks: Sequence[str], *, default: int = 2
) -> dict[str, int]:
    """Demonstrations per task: its own flag, else the flag for all tasks, else `default`.

    Raises:
        ConfigError: A flag names a task outside `env.tasks`.
    """
    said = dict(flags)
    if unknown := sorted(task for task in said if task is not None and task not in tasks):
        raise ConfigError(
            f"--demonstrations {unknown[0]}={said[unknown[0]]}: unknown task {unknown[0]!r}; the "
            f"tasks (env.tasks) are {listed_tasks(tasks)}."
        )
    return {task: said.get(task, said.get(None, default)) for task in tasks}


def _collect(
    flags: argparse.Namespace,
    trainer: TrainingArguments,
    environment: Environment,
    experts: Mapping[str, ScriptedExpert],
    progress: WorkProgress,
    *,
    first_seed: int,
    default: int,
) -> list[Demonstration]:
    wanted = demonstrations_of_each(flags.demonstrations, list(experts), default=default)
    bar = progress.add_task("demonstrations", total=sum(wanted.values()))
    generator = np.random.default_rng(trainer.seed)
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
            remedy = f"lower --noise={flags.noise}" if flags.noise else "without noise, correct it"
            raise ConfigError(
                f"The expert of {task!r} succeeded in {len(found)} of {len(attempts)} episodes: "
                f"{remedy}, or raise env.max_episode_steps if they end at its "
                f"{environment.spec.max_episode_steps} steps."
            )
        demonstrations += found
    return demonstrations


def _clone(
    flags: argparse.Namespace,
    trainer: TrainingArguments,
    policy: Any,
    data: CloningData,
    progress: WorkProgress,
) -> dict[str, float]:
    bar = progress.add_task("behaviour cloning", total=flags.updates)
    values: dict[str, float] = {}
    for values in clone(
        policy,
        data,
        steps=flags.updates,
        batch_rows=flags.batch_rows,
        learning_rate=flags.learning_rate,
        seed=trainer.seed,
        target_noise=flags.target_noise,
    ):
        progress.update(bar, advance=1, description=f"behaviour cloning, loss {values['loss']:.2f}")
    return {name: round(value, 4) for name, value in values.items() if name != "step"}


def _describe_fit(final: Mapping[str, float]) -> str:
    if "token_accuracy" in final:
        return f"{final['token_accuracy']:.0%} of the demonstrated tokens"
    return f"demonstrated actions within {final['action_error']:.1%} of half their range"


def describe_length(demonstrations: Sequence[Demonstration], *, limit: int) -> list[str]:
    """A line for each task whose median demonstration takes at least `LONG` of the `limit`."""
    steps: dict[str, list[int]] = {}
    for demonstration in demonstrations:
        steps.setdefault(demonstration.task, []).append(len(demonstration.actions))
    return [
        f"{task}: half of the demonstrations take {median(found):g} of {limit} steps or more, so a "
        "policy that acts a little more slowly fails: raise env.max_episode_steps."
        for task, found in steps.items()
        if median(found) >= LONG * limit
    ]


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
    """Fine-tune a language model on answers and save it."""
    policy = config.actor_rollout_ref.model.policy
    if policy != LANGUAGE_MODEL:
        raise ConfigError(
            f"actor_rollout_ref.model.policy={policy} outputs robot actions, but "
            f"env.name={config.env.name} is answered in text: choose model=tiny_lm, or leave it "
            "out."
        )
    torch.set_num_threads(1)
    fill(flags, text_defaults(sft_source(config.env).tasks))
    chosen = {
        name: getattr(flags, name) for name in ("updates", "batch_rows", "learning_rate", "stop_at")
    }
    notes = warm_start_on_answers(
        flags.output,
        initial=config.actor_rollout_ref.model,
        env=config.env,
        trainer=config.trainer,
        rollouts=config.actor_rollout_ref.rollout.n,
        command=command,
        **chosen,
    )
    measured = notes["held_out"]
    print(
        f"Saved {flags.output}: greedy accuracy {measured['greedy']:.0%} on "
        f"{measured['questions']} held-out questions, {measured['sampled']:.0%} sampled, entropy "
        f"{measured['entropy']:.2f} nats per token. Of groups of "
        f"{config.actor_rollout_ref.rollout.n} answers, {measured['mixed']:.0%} have right and "
        "wrong ones."
    )
    for line in describe_tasks(notes.get("held_out_by_task", {})):
        print(line)


def describe_tasks(measured: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A line with the success of each task, and one with tasks that RL can hardly improve."""
    lines = []
    if measured:
        for kind, title in (("sampled", "Sampled"), ("mixed", "Mixed groups")):
            shares = [f"{task} {found[kind]:.1%}" for task, found in measured.items()]
            lines.append(f"{title}, by task: {', '.join(shares)}.")
    hopeless = [task for task, found in measured.items() if found["sampled"] < HARDLY_EVER]
    if hopeless:
        lines.append(
            f"Hardly ever right: {', '.join(hopeless)}. Reinforcement learning gets almost no "
            "signal there: give more --updates, or choose an easier size."
        )
    return lines
