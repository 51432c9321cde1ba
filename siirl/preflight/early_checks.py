"""Checks that need neither torch nor the graph: most refusals, within a second."""

import functools
import os
from collections.abc import Callable, Collection, Sequence

from envs.base import ENCODER_STREAM, RECORDER_STREAM, EnvSpec
from siirl.errors import ConfigError, MissingAssetError, SiirlError, refuse
from siirl.params import sizes
from siirl.params.agents import group_configs, owners, place_of
from siirl.params.domains import is_text
from siirl.params.env_args import EnvArguments
from siirl.params.env_spec import describe_env
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.agent_checks import (
    agent_problems,
    by_group,
    role_problems,
    sharing_problems,
    unread_of_agents,
)
from siirl.preflight.config_checks import config_problems
from siirl.preflight.environment_checks import engine_problems, environment_problems
from siirl.preflight.hub_pins import names_of_hub, pin_hub_places
from siirl.preflight.machine import (
    can_compile,
    compile_problems,
    device_problems,
    device_slots,
    offload_problems,
    process_problems,
    require_linux,
)
from siirl.preflight.needed_files import file_problems, reward_model_problems
from siirl.preflight.ungraded_rows import ask_ungraded_rows
from siirl.preflight.unread import unread_in_domain, unread_problems


def check_early(config: SiiRLArguments, *, named: Collection[str] = ()) -> EnvSpec:
    """Check a training run's configuration, files and environment spec; report all errors at once.

    Sets `env.kwargs.ungraded` if the user left it open (`siirl.preflight.ungraded_rows`).

    Args:
        config: The run's configuration.
        named: Keys set on the command line (`siirl.params.parser.ParsedConfig.named`).

    Returns:
        The environment's spec.

    Raises:
        ConfigError: A configuration that cannot work, or a key that nothing reads.
        MissingAssetError: A missing file or folder.
        CheckpointError: Truncated or damaged weights.
    """
    if config.agent_configs:
        return _check_agents(config, named=named)
    unread = functools.partial(unread_in_domain, config, named=named)
    return _check(
        config,
        [*unread_problems(config, named=named), *_offload_problems(config)],
        check_domain=lambda spec: [
            *role_problems(config, {0: spec}),
            *unread(text=is_text(spec)),
            *reward_model_problems(config),
        ],
    )


def _check_agents(config: SiiRLArguments, *, named: Collection[str]) -> EnvSpec:
    """`check_early` for a run with agent groups; returns the spec of the lowest group's
    environment.
    """
    require_linux()
    errors = [
        *_machine_problems(config),
        *agent_problems(config),
        *by_group(config, config_problems),
        *by_group(config, file_problems),
        *by_group(config, reward_model_problems),
    ]
    groups = group_configs(config)
    if any(not own.env.name or _lacks_id(own.env) for own in groups.values()):
        refuse(errors)
    specs: dict[int, EnvSpec] = {}
    for group, own in groups.items():
        ask_ungraded_rows(own)
        try:
            specs[group] = describe_env(own, streams=_streams(own), trial=True)
        except (ConfigError, MissingAssetError) as error:
            refuse([*errors, type(error)(f"{place_of(group)}: {error}")])
            raise
    places = {id(own): group for group, own in groups.items()}
    refuse(
        [
            *errors,
            *by_group(config, lambda own: environment_problems(own, specs[places[id(own)]])),
            *sharing_problems(groups, owners(config.agents), specs),
            *role_problems(config, specs),
            *unread_of_agents(config, specs, named=named),
            *by_group(config, _offload_problems),
        ]
    )
    return specs[min(specs)]


def key_problems(
    config: SiiRLArguments, spec: EnvSpec, *, named: Collection[str]
) -> list[SiirlError]:
    """Keys that `check_early` refuses because of other keys or of this machine. Left out: files,
    servers, and what the environment needs.

    Args:
        config: As there.
        spec: The environment's spec.
        named: As there.
    """
    policy = config.actor_rollout_ref
    return [
        *_machine_problems(config),
        *config_problems(config),
        *unread_problems(config, named=named),
        *unread_in_domain(config, text=is_text(spec), named=named),
        *_offload_problems(config),
        *(engine_problems(policy.rollout, config.trainer, config.dag) if is_text(spec) else []),
    ]


def check_before_evaluation(config: SiiRLArguments) -> EnvSpec:
    """`check_early` for an evaluation: keys that only training reads may be set."""
    return _check(
        config,
        [],
        trains=False,
        check_domain=lambda spec: [
            *_one_policy(spec),
            *(reward_model_problems(config) if spec.leaves_ungraded else []),
        ],
    )


def _one_policy(spec: EnvSpec) -> list[SiirlError]:
    if not spec.agent_names:
        return []
    return [
        ConfigError(
            f"An evaluation plays one policy, but {spec.name!r} has the agents "
            f"{', '.join(spec.agent_names)}: use the run's own evaluations (val/all/success_rate "
            "in metrics.jsonl), and raise trainer.val_episodes for more episodes."
        )
    ]


def _check(
    config: SiiRLArguments,
    unread: Sequence[SiirlError],
    *,
    trains: bool = True,
    check_domain: Callable[[EnvSpec], Sequence[SiirlError]],
) -> EnvSpec:
    require_linux()
    errors: list[SiirlError] = [
        *_machine_problems(config),
        *config_problems(config, trains=trains),
        *unread,
    ]
    if next(names_of_hub(config), None) is not None:
        refuse(errors)  # before anything is downloaded
        pin_hub_places(config)
    errors += file_problems(config)
    if not config.env.name or _lacks_id(config.env):
        refuse(errors)  # config_problems reports it; without a name there is no spec
    ask_ungraded_rows(config)
    try:
        spec = describe_env(config, streams=_streams(config) if trains else (), trial=True)
    except (ConfigError, MissingAssetError) as error:
        refuse([*errors, error])
        raise
    refuse(
        [
            *errors,
            *environment_problems(config, spec, trains=trains),
            *check_domain(spec),
        ]
    )
    return spec


def _streams(config: SiiRLArguments) -> list[str]:
    """The frames that a training requests from its environment."""
    films = config.trainer.record_episodes or config.trainer.record_val_episodes
    return [
        *([RECORDER_STREAM] if films else []),
        *([ENCODER_STREAM] if sizes.needs_video(config.reward) else []),
    ]


def _lacks_id(env: EnvArguments) -> bool:
    return env.name in ("gymnasium", "verifiers") and not env.id


def _offload_problems(config: SiiRLArguments) -> list[SiirlError]:
    return list(
        offload_problems(
            config.actor_rollout_ref, config.cluster, config.trainer, slots=device_slots
        )
    )


def _machine_problems(config: SiiRLArguments) -> list[SiirlError]:
    """Ranks and threads beyond the machine's; threads of impossible ranks are not checked."""
    cores = len(os.sched_getaffinity(0))
    policy = config.actor_rollout_ref
    devices = device_problems(config)
    return [
        *(list(devices) or process_problems(config, cores=cores)),
        *compile_problems(policy.actor, policy.rollout, config.dag, compilers=can_compile),
    ]
