"""Wraps an environment with a 3-value `step`, as siiRL documents it, as an `Environment`.

That form is a class with `reset(dp_rank, ddp_world_size, seed, options) -> observation` and
`step(actions) -> (observation, rewards, infos)`, each plain or async, with
one entry per agent if there are several. The form has no end of episode, so the adapter reads it
from the infos: `terminated` (or `done`) and `success`; `truncated` or the spec's step limit
truncates an episode.

    # in my_module.py
    SumEnv = adapt(MathEnv, spec=EnvSpec(name="sum", tasks=("sum",), ...), batched=True)
    env = make_env("my_module:SumEnv")

Left out: images. The form has no `render`, so frame streams are refused.
"""

import dataclasses
import inspect
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from envs.arguments import checked_action, not_running, read_options
from envs.base import Environment, EnvSpec, Info, Observation, StepResult


class ThreeValueEnvironment(Protocol):
    """The wrapped form; both methods may be async."""

    def reset(
        self,
        dp_rank: int,
        ddp_world_size: int,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> Observation | Awaitable[Observation]:
        """Start an episode."""

    def step(
        self, actions: Any
    ) -> tuple[Observation, Any, Any] | Awaitable[tuple[Observation, Any, Any]]:
        """Apply the actions; returns observation, rewards, infos."""


class ThreeValueAdapter(Environment):
    """An `Environment` around a `ThreeValueEnvironment`."""

    def __init__(
        self,
        environment: ThreeValueEnvironment,
        *,
        spec: EnvSpec,
        batched: bool | None = None,
        options: Sequence[str] = (),
        dp_rank: int = 0,
        ddp_world_size: int = 1,
    ) -> None:
        """Wrap `environment`.

        Args:
            environment: The environment in this form.
            spec: Properties that the class does not declare: spaces, tasks, step limit, number of
                agents.
            batched: Whether actions, observations, rewards and infos are lists with one entry per
                agent; by default if there are several agents. siiRL's documented MathEnv is batched
                even for one agent.
            options: Names of the options that the class's `reset` accepts in addition to `task`.
            dp_rank: Passed to `reset`; the caller shards, so the default is 0 of 1.
            ddp_world_size: Passed to `reset`.
        """
        self.spec = dataclasses.replace(spec, renders=False)
        self._environment = environment
        self._batched = spec.num_agents > 1 if batched is None else batched
        self._options = tuple(options)
        self._dp_rank, self._ddp_world_size = dp_rank, ddp_world_size
        self._task = spec.tasks[0]
        self._steps = 0
        self._ended = True

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """See `Environment.reset`; options other than `frames` are passed on."""
        task = read_options(options, spec=self.spec, further=self._options).task
        self._ended = True
        handed_on = {name: value for name, value in (options or {}).items() if name != "frames"} | {
            "task": task
        }
        observation = await _value(
            self._environment.reset(
                self._dp_rank, self._ddp_world_size, seed=seed, options=handed_on
            )
        )
        self._task = task
        self._steps = 0
        self._ended = False
        return self._unbatch(observation, "observation"), {"task": task}

    async def step(self, action: Any) -> StepResult:
        """See `Environment.step`; with several agents every value except the flags is a list."""
        if self._ended:
            raise not_running()
        actions = self._checked_actions(action)
        result = await _value(self._environment.step(actions))
        if not isinstance(result, tuple) or len(result) != 3:
            raise ValueError(
                f"step of {type(self._environment).__name__} must return "
                f"(observation, rewards, infos), got {result!r}."
            )
        observation, rewards, infos = result
        self._steps += 1
        agents = self._agent_infos(infos)
        terminated = all(bool(info.get("terminated", info.get("done", False))) for info in agents)
        truncated = not terminated and (
            self._steps >= self.spec.max_episode_steps
            or any(info.get("truncated") for info in agents)
        )
        self._ended = terminated or truncated
        merged: Info = (
            {**agents[0], "task": self._task}
            if len(agents) == 1
            else {"task": self._task, "agents": agents}
        )
        if self.spec.reports_success:
            merged["success"] = all(bool(info.get("success", False)) for info in agents)
        # several agents: an array, so that chunks can sum it
        reward: Any = np.asarray(self._unbatch(rewards, "reward"), dtype=np.float64)
        reward = float(reward) if self.spec.num_agents == 1 else reward
        return self._unbatch(observation, "observation"), reward, terminated, truncated, merged

    def render(self) -> NDArray[np.uint8]:
        """Raises RuntimeError: this form has no images."""
        raise RuntimeError(f"Environment {self.spec.name!r} has no images.")

    def _checked_actions(self, action: Any) -> Any:
        space = self.spec.action_space
        if self.spec.num_agents == 1:
            checked = checked_action(action, space=space)
            return [checked] if self._batched else checked
        if not isinstance(action, (list, tuple)) or len(action) != self.spec.num_agents:
            raise ValueError(
                f"step needs a list of {self.spec.num_agents} actions, one per agent, got "
                f"{action!r}."
            )
        return [checked_action(entry, space=space) for entry in action]

    def _unbatch(self, values: Any, what: str) -> Any:
        if not self._batched:
            return values
        if len(values) != self.spec.num_agents:
            raise ValueError(
                f"Expected one {what} per agent ({self.spec.num_agents}), got {len(values)}."
            )
        return values[0] if self.spec.num_agents == 1 else list(values)

    def _agent_infos(self, infos: Any) -> list[Mapping[str, Any]]:
        agents = list(infos) if isinstance(infos, (list, tuple, np.ndarray)) else [infos]
        if not agents or not all(isinstance(info, Mapping) for info in agents):
            raise ValueError(
                f"infos must be a dict, or a list with one dict per agent, got {infos!r}."
            )
        return agents


def adapt(
    environment_class: type[Any],
    *,
    spec: EnvSpec,
    batched: bool | None = None,
    options: Sequence[str] = (),
) -> type[Environment]:
    """Return an `Environment` class for a class of this form, with its constructor."""

    class Adapted(ThreeValueAdapter):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(
                environment_class(**kwargs), spec=spec, batched=batched, options=options
            )

    Adapted.__name__ = Adapted.__qualname__ = f"Adapted{environment_class.__name__}"
    Adapted.__doc__ = f"`{environment_class.__name__}` as an `Environment`."
    return Adapted


async def _value(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result
