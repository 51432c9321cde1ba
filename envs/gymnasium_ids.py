"""Looks up registered Gymnasium ids, with a sentence for each that is not there."""

import difflib
import importlib
from types import ModuleType

import gymnasium
from gymnasium import error
from gymnasium.envs.registration import EnvSpec as EnvRegistration

from envs.base import Environment
from envs.names import refuse_path


def registration(id: str) -> EnvRegistration:
    """Registration of `id`; for `module:id`, imports the module first, as `gymnasium.make` does.

    Raises:
        ValueError: An unknown id (the message has the nearest known ones), or no such module.
        RuntimeError: The module needs a package that is missing.
    """
    module, _, name = id.rpartition(":")
    found = _import(module, id=id) if module else None
    try:
        return gymnasium.spec(name)
    except (error.Error, ModuleNotFoundError) as unknown:
        # unregistered, deprecated, or not an id
        own = getattr(found, name, None)
        if isinstance(own, type):
            raise ValueError(
                f"{id!r} is a class, not a Gymnasium id: {_instead_of(own, id=id)}."
            ) from unknown
        nearest = difflib.get_close_matches(name, gymnasium.registry, n=5)
        hint = (
            f" Nearest: {', '.join(nearest)}."
            if nearest
            else f" There are {len(gymnasium.registry)}, for example CartPole-v1."
        )
        raise ValueError(f"Unknown Gymnasium id {id!r}.{hint} ({unknown})") from unknown


def _instead_of(own: type, *, id: str) -> str:
    """What to write instead of `id`, which names the environment class `own`."""
    module, _, name = id.rpartition(":")
    if issubclass(own, Environment):
        return f"it follows siirl's own contract, so set env=custom env.name={id}"
    names = (own, id, f"{own.__module__}:{own.__qualname__}")
    registered = [each.id for each in gymnasium.registry.values() if each.entry_point in names]
    if registered:
        return f"give the id that it is registered by, {module}:{registered[0]}"
    return (
        f"register it in {module}, with gymnasium.register(id='{name}-v0', "
        f"entry_point='{id}'), and give the id {module}:{name}-v0"
    )


def _import(module: str, *, id: str) -> ModuleType:
    refuse_path(module, what=f"Gymnasium id {id!r}")
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module}.".startswith(f"{missing.name}."):
            raise RuntimeError(
                f"Gymnasium environment {id!r} needs a package that is not installed: {missing}"
            ) from missing
        raise ValueError(
            f"Gymnasium id {id!r}: there is no module {missing.name!r} to import; is it on the "
            "Python path?"
        ) from missing
