"""The spec of the environment that a configuration describes."""

from collections.abc import Collection

from envs.base import EnvSpec
from envs.mistakes import describe_error
from envs.registry import env_spec
from envs.spec_process import SpecUnknown
from siirl.errors import ConfigError, MissingAssetError
from siirl.params.build import as_text
from siirl.params.plug_ins import import_user_modules
from siirl.params.references import is_reference
from siirl.params.training_args import SiiRLArguments


def describe_env(
    config: SiiRLArguments, *, streams: Collection[str] = (), trial: bool = False
) -> EnvSpec:
    """The spec of the environment that `env` describes. Imports `user_modules` first, which may
    register it. With `streams`, the frames that the job will request, a first picture is drawn if
    that is cheap (`envs.base.Environment.check_drawing`). With `trial`, a user's environment plays
    its first step (`envs.trial`), unless environments run on other machines.

    Raises:
        ConfigError: The environment does not exist or refuses its arguments, or a module cannot be
            imported.
        MissingAssetError: The environment needs a package or a library that is missing.
    """
    import_user_modules(config.user_modules)
    kwargs = config.env.constructor_kwargs()
    trial = trial and config.cluster.address is None
    try:
        return env_spec(config.env.name, streams, trial, **kwargs)
    except (ValueError, SpecUnknown) as error:
        raise ConfigError(f"env.name={config.env.name}: {error}") from error
    except Exception as error:  # a third-party constructor may raise any class
        if is_reference(config.env.name):
            raise ConfigError(
                f"env.name={config.env.name}: making it raised {describe_error(error)}."
            ) from error
        if isinstance(error, RuntimeError | ImportError):
            raise MissingAssetError(f"env.name={config.env.name}: {error}") from error
        if config.env.name != "gymnasium" and not config.env.kwargs:
            raise
        asked = (
            f"env.id={config.env.id}"
            if config.env.name == "gymnasium"
            else f"env.name={config.env.name}"
        )
        raise ConfigError(
            f"{asked} env.kwargs={as_text(config.env.kwargs)}: making it and taking one step "
            f"raised {describe_error(error)}; look at env.kwargs."
        ) from error
