"""Checks of the models of a job of VLA policies: policy, actions, video encoder, demonstrations."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from envs.archives import DAMAGE
from envs.base import EnvSpec
from envs.mistakes import describe_error
from envs.names import listed_tasks
from siirl.algos.distributions import ActionDistribution
from siirl.dag_worker.embodied_components import make_encoder
from siirl.engine.critic.value_model import PolicyFeatures
from siirl.engine.reward_manager.demonstration_clips import load_demonstration_clips
from siirl.errors import ConfigError, SiirlError, UnknownNameError
from siirl.files.paths import find
from siirl.files.weight_files import parameters_in
from siirl.models import ActionTokenizer, ContinuousActions
from siirl.models.policy import Policy
from siirl.models.policy_loader import build_policy
from siirl.params import SiiRLArguments, sizes
from siirl.params.build import as_text
from siirl.params.compose import shipped_values
from siirl.params.key_names import MODEL_OPTIONS, MODEL_POLICY
from siirl.params.references import check_call, is_reference, load_reference
from siirl.params.reward_args import RewardArguments
from siirl.preflight.machine import total_memory_bytes
from siirl.preflight.memory import size_text

# parameters: smaller policies are built before the start as well, in at most a second
BUILT_TWICE = 100_000_000
LOADED_TWICE_BYTES = 4 * BUILT_TWICE  # the same limit for a video encoder


def check_policy(
    config: SiiRLArguments,
    spec: EnvSpec,
    *,
    with_critic: bool = False,
    with_adapters: bool = False,
    resumed: Path | None = None,
    changed: Collection[str] = (),
) -> None:
    """Build the policy before any process starts, to refuse one that does not fit.

    Large weights are not loaded twice. For an OpenVLA, names and shapes are compared; for a user's
    policy with large weights, the reference is imported and its signature checked. `resumed`
    is the policy's folder in the checkpoint that the job continues, and `changed` are the options
    that differ from those of its run.

    Raises:
        ConfigError: A policy that does not fit the environment, unknown options, or user code that
            raises.
        CheckpointError: Weights of another model.
    """
    model = config.actor_rollout_ref.model
    own = is_reference(model.policy)
    path = None if model.path is None else str(find(model.path))
    large = path is not None and parameters_in(path) > BUILT_TWICE
    place = f"{MODEL_POLICY}={model.policy}"
    if own:
        make = load_reference(model.policy, place=MODEL_POLICY)
        _check_options_of(make, (spec, path), model.options, place=place)
        if large:
            return
    place += f" {MODEL_OPTIONS}={as_text(model.options)}"
    build = partial(
        build_policy,
        model.policy,
        path=path,
        spec=spec,
        seed=config.trainer.seed,
        options=model.options,
        weights=not large,
    )
    try:
        if path is None and not own:
            with torch.device("meta"):
                _check_size(build(), spec, place=place, env_name=config.env.name)
        policy = build()
        if path is not None:
            policy.check_options(spec, options=model.options, path=path)
        if resumed is not None:
            policy.check_resumed(resumed, changed=changed)
        check_actions(policy.action_tokenizer, spec, place=place)
        _require_class(policy, place=place)
        policy.distribution.check_settings(
            temperature=config.actor_rollout_ref.rollout.temperature,
            top_p=config.actor_rollout_ref.rollout.top_p,
            entropy_coef=config.actor_rollout_ref.actor.entropy_coef,
        )
        if with_adapters:
            policy.check_adapters(model.lora)
        if with_critic:
            PolicyFeatures(policy)  # refuses a policy without features; removes its head
    except UnknownNameError as error:
        if model.options not in shipped_values().get(MODEL_OPTIONS, ()):
            raise
        raise UnknownNameError(_perhaps_of_a_preset(error, model.options)) from error
    except SiirlError:
        raise
    except Exception as error:  # a user's policy may raise any class
        if own:
            raise ConfigError(
                f"{place}: building it for env={config.env.name} raised {describe_error(error)}."
            ) from error
        if not isinstance(error, ArithmeticError | RuntimeError | TypeError | ValueError):
            raise
        raise ConfigError(f"{place} does not fit env={config.env.name}: {error}") from error


def _check_options_of(
    make: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any], *, place: str
) -> None:
    try:
        check_call(make, arguments, options, place=place, call="(spec, path, **options)")
    except ConfigError as error:
        if not options:
            raise
        raise ConfigError(_perhaps_of_a_preset(error, options)) from error


def _perhaps_of_a_preset(error: SiirlError, options: Mapping[str, Any]) -> str:
    return (
        f"{error} The options are {as_text(options)}, perhaps of a trainer preset: "
        f"{MODEL_OPTIONS}={{}} or your own replace them."
    )


def _check_size(policy: nn.Module, spec: EnvSpec, *, place: str, env_name: str) -> None:
    """Raise ConfigError if the weights of `policy` do not fit into the memory of this machine."""
    needed = sum(each.numel() * each.element_size() for each in policy.parameters())
    if needed > total_memory_bytes():
        raise ConfigError(
            f"{place}: for the observations of env={env_name}, {spec.observation_space}, its "
            f"weights take {size_text(needed)}, but this machine has "
            f"{size_text(total_memory_bytes())} of memory. Make the observations smaller: with "
            "env.kwargs, or gymnasium.wrappers.ResizeObservation around the environment."
        )


def _require_class(policy: Policy, *, place: str) -> None:
    named: Any = policy.distribution  # a user may have set anything
    if not (isinstance(named, type) and issubclass(named, ActionDistribution)):
        raise ConfigError(
            f"{place}: its attribute distribution is {named!r}: name the class that forward "
            "returns, for example siirl.models.Gaussian."
        )
    if missing := sorted(getattr(named, "__abstractmethods__", ())):
        raise ConfigError(
            f"{place}: its distribution {named.__name__} lacks {', '.join(missing)}: define "
            f"{'each' if missing[1:] else 'it'} as siirl.models.ActionDistribution describes."
        )


def check_actions(
    coding: ActionTokenizer | ContinuousActions, spec: EnvSpec, *, place: str
) -> None:
    """Check that the lowest and highest coded actions are actions of the environment.

    Raises:
        ConfigError: An action lies outside the action space.
    """
    for action in coding.extremes():
        if not spec.action_space.contains(action):
            raise ConfigError(
                f"{place} can act with {action}, which is outside the action space "
                f"{spec.action_space} of environment {spec.name!r}: "
                "give its action_tokenizer the environment's bounds "
                "(siirl.models.ActionTokenizer.for_space)."
            )


def check_encoder(reward: RewardArguments) -> None:
    """Load the reward's video encoder if that takes at most a second; workers resolve hub ids.

    Raises:
        ConfigError: It is not an encoder.
    """
    name = reward.encoder
    if name is None or not sizes.needs_video(reward):
        return
    path = Path(name)
    if ("/" in name and not path.exists()) or _weights_bytes(path) > LOADED_TWICE_BYTES:
        return
    try:
        make_encoder(reward, device=torch.device("cpu"))
    except (KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"reward.encoder={name} cannot be loaded: {error} Use reward.encoder=tiny, or see "
            "vjepa.encoders."
        ) from error


def _weights_bytes(path: Path) -> int:
    files = path.glob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def check_demonstrations(reward: RewardArguments, spec: EnvSpec) -> None:
    """Open the file of demonstration clips.

    Raises:
        ConfigError: It holds no clips, or none of the job's tasks.
    """
    file = reward.demonstrations
    if file is None:
        return
    place = f"reward.demonstrations={file}"
    try:
        tasks = load_demonstration_clips(
            str(find(file)), tasks=spec.tasks, every=reward.frame_every
        )
    except (AttributeError, MemoryError, ValueError, *DAMAGE) as error:
        raise ConfigError(
            f"{place} holds no clips ({error}): make some with siirl warm-start "
            "--clips FILE, or name a LeRobot data set."
        ) from error
    if not tasks.keys() & set(spec.tasks):
        raise ConfigError(
            f"{place} has clips of {', '.join(sorted(tasks)) or 'nothing'}, but this job has the "
            f"tasks {listed_tasks(spec.tasks)}: use demonstrations of these, or leave it out."
        )
