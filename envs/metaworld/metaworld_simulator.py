"""One Meta-World task, built once and reset many times: physics and success, no images.

Meta-World's `reset` leaves traces of the last episode in the model's bodies and sites and in Python
attributes, and moves the hand into place twice. Here every reset restores the constructor's state,
draws object and goal from the seed, and moves the hand once; the seed alone determines the episode.
Physics, observation and success flag are Meta-World's: the same draw and actions give the same
`qpos` as its environment, bit for bit (a test).
"""

import itertools
from typing import Any, NamedTuple

import mujoco
import numpy as np
from gymnasium.utils import seeding
from metaworld.env_dict import ALL_V3_ENVIRONMENTS
from numpy.typing import NDArray

from envs.metaworld.speed import lighten
from envs.metaworld.suite import VERSION_SUFFIX
from envs.mujoco_state import STATE, divergence, state_of

# Parts of Meta-World's observation [39]: the gripper, and the positions of two objects
GRIPPER = slice(0, 4)
THING = slice(4, 7)
SECOND_THING = slice(11, 14)
GRIPPER_TASKS = ("reach", "reach-wall")  # the gripper itself is brought to the goal
TOOL_TASKS = ("stick-pull", "stick-push")  # the first object moves the second one to the goal


AS_DRAWN = np.zeros(2)


class EpisodeState(NamedTuple):
    """Simulator state that an episode changes."""

    state: NDArray[np.float64]
    body_pos: NDArray[np.float64]
    site_pos: NDArray[np.float64]
    attributes: dict[str, Any]


class MetaWorldSimulator:
    """Physics and success flag of one Meta-World task."""

    def __init__(self, task: str) -> None:
        """Load the model of `task` (canonical name); takes a third of a second."""
        self.task = task
        self._env: Any = ALL_V3_ENVIRONMENTS[task + VERSION_SUFFIX]()
        self._env._partially_observable = False  # the scripted experts read the goal
        # cached for the partially observable case; computed anew by the next line
        del self._env.sawyer_observation_space
        assert self._env.sawyer_observation_space.shape == (39,)
        self._env._set_task_called = True
        self._env.seeded_rand_vec = True
        lighten(self._env, task=task)
        self.model: mujoco.MjModel = self._env.model
        self.data: mujoco.MjData = self._env.data
        self._made = self._snapshot()
        # by whether objects are displaced
        self._starts: dict[bool, tuple[tuple[int, bytes], EpisodeState]] = {}
        self._observation: NDArray[np.float64] = np.zeros(39)

    def reset(self, *, seed: int, displacement: NDArray[np.float64] = AS_DRAWN) -> None:
        """Start the episode of `seed`; caches the last start for a group of rollouts, and the last
        displaced one.

        `displacement` [2] moves object and goal in x and y, in metres.
        """
        key = (seed, displacement.tobytes())
        displaced = bool(displacement.any())
        if displaced in self._starts and self._starts[displaced][0] == key:
            self._restore(self._starts[displaced][1])
        else:
            self._draw(seed, displacement)
            self._starts[displaced] = (key, self._snapshot())
        self._observation = self._env._get_obs()
        self._check()

    def step(self, action: NDArray[np.float32]) -> bool:
        """Apply one action, float32 [4] in [-1, 1]; returns the benchmark's success flag.

        Raises:
            RuntimeError: The simulation diverged.
        """
        self._observation, _, _, _, info = self._env.step(action)
        self._check()
        return bool(info["success"])

    @property
    def state(self) -> NDArray[np.float64]:
        """Return Meta-World's observation [39] with true poses, for experts and oracles only."""
        return self._observation.copy()

    @property
    def proprioception(self) -> NDArray[np.float32]:
        """Gripper position (3, metres) and opening (0 closed, 1 open): float32 [4]."""
        return self._observation[GRIPPER].astype(np.float32)

    @property
    def oracle_distance(self) -> float:
        """Return the remaining distance in metres: fingers to object, plus object to goal.

        One leg for reaching (fingers to goal), three if a tool moves the object. It falls along the
        scripted experts' episodes (a test); at success it is small, within the benchmark's
        tolerance.
        """
        fingers, goal = self._env.tcp_center, np.asarray(self._env._target_pos)
        if self.task in GRIPPER_TASKS:
            places = [fingers, goal]
        elif self.task in TOOL_TASKS:
            places = [fingers, self._observation[THING], self._observation[SECOND_THING], goal]
        else:
            places = [fingers, self._observation[THING], goal]
        return float(
            sum(np.linalg.norm(there - here) for here, there in itertools.pairwise(places))
        )

    def _draw(self, seed: int, displacement: NDArray[np.float64]) -> None:
        """Meta-World's reset, but with a single motion of the hand; Meta-World places everything
        twice.
        """
        env = self._env
        self._restore(self._made)
        env.np_random = seeding.np_random(seed)[0]
        env._freeze_rand_vec = False
        env._reset_hand = self._hand_stays
        env.reset_model()
        del env._reset_hand
        env._freeze_rand_vec = True  # the second placement uses the first one's draw
        env._last_rand_vec = _displaced(env._last_rand_vec, env._random_reset_space, displacement)
        mujoco.mj_resetData(self.model, self.data)
        env.reset_model()
        # bodies moved since Meta-World's last forward pass, so images would be stale
        mujoco.mj_forward(self.model, self.data)

    def _hand_stays(self) -> None:
        self._env.init_tcp = self._env.tcp_center

    def _snapshot(self) -> EpisodeState:
        state = state_of(self.model, self.data)
        return EpisodeState(
            state,
            self.model.body_pos.copy(),
            self.model.site_pos.copy(),
            _own_copies(vars(self._env)),
        )

    def _restore(self, snapshot: EpisodeState) -> None:
        vars(self._env).clear()
        vars(self._env).update(_own_copies(snapshot.attributes))
        self.model.body_pos[:] = snapshot.body_pos
        self.model.site_pos[:] = snapshot.site_pos
        mujoco.mj_resetData(self.model, self.data)
        mujoco.mj_setState(self.model, self.data, snapshot.state, STATE)
        mujoco.mj_forward(self.model, self.data)

    def _check(self) -> None:
        diverged = divergence(self.data)
        if diverged or not np.isfinite(self._observation).all():
            raise RuntimeError(
                f"The simulation of Meta-World task {self.task!r} diverged "
                f"({', '.join(diverged) or 'not finite'})."
            )


def _displaced(
    drawn: NDArray[np.float64], space: Any, displacement: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Meta-World's draw [3] or [6] (object, goal) with the same displacement of x and y for all
    parts. So the distance of object and goal, which some tasks require, stays. An axis that the
    task keeps fixed for one of them is not displaced; `envs.metaworld.suite.FIXED` has no other.
    """
    parts = drawn.reshape(-1, 3).copy()
    free = (space.high > space.low).reshape(-1, 3)
    parts[:, :2] += displacement * free[:, :2].all(axis=0)
    return parts.reshape(-1)


def _own_copies(attributes: dict[str, Any]) -> dict[str, Any]:
    """Copies arrays that an episode may change; keeps views into MuJoCo's memory."""
    return {name: _own_copy(value) for name, value in attributes.items()}


def _own_copy(value: Any) -> Any:
    return (
        value.copy()
        if isinstance(value, (list, dict)) or (isinstance(value, np.ndarray) and value.base is None)
        else value
    )
