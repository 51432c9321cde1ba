"""Any registered Gymnasium environment behind the contract: `env=gymnasium env.id=CartPole-v1`.

Image observations are in `images` at their native size, everything else is flattened to one float32
vector in `proprioception`; there is no instruction. Frame streams come from Gymnasium's `rgb_array`
rendering, scaled to the requested size. Success is reported if the infos have `is_success` or
`success`, as one step at construction shows. An environment that a package registers at import is
named as in Gymnasium: `env.id=my_package:MyEnv-v0`.

Left out: actions other than Box and Discrete, and observations of text, graphs and sequences, which
are refused. Pictures are converted with NumPy only.
"""

import copy
import difflib
import importlib
import importlib.util
import math
from collections.abc import Mapping
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import error, spaces
from gymnasium.envs.mujoco import MujocoEnv
from gymnasium.envs.registration import EnvSpec as EnvRegistration
from gymnasium.envs.registration import load_env_creator
from numpy.typing import NDArray

from envs.arguments import checked_action, checked_seed, read_options
from envs.base import (
    IMAGES,
    PROPRIOCEPTION,
    Environment,
    EnvSpec,
    FrameBuffer,
    FrameRequest,
    Info,
    StepResult,
)
from envs.offscreen import choose_backend

SUCCESS_KEYS = ("is_success", "success")
PYGAME_DRAWN = ("gymnasium.envs.classic_control", "gymnasium.envs.box2d", "gymnasium.envs.toy_text")


class GymnasiumEnv(Environment):
    """One registered Gymnasium environment."""

    def __init__(self, id: str, max_episode_steps: int | None = None, **kwargs: Any) -> None:
        """Make the environment; it renders nothing until frames are requested.

        Args:
            id: Gymnasium id, for example `Reacher-v5`, or `module:id` if importing the module
                registers it.
            max_episode_steps: Step limit of an episode; by default the registered one.
            kwargs: Passed to `gymnasium.make`.

        Raises:
            ValueError: An unknown id (the message has the nearest known ones), unknown arguments,
                spaces outside the contract, or no step limit.
            RuntimeError: A package that the environment needs is missing.
        """
        registered = _registered(id)
        id = registered.id
        limit = max_episode_steps if max_episode_steps is not None else registered.max_episode_steps
        if limit is None:
            raise ValueError(
                f"Gymnasium environment {id!r} has no limit of steps of its own: give "
                "max_episode_steps."
            )
        if limit < 1:
            raise ValueError(f"max_episode_steps must be at least 1, got {limit}.")
        self._env = _make(registered, max_episode_steps=limit, kwargs=kwargs)
        self._layout = _Layout(self._env.observation_space, name=id)
        action_space, self._first_action = _counted_from_zero(self._env.action_space, name=id)
        self._success_key = _success_key(self._env)
        self.spec = EnvSpec(
            name="gymnasium",
            tasks=(id,),
            observation_space=self._layout.space,
            action_space=action_space,
            max_episode_steps=limit,
            reports_success=self._success_key is not None,
            renders=self._env.render_mode == "rgb_array" and _has_opengl(self._env),
        )
        self._streams: dict[str, FrameRequest] = {}
        self._started, self._ended, self._step = False, True, 0

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], Info]:
        """See `Environment.reset`; options are `task` (the id) and `frames`."""
        self._streams = read_options(options, spec=self.spec).frames
        self._ended = True
        observation, raw = self._env.reset(seed=checked_seed(seed))
        self._started, self._ended, self._step = True, False, 0
        return self._layout.read(observation), self._info(raw)

    async def step(self, action: Any) -> StepResult:
        """See `Environment.step`."""
        checked = checked_action(action, space=self.spec.action_space)
        if self._ended:
            raise RuntimeError(
                "The episode has ended or was never started: call reset before step."
            )
        observation, reward, terminated, truncated, raw = self._env.step(
            checked + self._first_action
        )
        self._step += 1
        self._ended = bool(terminated or truncated)
        reward = float(reward)
        if not math.isfinite(reward):
            raise RuntimeError(
                f"Gymnasium environment {self.spec.tasks[0]!r} returned reward {reward} at step "
                f"{self._step}."
            )
        return (
            self._layout.read(observation),
            reward,
            bool(terminated),
            bool(truncated),
            self._info(raw),
        )

    def render(self) -> NDArray[np.uint8]:
        """Return the current picture at its native size, uint8 [height, width, 3]."""
        if not self.spec.renders:
            raise RuntimeError(
                f"Gymnasium environment {self.spec.tasks[0]!r} cannot be rendered here: there is "
                "nothing to see."
            )
        if not self._started:
            raise RuntimeError("There is nothing to render: call reset first.")
        if isinstance(self._env.unwrapped, MujocoEnv):
            choose_backend()
        return as_rgb(cast(NDArray[np.uint8], self._env.render()))

    async def close(self) -> None:
        """Close the Gymnasium environment."""
        self._env.close()
        self._started, self._ended = False, True

    def _info(self, raw: Mapping[str, Any]) -> Info:
        info: Info = {"task": self.spec.tasks[0]}
        if self._success_key is not None:
            info["success"] = bool(raw.get(self._success_key, False))
        if self._streams:
            info["frames"] = self._due_frames()
        return info

    def _due_frames(self) -> dict[str, Any]:
        frames, picture = FrameBuffer(), None
        for stream, request in self._streams.items():
            if self._ended or self._step % request.every == 0:
                picture = self.render() if picture is None else picture
                frames.add(stream, fitted(picture, request.size), self._step)
        return frames.take()


class _Layout:
    """Maps the parts of a Gymnasium observation to the contract's keys."""

    def __init__(self, space: spaces.Space[Any], *, name: str) -> None:
        self._space, self._name = space, name
        leaves = dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}
        self._images = [key for key, leaf in leaves.items() if _is_image(leaf)]
        self._vectors = [key for key in leaves if key not in self._images]
        self._leaves = leaves
        entries: dict[str, spaces.Space[Any]] = {}
        if self._images:
            shapes = {(leaves[key].shape or ())[:2] for key in self._images}
            if len(shapes) > 1:
                raise ValueError(
                    f"Gymnasium environment {name!r} has images of several sizes, "
                    f"{sorted(shapes)}: they must share one."
                )
            entries[IMAGES] = spaces.Box(0, 255, (len(self._images), *shapes.pop(), 3), np.uint8)
        if self._vectors:
            for key in self._vectors:
                if not _is_vector(leaves[key]):
                    raise ValueError(
                        f"Gymnasium environment {name!r} has observation {leaves[key]}, which is "
                        "no vector and no image."
                    )
            flat = [spaces.flatten_space(leaves[key]) for key in self._vectors]
            low, high = (
                np.concatenate([getattr(part, side).astype(np.float32) for part in flat])
                for side in ("low", "high")
            )
            entries[PROPRIOCEPTION] = spaces.Box(low, high, dtype=np.float32)
        self.space = spaces.Dict(entries)

    def read(self, observation: Any) -> dict[str, Any]:
        """Return the observation in the contract's form, in new arrays."""
        parts = observation if isinstance(self._space, spaces.Dict) else {"": observation}
        result: dict[str, Any] = {}
        if self._images:
            result[IMAGES] = np.stack([as_rgb(parts[key]) for key in self._images])
        if self._vectors:
            vectors = [spaces.flatten(self._leaves[key], parts[key]) for key in self._vectors]
            vector = np.concatenate([np.asarray(part, dtype=np.float32) for part in vectors])
            if not np.isfinite(vector).all():
                raise RuntimeError(
                    f"Gymnasium environment {self._name!r} returned an observation that is not "
                    f"finite: {vector}."
                )
            result[PROPRIOCEPTION] = vector
        return result


def _counted_from_zero(
    space: spaces.Space[Any], *, name: str
) -> tuple[spaces.Box | spaces.Discrete, int]:
    """Zero-based action space, and the offset of a Discrete space's first action."""
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n)), int(space.start)
    if not isinstance(space, spaces.Box):
        raise ValueError(
            f"Gymnasium environment {name!r} has actions {space}: only Box and Discrete are "
            "supported."
        )
    return space, 0


def _is_image(space: spaces.Space[Any]) -> bool:
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return False
    return len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[2] in (1, 3))


def _is_vector(space: spaces.Space[Any]) -> bool:
    if isinstance(space, spaces.Tuple):
        return all(map(_is_vector, space.spaces))
    if isinstance(space, spaces.Dict):
        return all(map(_is_vector, space.spaces.values()))
    return isinstance(
        space, (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)
    )


def _registered(id: str) -> EnvRegistration:
    """Registration of `id`; for `module:id`, imports the module first, as `gymnasium.make` does."""
    module, _, name = id.rpartition(":")
    if module:
        _import(module, id=id)
    try:
        return gymnasium.spec(name)
    except (
        error.Error,
        ModuleNotFoundError,
    ) as unknown:  # unregistered, deprecated, or no id at all
        nearest = difflib.get_close_matches(name, gymnasium.registry, n=5)
        hint = (
            f" Nearest: {', '.join(nearest)}."
            if nearest
            else f" There are {len(gymnasium.registry)}, for example CartPole-v1."
        )
        raise ValueError(f"Unknown Gymnasium id {id!r}.{hint} ({unknown})") from unknown


def _import(module: str, *, id: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module}.".startswith(f"{missing.name}."):
            raise RuntimeError(
                f"Gymnasium environment {id!r} needs a package that is not installed: {missing}"
            ) from missing
        raise ValueError(
            f"Gymnasium id {id!r}: there is no module {missing.name!r} to import; is it on the "
            "Python path?"
        ) from missing


def _make(
    registered: EnvRegistration, *, max_episode_steps: int, kwargs: Mapping[str, Any]
) -> gymnasium.Env[Any, Any]:
    id = registered.id
    try:
        render_mode = (
            {"render_mode": "rgb_array"}
            if "render_mode" not in kwargs and _draws(registered)
            else {}
        )
        env = gymnasium.make(
            id,
            max_episode_steps=max_episode_steps,
            disable_env_checker=True,
            **render_mode,
            **kwargs,
        )
    except TypeError as refused:
        raise ValueError(
            f"Gymnasium environment {id!r} does not take these arguments: {refused}"
        ) from refused
    except (error.DependencyNotInstalled, ModuleNotFoundError) as missing:
        raise RuntimeError(
            f"Gymnasium environment {id!r} needs a package that is not installed: {missing}"
        ) from missing
    except error.Error as refused:
        raise ValueError(f"Gymnasium environment {id!r} cannot be made: {refused}") from refused
    if isinstance(
        env.unwrapped, MujocoEnv
    ):  # before the render context exists: shadows and multisampling cost 22 times the rest
        env.unwrapped.model.vis.quality.shadowsize = env.unwrapped.model.vis.quality.offsamples = 0
    return env


def _draws(registered: EnvRegistration) -> bool:
    entry = registered.entry_point
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    drawable = (
        not creator.__module__.startswith(PYGAME_DRAWN)
        or importlib.util.find_spec("pygame") is not None
    )
    return drawable and "rgb_array" in getattr(creator, "metadata", {}).get("render_modes", ())


def _has_opengl(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether OpenGL is available for MuJoCo; other environments draw without it."""
    if not isinstance(env.unwrapped, MujocoEnv):
        return True
    try:
        choose_backend()
    except RuntimeError:
        return False
    return True


def _success_key(env: gymnasium.Env[Any, Any]) -> str | None:
    action_space = copy.deepcopy(env.action_space)
    action_space.seed(0)
    env.reset(seed=0)
    *_, info = env.step(action_space.sample())
    return next((key for key in SUCCESS_KEYS if key in info), None)


def as_rgb(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a copy of a grey [H, W], [H, W, 1] or coloured [H, W, 3] picture as [H, W, 3].

    Raises:
        ValueError: Another shape or dtype.
    """
    picture = np.asarray(picture)
    if picture.dtype != np.uint8:
        raise ValueError(f"A picture must be uint8, got {picture.dtype}.")
    if picture.ndim == 2:
        picture = picture[..., np.newaxis]
    if picture.ndim != 3 or picture.shape[2] not in (1, 3):
        raise ValueError(
            f"A picture must have shape [H, W], [H, W, 1] or [H, W, 3], got {picture.shape}."
        )
    return np.array(np.broadcast_to(picture, (*picture.shape[:2], 3)))


def fitted(picture: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Scale `picture` [H, W, 3] into a square of `size` pixels, keeping its aspect ratio.

    The margins are black. Shrinking averages pixels, growing repeats them.
    """
    height, width = picture.shape[:2]
    scale = size / max(height, width)
    rows, columns = max(1, round(height * scale)), max(1, round(width * scale))
    scaled = _scaled(_scaled(picture.astype(np.float32), rows, axis=0), columns, axis=1)
    square = np.zeros((size, size, 3), np.uint8)
    top, left = (size - rows) // 2, (size - columns) // 2
    square[top : top + rows, left : left + columns] = np.rint(scaled)
    return square


def _scaled(values: NDArray[np.float32], length: int, *, axis: int) -> NDArray[np.float32]:
    old = values.shape[axis]
    if length >= old:
        return np.take(values, np.arange(length) * old // length, axis=axis)
    starts = np.arange(length) * old // length
    counts = np.diff(np.append(starts, old)).reshape(
        [-1 if other == axis else 1 for other in range(values.ndim)]
    )
    return (np.add.reduceat(values, starts, axis=axis) / counts).astype(np.float32)
