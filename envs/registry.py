"""Environments by name: a dict that can be read, a decorator to add one's own, and `module:Class`
for what is not registered.

Left out: configuration. What `make_env` is given beside the name goes to the constructor as it is.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from envs.arguments import nearest
from envs.base import Environment, EnvSpec
from envs.spec_process import SHIPPED, spec_of_own

ENVS: dict[str, str] = {
    "mujoco": "envs.mujoco:MetaWorldEnv",
    "libero": "envs.libero.environment:LiberoEnv",
    "gymnasium": "envs.gymnasium:GymnasiumEnv",
    "sandbox": "envs.sandbox.environment:SandboxEnv",
    "math": "envs.math.environment:MathEnv",
    "tools": "envs.tools.environment:ToolEnv",
}
"""Name to `module:Class`."""

EnvironmentClass = TypeVar("EnvironmentClass", bound=type[Environment])


def register_env(name: str) -> Callable[[EnvironmentClass], EnvironmentClass]:
    """Class decorator: make an environment known as `name`.

    It is known in processes that import its module; to a server elsewhere give `module:Class`,
    which imports it.

    Raises:
        ValueError: The name is taken by another class.
    """

    def register(environment_class: EnvironmentClass) -> EnvironmentClass:
        reference = f"{environment_class.__module__}:{environment_class.__qualname__}"
        if ENVS.setdefault(name, reference) != reference:
            raise ValueError(
                f"Environment name {name!r} is taken by {ENVS[name]}; choose another for {reference}."
            )
        return environment_class

    return register


def portable_name(name: str) -> str:
    """A name that other processes understand, which have not imported what this one has: a shipped
    one, or `module:Class`.
    """
    reference = ENVS.get(name, name)
    return name if reference.startswith(SHIPPED) else reference


def env_class(name: str) -> type[Environment]:
    """The class registered as `name`, or named by `module:Class`; imports its module and makes
    nothing.

    Raises:
        ValueError: No such name, module or class, or a class that is no `Environment`; the message
            says what to do.
    """
    reference = ENVS.get(name, name)
    module_name, colon, qualified = reference.partition(":")
    if not colon:
        raise ValueError(
            f"Unknown environment {name!r}.{nearest(name, tuple(ENVS))} Known: {', '.join(sorted(ENVS))}; or give module:Class."
        )
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and what it imports is not: that message is the useful one
        raise ValueError(
            f"Environment {name!r}: there is no module {error.name!r} to import; is it on the Python path?"
        ) from error
    for part in qualified.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise ValueError(f"Environment {name!r}: {error}.") from error
    if not (inspect.isclass(found) and issubclass(found, Environment)):
        raise ValueError(
            f"Environment {name!r} is no subclass of envs.base.Environment. A class with the 3-value step becomes one by "
            "envs.adapter.adapt(Class, spec=...); a gymnasium environment runs as env=gymnasium with its id."
        )
    return found


def make_env(name: str, **kwargs: Any) -> Environment:
    """Make the environment registered as `name`, or named by `module:Class`, with the constructor's
    `kwargs`.

    Raises:
        ValueError: An unknown name (answered with the known ones), or an argument that the
            constructor does not know or refuses.
    """
    environment_class = env_class(name)
    signature = inspect.signature(environment_class)
    takes_any = any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()
    )
    unknown = [] if takes_any else sorted(set(kwargs) - set(signature.parameters))
    if unknown:
        arguments = list(signature.parameters)
        hint = nearest(unknown[0], arguments)
        raise ValueError(
            f"Environment {name!r} has no argument {unknown[0]!r}.{hint} Known: {', '.join(arguments) or '(none)'}."
        )
    return environment_class(**kwargs)


def env_spec(name: str, **kwargs: Any) -> EnvSpec:
    """The spec of what `make_env` would make. Simulators are built at the first reset, so this is
    cheap and needs no display library.

    A class of the user's own is made in a process of its own (`envs.spec_process`).

    Raises:
        ValueError: As `make_env`.
        SpecUnknown: A class of the user's own that cannot be made.
    """
    reference = ENVS.get(name, name)
    if _is_own(reference, kwargs):
        return spec_of_own(name, reference=reference, kwargs=kwargs)
    return make_env(name, **kwargs).spec


def _is_own(reference: str, kwargs: Mapping[str, Any]) -> bool:
    """Whether a constructor is the user's; one in the script that runs is no module that another
    process could import.
    """
    if reference.startswith(SHIPPED):
        return ":" in str(kwargs.get("id", ""))  # `module:id`, which Gymnasium imports
    return ":" in reference and not reference.startswith("__main__:")
