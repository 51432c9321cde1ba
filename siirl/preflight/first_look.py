"""The checks that need neither torch nor the graph: most refusals come from here, within a second."""

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


def first_look(config: SiiRLArguments, *, named: Collection[str] = ()) -> EnvSpec:
    """Refuse what the configuration of a training run, the files that it names and the
    environment's spec rule out, all of it together.

    `env.kwargs` is told whether rows without a grade are asked, where it leaves that open
    (`siirl.preflight.ungraded_rows`).

    Args:
        config: The run's configuration.
        named: Keys that the command line names (`siirl.params.parser.Parsed.named`).

    Returns:
        The environment's spec.

    Raises:
        ConfigError: What cannot work, and keys that nothing reads.
        MissingAssetError: A file or folder that is not there.
        CheckpointError: Weights that are not whole.
    """
    unread = functools.partial(unread_in_domain, config, named=named)
    return _look(
        config,
        unread_problems(config, named=named),
        of_domain=lambda spec: unread(text=is_text(spec)),
    )


def look_before_playing(config: SiiRLArguments) -> EnvSpec:
    """As `first_look`, for a run's configuration by which episodes are played: what only training
    reads may stand in it.
    """
    return _look(config, [], of_domain=lambda spec: [])


def _look(
    config: SiiRLArguments,
    unread: Sequence[SiirlError],
    *,
    of_domain: Callable[[EnvSpec], Sequence[SiirlError]],
) -> EnvSpec:
    require_linux()
    cores = len(os.sched_getaffinity(0))
    machine = list(device_problems(config)) or list(
        process_problems(config, cores=cores)
    )  # ranks that cannot be have no threads
    problems: list[SiirlError] = [
        *machine,
        *config_problems(config),
        *file_problems(config),
        *unread,
    ]
    if not config.env.name or (config.env.name == "gymnasium" and not config.env.id):
        refuse(problems)  # which say so; there is no spec to ask for
    ask_ungraded_rows(config)
    try:
        spec = describe_env(config)
    except (ConfigError, MissingAssetError) as error:
        refuse([*problems, error])
        raise
    refuse([*problems, *environment_problems(config, spec), *of_domain(spec)])
    return spec
