"""Whether a registered Gymnasium environment can draw pictures; draws none to find out."""

import importlib.util
import inspect
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as EnvRegistration
from gymnasium.envs.registration import load_env_creator

PYGAME_DRAWN = ("gymnasium.envs.classic_control", "gymnasium.envs.box2d", "gymnasium.envs.toy_text")
GYMNASIUMS = "gymnasium."  # its wrappers pass `render` on


def may_draw(registered: EnvRegistration) -> bool:
    """Whether the registered class or function can be asked for pictures (`rgb_array`)."""
    creator = _creator(registered)
    modes = getattr(creator, "metadata", {}).get("render_modes", ())
    return not lacks_pygame(registered) and "rgb_array" in modes and _takes_render_mode(creator)


def lacks_pygame(registered: EnvRegistration) -> bool:
    """Whether an environment is drawn with pygame, which is not installed."""
    drawn_with_it = _creator(registered).__module__.startswith(PYGAME_DRAWN)
    return drawn_with_it and importlib.util.find_spec("pygame") is None


def has_render(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether an environment, or a wrapper around it, has a `render` of its own; that of
    `gymnasium.Env` only raises NotImplementedError. `render = None` is none.
    """
    while isinstance(env, gymnasium.Wrapper):
        if not getattr(type(env).render, "__module__", "").startswith(GYMNASIUMS):
            return True
        env = env.env
    render: object = env.render
    return callable(render) and getattr(render, "__func__", None) is not gymnasium.Env.render


def _creator(registered: EnvRegistration) -> Any:
    entry = registered.entry_point
    return load_env_creator(entry) if isinstance(entry, str) else entry


def _takes_render_mode(creator: Any) -> bool:
    """Whether a constructor has the argument; environments without images lack it."""
    try:
        parameters = inspect.signature(creator).parameters.values()
    except ValueError:  # compiled, without a signature
        return True
    return any(one.name == "render_mode" or one.kind is one.VAR_KEYWORD for one in parameters)
