"""Arms of gymnasium-robotics and robosuite as Gymnasium environments with images.

An observation has an image, the robot's own state and the task as text; poses of objects and of the
goal appear only in the image. Physics, actions, rewards and success come from the packages:
`env=gymnasium env.id=envs.gymnasium_arms:arms/FetchReach-v0`, or the presets `env=fetch_reach`,
`env=fetch_push` and `env=robosuite_lift`. `expert` is a scripted expert for `siirl warm-start`.

Left out: other tasks of the two packages, whose observations need a choice of the robot's own part.
"""

import importlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.arguments import check_counts
from envs.base import Environment
from envs.gymnasium import GymnasiumEnv
from envs.libero.folders import prepare_robosuite
from envs.offscreen import choose_backend

INSTALL = "pip install --no-deps gymnasium-robotics==1.4.2 pettingzoo==1.27.0"  # of the Fetch arms
STATE = "state"
PICTURE = "picture"
MISSION = "mission"
MOST_CHARACTERS = 100
FETCH_CAMERA = {
    # closer than the package's camera: the goal is a ball of 2 cm
    "distance": 1.1,
    "azimuth": 132.0,
    "elevation": -35.0,
    "lookat": np.array([1.3, 0.75, 0.5]),
}
FETCH_MISSIONS = {
    "FetchReach-v4": "move the gripper to the red ball",
    "FetchPush-v4": "push the black block to the red ball",
}
FETCH_STEPS = 50  # the packages' own limit
LIFT_STEPS = 60  # 3 s; the expert needs 22 to 26
LIFTED_M = 0.95  # the table is at 0.8, and success begins at 0.84
STEP_M = 0.05  # largest move of an action of both arms
Vector = NDArray[np.float32]


class Arm(gymnasium.Env[Any, Any]):
    """Common base of the arms: their spaces, and the image as observation and as frame."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  (Gymnasium declares its type)
    mission: str

    def __init__(self, *, size: int, state: int, actions: int, render_mode: str | None) -> None:
        self.size = size
        self.render_mode = render_mode
        self.observation_space = spaces.Dict(
            {
                PICTURE: spaces.Box(0, 255, (size, size, 3), np.uint8),
                STATE: spaces.Box(-np.inf, np.inf, (state,), np.float32),
                MISSION: spaces.Text(MOST_CHARACTERS),
            }
        )
        self.action_space = spaces.Box(-1.0, 1.0, (actions,), np.float32)

    def seen(self, state: NDArray[Any]) -> dict[str, Any]:
        """The observation of the current state."""
        return {
            PICTURE: self.render(),
            STATE: np.asarray(state, np.float32),
            MISSION: self.mission,
        }

    def expert_action(self) -> Vector:
        """The next action of a scripted expert, which knows the poses."""
        raise NotImplementedError


class FetchArm(Arm):
    """FetchReach or FetchPush of gymnasium-robotics; success is its own flag."""

    def __init__(self, task: str, size: int = 64, render_mode: str | None = "rgb_array") -> None:
        check_counts(size=size)
        choose_backend()  # before MuJoCo is imported
        try:
            gymnasium.register_envs(importlib.import_module("gymnasium_robotics"))
        except ModuleNotFoundError as missing:
            raise gymnasium.error.DependencyNotInstalled(f"{missing}. Type: {INSTALL}") from missing
        self.env = gymnasium.make(
            task,
            render_mode="rgb_array",
            width=size,
            height=size,
            default_camera_config=FETCH_CAMERA,
        ).unwrapped
        self.model = self.env.model  # type: ignore[attr-defined]
        self.mission = FETCH_MISSIONS[task]
        whole = self.env.observation_space["observation"].shape[0]  # type: ignore[index]
        # position, fingers, and their velocities, in the order of its `_get_obs`
        self._own = np.r_[:10] if whole == 10 else np.r_[:3, 9:11, 20:25]
        super().__init__(size=size, state=len(self._own), actions=4, render_mode=render_mode)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """See `gymnasium.Env.reset`."""
        observation, info = self.env.reset(seed=seed)
        self._raw: Any = observation
        return self.seen(self._state()), {"is_success": False, **info}

    def step(self, action: Vector) -> Any:
        """See `gymnasium.Env.step`."""
        self._raw, reward, terminated, truncated, info = self.env.step(action)
        info = {**info, "is_success": bool(info["is_success"])}
        return self.seen(self._state()), reward, terminated, truncated, info

    def render(self) -> Any:
        """The picture, uint8 [size, size, 3]."""
        return self.env.render()

    def close(self) -> None:
        """Close the simulator."""
        self.env.close()

    def expert_action(self) -> Vector:
        """See `Arm.expert_action`: towards the goal, or behind the block and then pushing it."""
        hand, goal = self._raw["observation"][:3], self._raw["desired_goal"]
        target = goal if self.mission == FETCH_MISSIONS["FetchReach-v4"] else self._push(hand, goal)
        return np.append(np.clip((target - hand) / STEP_M, -1.0, 1.0), 0.0).astype(np.float32)

    def _push(self, hand: NDArray[Any], goal: NDArray[Any]) -> NDArray[Any]:
        """Target of the hand: above and then behind the block, or further along."""
        block = self._raw["achieved_goal"]
        away = (goal - block)[:2]
        distance = float(np.linalg.norm(away))
        along = away / max(distance, 1e-6)
        offset = (hand - block)[:2]
        behind = -float(offset @ along)
        aside = float(np.linalg.norm(offset + behind * along))
        if distance < 0.025:
            return hand
        if behind > 0.02 and aside < 0.02 and hand[2] - block[2] < 0.03:
            ahead = block[:2] + along * (0.4 * min(distance, 2 * STEP_M) - 0.04)
            return np.array([*ahead, block[2]])
        start = block[:2] - 0.09 * along
        near = float(np.linalg.norm(hand[:2] - start)) < 0.02
        return np.array([*start, block[2] if near else block[2] + 0.12])

    def _state(self) -> NDArray[Any]:
        return self._raw["observation"][self._own]


class LiftArm(Arm):
    """robosuite's Lift with a Panda, moved by its operational-space controller (OSC_POSE)."""

    mission = "lift the red cube"

    def __init__(self, size: int = 64, render_mode: str | None = "rgb_array") -> None:
        check_counts(size=size)
        choose_backend()  # before MuJoCo is imported
        prepare_robosuite()
        import mujoco

        robosuite: Any = importlib.import_module("robosuite")
        self.env = robosuite.make(
            "Lift",
            robots="Panda",
            controller_configs=robosuite.load_controller_config(default_controller="OSC_POSE"),
            has_renderer=False,
            has_offscreen_renderer=False,
            use_camera_obs=False,
            hard_reset=False,  # recompiling the scene takes a second
            ignore_done=True,
        )
        self.model = self.env.sim.model._model
        self.model.vis.quality.shadowsize = self.model.vis.quality.offsamples = 0
        buffer = self.model.vis.global_  # 640 pixels
        buffer.offwidth, buffer.offheight = max(buffer.offwidth, size), max(buffer.offheight, size)
        self._renderer = mujoco.Renderer(self.model, height=size, width=size)
        # robosuite draws group 1; group 0 has collision shapes
        self._visible = mujoco.MjvOption()
        self._visible.geomgroup[0] = 0
        super().__init__(size=size, state=9, actions=7, render_mode=render_mode)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """See `gymnasium.Env.reset`; robosuite draws from NumPy's global generator."""
        kept = np.random.get_state()
        np.random.seed(_words(seed))
        try:
            gripper = self.env.robots[0].gripper
            gripper.current_action = np.zeros(gripper.dof)  # otherwise a reset keeps it
            self._raw: Any = self.env.reset()
        finally:
            np.random.set_state(kept)
        return self.seen(self._state()), {"is_success": False}

    def step(self, action: Vector) -> Any:
        """See `gymnasium.Env.step`."""
        self._raw, reward, _, _ = self.env.step(action)
        return (
            self.seen(self._state()),
            float(reward),
            False,
            False,
            {"is_success": bool(self.env._check_success())},
        )

    def render(self) -> Any:
        """The picture of the camera `agentview`, uint8 [size, size, 3]."""
        self._renderer.update_scene(
            self.env.sim.data._data, camera="agentview", scene_option=self._visible
        )
        return self._renderer.render()

    def close(self) -> None:
        """Close the simulator."""
        self._renderer.close()
        self.env.close()

    def expert_action(self) -> Vector:
        """See `Arm.expert_action`: above the cube, down, close the fingers, up."""
        hand, cube = self._raw["robot0_eef_pos"], self._raw["cube_pos"]
        across = float(np.linalg.norm((cube - hand)[:2]))
        held = bool(
            self.env._check_grasp(gripper=self.env.robots[0].gripper, object_geoms=self.env.cube)
        )
        at_cube = across < 0.015 and abs(float(cube[2] - hand[2])) < 0.015
        if held:
            target = np.array([*hand[:2], LIFTED_M])
        elif across > 0.015 and hand[2] - cube[2] > 0.03:
            target = cube + np.array([0.0, 0.0, 0.08])
        else:
            target = cube
        fingers = 1.0 if held or at_cube else -1.0
        move = np.clip((target - hand) / STEP_M * 2, -1.0, 1.0)
        return np.array([*move, 0.0, 0.0, 0.0, fingers], np.float32)

    def _state(self) -> NDArray[Any]:
        names = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
        return np.concatenate([self._raw[name] for name in names])


def _words(seed: int | None) -> int | list[int] | None:
    """The seed for NumPy's global generator, which takes large numbers as 32-bit words."""
    if seed is None or seed < 1 << 32:
        return seed
    return [seed >> low & 0xFFFFFFFF for low in range(0, seed.bit_length(), 32)]


def expert(task: str) -> Callable[[Environment], Vector]:
    """The scripted expert of an arm: `siirl warm-start --expert envs.gymnasium_arms:expert`."""

    def act(environment: Environment) -> Vector:
        assert isinstance(environment, GymnasiumEnv)
        arm = environment.native
        assert isinstance(arm, Arm)
        return arm.expert_action()

    return act


for _task, _name in (("FetchReach-v4", "FetchReach"), ("FetchPush-v4", "FetchPush")):
    gymnasium.register(
        f"arms/{_name}-v0",
        entry_point="envs.gymnasium_arms:FetchArm",
        max_episode_steps=FETCH_STEPS,
        kwargs={"task": _task},
    )
gymnasium.register(
    "arms/RobosuiteLift-v0", entry_point="envs.gymnasium_arms:LiftArm", max_episode_steps=LIFT_STEPS
)
