"""Wraps any registered Gymnasium environment in the contract: `env=gymnasium env.id=CartPole-v1`.

`envs.gymnasium_ids` looks ids up, and `envs.gymnasium_spaces` converts observations and actions.
Frame streams come from Gymnasium's `rgb_array` rendering, scaled to the requested size. Success is
reported if the info of a first step, taken at construction, has `is_success` or `success`, or if
`reports_success` declares that a later one has it. Environments that a package registers at import
are named in Gymnasium's form: `env.id=my_package:MyEnv-v0`.

Left out: renderings other than images. Images are converted with NumPy only.
"""

import copy
import functools
import logging
import sys
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

import gymnasium
import numpy as np
from gymnasium import error
from gymnasium.envs.registration import EnvSpec as EnvRegistration
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from numpy.typing import NDArray

from envs.arguments import checked_action, checked_seed, not_running, read_options
from envs.base import (
    INSTRUCTION,
    LARGEST_REWARD,
    RECORDER_STREAM,
    Environment,
    EnvSpec,
    EpisodeFailed,
    FrameBuffer,
    FrameRequest,
    Info,
    Misbehaved,
    StepResult,
    WrongForm,
    is_reward,
)
from envs.gymnasium_drawing import has_render, may_draw
from envs.gymnasium_ids import registration
from envs.gymnasium_pictures import as_rgb, fitted
from envs.gymnasium_spaces import ActionLayout, ObservationLayout
from envs.mistakes import place_of, refused_call, user_code
from envs.offscreen import choose_backend

logger = logging.getLogger(__name__)

SUCCESS_KEYS = ("is_success", "success")
MADE_BY_GYMNASIUM = (TimeLimit, OrderEnforcing)  # wrappers of `gymnasium.make`
MOST_SHOWN = 120  # characters of a space in a message
RESET = "(observation, info) of reset"
WITHOUT_VIDEOS = (
    "Only the videos need its pictures: set trainer.record_episodes=0 "
    "trainer.record_val_episodes=0."
)
STEP = "(observation, reward, terminated, truncated, info) of step"


class GymnasiumEnv(Environment):
    """One registered Gymnasium environment."""

    def __init__(
        self,
        id: str,
        max_episode_steps: int | None = None,
        reports_success: bool | None = None,
        **kwargs: Any,
    ) -> None:
        """Make the environment; it renders nothing until frames are requested.

        Args:
            id: Gymnasium id, for example `Reacher-v5`, or `module:id` if importing the module
                registers it.
            max_episode_steps: Step limit of an episode; by default the registered one.
            reports_success: Whether the infos have `is_success` or `success`; the last one of an
                episode counts, and without the key it is no success. By default whether the info of
                the first step has it.
            kwargs: Passed to `gymnasium.make`.

        Raises:
            ValueError: An unknown id (the message has the nearest known ones), unknown arguments,
                spaces outside the contract, or no step limit.
            RuntimeError: A package that the environment needs is missing.
        """
        can_draw_mujoco = _choose_renderer()
        registered = registration(id)
        id = registered.id
        limit = max_episode_steps if max_episode_steps is not None else registered.max_episode_steps
        if limit is None:
            raise ValueError(
                f"Gymnasium environment {id!r} does not limit its steps: set "
                "env.max_episode_steps=."
            )
        if limit < 1:
            raise ValueError(f"env.max_episode_steps must be at least 1, got {limit}.")
        self._env = _make(registered, max_episode_steps=limit, kwargs=kwargs)
        _require_spaces(self._env, name=id)
        self._layout = ObservationLayout(self._env.observation_space, name=id)
        self._actions = ActionLayout(self._env.action_space, name=id)
        success_key = _success_key(self._env, name=id)
        self._success_keys = SUCCESS_KEYS if success_key is None else (success_key,)
        self._declared = reports_success is not None
        self.is_tested = str(registered.entry_point).startswith("gymnasium.")
        self.spec = EnvSpec(
            name="gymnasium",
            tasks=(id,),
            observation_space=self._layout.space,
            action_space=self._actions.space,
            decisions=self._actions.decisions,
            max_episode_steps=limit,
            reports_success=success_key is not None if reports_success is None else reports_success,
            tasks_with_distance=(),
            renders=self._env.render_mode == "rgb_array"
            and has_render(self._env)
            and (can_draw_mujoco or "mujoco" not in sys.modules),
            replayable=not registered.nondeterministic,
            instruction_changes=INSTRUCTION in self._layout.space.spaces,
            notice=self._layout.notice,
        )
        self._streams: dict[str, FrameRequest] = {}
        self._started = False
        self._ended = True
        self._step = 0

    @property
    def native(self) -> gymnasium.Env[Any, Any]:
        """The registered environment without wrappers, for a scripted expert."""
        return self._env.unwrapped

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], Info]:
        """See `Environment.reset`; options are `task` (the id) and `frames`."""
        self._streams = read_options(options, spec=self.spec).frames
        self._ended = True
        begun = checked_seed(seed)
        with self._user_code("reset"):
            observation, raw = self._env.reset(seed=begun)
        self._started = True
        self._ended = False
        self._step = 0
        return self._read(observation), self._info(raw)

    async def step(self, action: Any) -> StepResult:
        """See `Environment.step`."""
        checked = checked_action(action, space=self.spec.action_space)
        if self._ended:
            raise not_running()
        native = self._actions.native(checked)
        with self._user_code("step"):
            observation, reward, terminated, truncated, raw = self._env.step(native)
        self._step += 1
        terminated = self._flag(terminated, "terminated")
        truncated = self._flag(truncated, "truncated")
        self._ended = terminated or truncated
        reward = self._number(reward)
        if not is_reward(reward):
            raise Misbehaved(
                f"{self._subject} returned reward {reward} at step "
                f"{self._step}; a reward is finite and at most {LARGEST_REWARD:g} in size."
            )
        return self._read(observation), reward, terminated, truncated, self._info(raw)

    def render(self) -> NDArray[np.uint8]:
        """Return the current picture at its native size, uint8 [height, width, 3]."""
        if not self.spec.renders:
            raise RuntimeError(
                f"Gymnasium environment {self.spec.tasks[0]!r} cannot be rendered here."
            )
        if not self._started:
            raise RuntimeError("There is nothing to render: call reset first.")
        with self._user_code("render"):
            picture = self._env.render()
        try:
            return as_rgb(picture)
        except ValueError as error:
            raise Misbehaved(
                f"Gymnasium environment {self.spec.tasks[0]!r}: render returned no picture "
                f"after {self._step} steps: {error}"
            ) from error

    def check_drawing(self, streams: Collection[str]) -> None:
        """See `Environment.check_drawing`: draws the first picture of an episode."""
        if streams and self.spec.renders:
            with self._user_code("reset"):
                self._env.reset(seed=0)
            self._started = True
            self._drawn(streams)
            with self._user_code("close"):
                self._env.close()

    async def close(self) -> None:
        """Close the Gymnasium environment."""
        self._env.close()
        self._started, self._ended = False, True

    @property
    def _subject(self) -> str:
        """The environment and the place of its class, for messages about what it returned."""
        place = place_of(type(self._env.unwrapped))
        return f"Gymnasium environment {self.spec.tasks[0]!r}{place}"

    def _number(self, reward: Any) -> float:
        if isinstance(reward, float):
            return float(reward)
        if np.size(reward) != 1:
            raise WrongForm(
                f"{self._subject} returned {np.size(reward)} rewards, "
                f"{reward}, but a step has one: wrap it to return their sum or one of them."
            )
        value = np.asarray(reward).reshape(())
        if value.dtype.kind not in "biuf":
            raise WrongForm(
                f"{self._subject} returned reward {reward!r}, but a reward must be a number."
            )
        return float(value)

    def _user_code(self, method: str) -> AbstractContextManager[None]:
        """Name the environment, the step and the line in any error of `method`."""
        where = f"Gymnasium environment {self.spec.tasks[0]!r}: {method}"
        if method == "step":
            where += f" {self._step + 1}"
        return user_code(
            lambda error: Misbehaved(f"{where} raised {error}."),
            passed=EpisodeFailed,
        )

    def _read(self, observation: Any) -> dict[str, Any]:
        try:
            return self._layout.read(observation)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise WrongForm(
                f"{self._subject} returned an observation outside its "
                f"space {str(self._env.observation_space)[:MOST_SHOWN]} after {self._step} steps: "
                f"{type(error).__name__}: {error}."
            ) from error

    def _flag(self, value: Any, name: str) -> bool:
        if isinstance(value, bool | np.bool_):
            return bool(value)
        array = np.asarray(value)
        if array.size != 1 or array.dtype.kind not in "biuf" or array.reshape(()) not in (0, 1):
            raise WrongForm(
                f"{self._subject} returned {name}={value!r}, which must be true or false."
            )
        return bool(array.reshape(()))

    def _info(self, raw: Any) -> Info:
        if not isinstance(raw, Mapping):
            raise WrongForm(
                f"{self._subject} returned {raw!r} as its info after "
                f"{self._step} steps, which must be a dict."
            )
        info: Info = {"task": self.spec.tasks[0]}
        key = next((key for key in self._success_keys if raw.get(key) is not None), None)
        if self.spec.reports_success:
            info["success"] = key is not None and self._flag(raw[key], key)
        elif key is not None and not self._declared:
            _note_late_success(self.spec.tasks[0], key)
        if self._streams:
            info["frames"] = self._due_frames()
        return info

    def _due_frames(self) -> dict[str, Any]:
        frames, picture = FrameBuffer(), None
        for stream, request in self._streams.items():
            if self._ended or self._step % request.every == 0:
                picture = self._drawn(self._streams) if picture is None else picture
                frames.add(stream, fitted(picture, request.size), self._step)
        return frames.take()

    def _drawn(self, streams: Collection[str]) -> NDArray[np.uint8]:
        """`render`, whose error names the remedy if `streams` are for videos alone."""
        try:
            return self.render()
        except Misbehaved as fault:
            if set(streams) != {RECORDER_STREAM}:
                raise
            raise Misbehaved(f"{fault} {WITHOUT_VIDEOS}") from fault


def _make(
    registered: EnvRegistration, *, max_episode_steps: int, kwargs: Mapping[str, Any]
) -> gymnasium.Env[Any, Any]:
    id = registered.id
    try:
        render_mode = (
            {"render_mode": "rgb_array"}
            if "render_mode" not in kwargs and may_draw(registered)
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
        what = "does not take these arguments" if kwargs else "cannot be made"
        raise ValueError(f"Gymnasium environment {id!r} {what}: {refused}") from refused
    except (error.DependencyNotInstalled, ModuleNotFoundError) as missing:
        raise RuntimeError(
            f"Gymnasium environment {id!r} needs a package that is not installed: {missing}"
        ) from missing
    except error.Error as refused:
        raise ValueError(f"Gymnasium environment {id!r} cannot be made: {refused}") from refused
    model: Any = getattr(env.unwrapped, "model", None)
    if type(model).__name__ == "MjModel":
        # before the render context exists: shadows and multisampling cost 22 times the rest
        model.vis.quality.shadowsize = model.vis.quality.offsamples = 0
    return env


def _choose_renderer() -> bool:
    """Choose MuJoCo's renderer; return whether MuJoCo can render here.

    MuJoCo and robot packages read the choice at import. Without one they open a window, which ends
    the process on a machine without a display.
    """
    try:
        choose_backend()
    except RuntimeError:
        return False
    return True


def _require_spaces(env: gymnasium.Env[Any, Any], *, name: str) -> None:
    for kind in ("observation_space", "action_space"):
        space = getattr(env, kind, None)
        if not isinstance(space, gymnasium.Space):
            raise ValueError(
                f"Gymnasium environment {name!r} has {kind} {space!r}, which is not a Gymnasium "
                "space: set it in the environment's constructor."
            )


def _parts(returned: Any, form: str, *, name: str) -> tuple[Any, ...]:
    """The values that `reset` or `step` returned.

    Raises:
        Misbehaved: It returned another number of values, or the last one is not a dict.
    """
    wanted = form.count(",") + 1
    found = len(returned) if isinstance(returned, tuple) else None
    if found != wanted:
        what = f"{found} values" if found is not None else f"a {type(returned).__name__}"
        raise Misbehaved(
            f"Gymnasium environment {name!r} returned {what} where {form} is expected, as since "
            "Gymnasium 0.26: return these, or wrap the old environment."
        )
    if not isinstance(returned[-1], Mapping):
        raise Misbehaved(
            f"Gymnasium environment {name!r} returned {returned[-1]!r} as the info of {form}, "
            "which must be a dict."
        )
    return tuple(returned)


def _success_key(env: gymnasium.Env[Any, Any], *, name: str) -> str | None:
    """The key of success in the info of a first step; None if it has neither.

    Raises:
        Misbehaved: `reset` or `step` raised, or its result differs from Gymnasium's form.
    """
    while isinstance(env, MADE_BY_GYMNASIUM):  # they unpack the values before they can be counted
        env = env.env
    action_space = copy.deepcopy(env.action_space)
    action_space.seed(0)
    where = f"Gymnasium environment {name!r}: its first reset and step"
    refused = refused_call(env.reset, seed=0)
    if refused is not None:
        raise Misbehaved(
            f"Gymnasium environment {name!r}: {refused}: give it the arguments seed=None, "
            "options=None."
        )
    with user_code(lambda error: Misbehaved(f"{where} raised {error}."), passed=Misbehaved):
        _parts(env.reset(seed=0), RESET, name=name)
        *_, info = _parts(env.step(action_space.sample()), STEP, name=name)
    return next((key for key in SUCCESS_KEYS if key in info), None)


@functools.cache  # one warning per process
def _note_late_success(name: str, key: str) -> None:
    logger.warning(
        "Gymnasium environment %r returned %s, which the info of its first step does not have, so "
        "its success is not reported: set env.kwargs.reports_success=true.",
        name,
        key,
    )
