"""Registry of environments by name; unregistered ones are named `module:Class`.

`make_env` passes its keyword arguments to the constructor unchanged. Left out: configuration.
"""

import asyncio
import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from envs.base import Environment, EnvSpec
from envs.mistakes import place_of
from envs.names import listed, nearest, refuse_path
from envs.spec_process import SHIPPED, user_env_spec, warn_of

ENVS: dict[str, str] = {
    "metaworld": "envs.metaworld.metaworld_env:MetaWorldEnv",
    "libero": "envs.libero.libero_env:LiberoEnv",
    "gymnasium": "envs.gymnasium:GymnasiumEnv",
    "sandbox": "envs.sandbox.sandbox_env:SandboxEnv",
    "math": "envs.math.math_env:MathEnv",
    "tools": "envs.tools.tool_env:ToolEnv",
    "reasoning_gym": "envs.reasoning_gym_env:ReasoningGymEnv",
    "verifiers": "envs.verifiers_env:VerifiersEnv",
    "openenv": "envs.openenv.openenv_env:OpenEnvEnv",
}
"""Name to `module:Class`."""

EnvironmentClass = TypeVar("EnvironmentClass", bound=type[Environment])


def register_env(name: str) -> Callable[[EnvironmentClass], EnvironmentClass]:
    """Class decorator: register an environment as `name`.

    The name is known in processes that import its module. Pass `module:Class` to a server in
    another process, which imports it.

    Raises:
        ValueError: The name is taken by another class.
    """

    def register(environment_class: EnvironmentClass) -> EnvironmentClass:
        reference = f"{environment_class.__module__}:{environment_class.__qualname__}"
        if ENVS.setdefault(name, reference) != reference:
            raise ValueError(
                f"Environment name {name!r} is already registered for {ENVS[name]}; "
                f"choose another for {reference}."
            )
        return environment_class

    return register


def portable_name(name: str) -> str:
    """Return a name that resolves in any process: a shipped one, or `module:Class`."""
    reference = ENVS.get(name, name)
    return name if reference.startswith(SHIPPED) else reference


def env_class(name: str) -> type[Environment]:
    """Return the class that is registered as `name` or named `module:Class`; imports its module.

    Raises:
        ValueError: No such name, module or class, or not an `Environment`; the message has the
            remedy.
    """
    reference = ENVS.get(name, name)
    module_name, colon, qualified = reference.partition(":")
    if not colon:
        raise ValueError(
            f"Unknown environment {name!r}.{nearest(name, tuple(ENVS))} "
            f"Known: {listed(name, sorted(ENVS))}; or give module:Class."
        )
    refuse_path(module_name, what=f"Environment {name!r}")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but one of its imports does not: keep that message
        raise ValueError(
            f"Environment {name!r}: there is no module {error.name!r}; is it on the Python path?"
        ) from error
    for part in qualified.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise ValueError(f"Environment {name!r}: {error}.") from error
    if not (inspect.isclass(found) and issubclass(found, Environment)):
        raise ValueError(
            f"Environment {name!r} is not a subclass of envs.base.Environment. "
            "Wrap a class with the 3-value step in envs.adapter.adapt(Class, spec=...); "
            "a gymnasium environment runs as env=gymnasium with its id."
        )
    return found


def shipped_class(name: str) -> type[Environment] | None:
    """Return the class of a shipped environment; None for other names, so no user code runs."""
    return env_class(name) if ENVS.get(name, "").startswith(SHIPPED) else None


def asks_questions(name: str) -> bool:
    """Whether `name` is a shipped environment whose tasks are sources of questions."""
    shipped = shipped_class(name)
    return shipped is not None and shipped.asks_questions


def make_env(name: str, **kwargs: Any) -> Environment:
    """Make the environment registered as `name` or named by `module:Class`.

    `kwargs` go to its constructor.

    Raises:
        ValueError: An unknown name (the message lists the known ones), an argument that the
            constructor does not have or refuses, or a missing one.
    """
    environment_class = env_class(name)
    lacking = sorted(environment_class.__abstractmethods__)
    if lacking:
        raise ValueError(
            f"Environment {name!r} does not define {', '.join(lacking)}, which an "
            f"envs.base.Environment must have{place_of(environment_class)}: define them."
        )
    signature = inspect.signature(environment_class)
    takes_any = any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()
    )
    unknown = [] if takes_any else sorted(set(kwargs) - set(signature.parameters))
    if unknown:
        arguments = list(signature.parameters)
        hint = nearest(unknown[0], arguments)
        raise ValueError(
            f"Environment {name!r} has no argument {unknown[0]!r}.{hint} "
            f"Known: {listed(unknown[0], arguments)}."
        )
    missing = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.name not in kwargs
    ]
    if missing:
        raise ValueError(
            f"Environment {name!r} needs its argument {missing[0]!r}: set env.{missing[0]}, or "
            f"env.kwargs.{missing[0]} for your own class."
        )
    return environment_class(**kwargs)


def env_spec(
    name: str, streams: Collection[str] = (), trial: bool = False, /, **kwargs: Any
) -> EnvSpec:
    """Return the spec of the environment that `make_env` would make.

    `streams` are the frames that a job will request: a `render` that cannot draw them raises here,
    if drawing needs no simulator (`Environment.check_drawing`). With `trial`, a user's environment
    plays its first step (`envs.trial`).

    Simulators are built at the first reset, so without `trial` this is cheap and needs no display
    library. A user-defined class is constructed in a child process (`envs.spec_process`).

    Raises:
        ValueError: An unknown name, or constructor arguments that `make_env` refuses.
        SpecUnknown: A user-defined class that cannot be constructed, or fails the trial.
        Misbehaved: An environment that a package registers in Gymnasium fails the trial.
    """
    reference = ENVS.get(name, name)
    if _is_own(reference, kwargs):
        return user_env_spec(name, reference=reference, kwargs=kwargs, streams=streams, trial=trial)
    environment = make_env(name, **kwargs)
    environment.check_drawing(streams)
    if trial and not is_known(reference, environment):
        from envs.trial import try_first_step  # it imports gymnasium

        warn_of(asyncio.run(try_first_step(environment)), name=name, id=kwargs.get("id"))
    return environment.spec


def is_known(reference: str, environment: Environment) -> bool:
    """Whether tests of siirl or Gymnasium cover the environment, so that it needs no trial."""
    return reference.startswith(SHIPPED) and environment.is_tested


def _is_own(reference: str, kwargs: Mapping[str, Any]) -> bool:
    """Whether the constructor is user code in an importable module, not in the running script."""
    if reference.startswith(SHIPPED):
        return ":" in str(kwargs.get("id", ""))  # `module:id`, which Gymnasium imports
    return ":" in reference and not reference.startswith("__main__:")
