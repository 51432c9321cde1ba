"""Checks that need neither torch nor the graph; most refusals come from them, within a second."""

import functools
import os
from collections.abc import Callable, Collection, Sequence

from envs.base import EnvSpec
from siirl.errors import ConfigError, MissingAssetError, SiirlError
from siirl.params.domains import is_text
from siirl.params.env_spec import describe_env
from siirl.params.refusals import refuse
from siirl.params.training_args import SiiRLArguments
from siirl.preflight.config_checks import config_problems, environment_problems
from siirl.preflight.machine import device_problems, process_problems, require_linux
from siirl.preflight.needed_files import file_problems
from siirl.preflight.ungraded_rows import ask_ungraded_rows
from siirl.preflight.unread import unread_in_domain, unread_problems


def check_early(config: SiiRLArguments, *, named: Collection[str] = ()) -> EnvSpec:
    """Check a training run's configuration, files and environment spec; report all errors at once.

    Sets `env.kwargs.ungraded` if the user left it open (`siirl.preflight.ungraded_rows`).

    Args:
        config: The run's configuration.
        named: Keys set on the command line (`siirl.params.parser.Parsed.named`).

    Returns:
        The environment's spec.

    Raises:
        ConfigError: A configuration that cannot work, or a key that nothing reads.
        MissingAssetError: A missing file or folder.
        CheckpointError: Truncated or damaged weights.
    """
    unread = functools.partial(unread_in_domain, config, named=named)
    return _check(
        config,
        unread_problems(config, named=named),
        check_domain=lambda spec: unread(text=is_text(spec)),
    )


def check_before_evaluation(config: SiiRLArguments) -> EnvSpec:
    """`check_early` for an evaluation: keys that only training reads may be set."""
    return _check(config, [], check_domain=lambda spec: [])


def _check(
    config: SiiRLArguments,
    unread: Sequence[SiirlError],
    *,
    check_domain: Callable[[EnvSpec], Sequence[SiirlError]],
) -> EnvSpec:
    require_linux()
    cores = len(os.sched_getaffinity(0))
    machine = list(device_problems(config)) or list(
        process_problems(config, cores=cores)
    )  # threads of impossible ranks are not checked
    errors: list[SiirlError] = [
        *machine,
        *config_problems(config),
        *file_problems(config),
        *unread,
    ]
    if not config.env.name or (config.env.name == "gymnasium" and not config.env.id):
        refuse(errors)  # config_problems reports it; without a name there is no spec
    ask_ungraded_rows(config)
    try:
        spec = describe_env(config)
    except (ConfigError, MissingAssetError) as error:
        refuse([*errors, error])
        raise
    refuse([*errors, *environment_problems(config, spec), *check_domain(spec)])
    return spec
