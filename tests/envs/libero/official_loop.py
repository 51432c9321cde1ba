"""The published evaluation's loop around LIBERO's own environment, with which ours is compared.

Written after run_libero_eval.py and libero_utils.py in experiments/robot/libero of
github.com/moojink/openvla-oft (MIT): the environment of a task is made once and seeded with 0; an
episode is a reset, an initial state and ten waiting steps; success is `done`.
"""

import warnings

import numpy as np

from envs.libero.folders import import_libero
from envs.libero.initial_states import read_initial_states

WAITING_STEPS = 10
WAITING = [0, 0, 0, 0, 0, 0, -1]


class OfficialLoop:
    """One task, episode by episode; `image_size` None leaves out images and nothing else."""

    def __init__(self, task, assets, *, image_size=None):
        environments = import_libero()
        from envs.libero.libero_simulator import _use

        _use(assets)
        self._states = read_initial_states(task.initial_states)
        cameras = {"use_camera_obs": False}
        if image_size is not None:
            cameras = {"camera_heights": image_size, "camera_widths": image_size}
        definition = str(task.definition)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._env = environments.OffScreenRenderEnv(bddl_file_name=definition, **cameras)
        self._env.seed(0)
        self._episode = -1
        self.observation = None

    def begin(self):
        """The next episode, the first one first."""
        self._episode += 1
        self._env.reset()
        self._env.set_init_state(self._states[self._episode])
        for _ in range(WAITING_STEPS):
            self.step(WAITING)

    def step(self, action):
        """Reward and `done` of one action."""
        self.observation, reward, done, _ = self._env.step(list(action))
        return reward, done

    @property
    def model(self):
        return self._env.sim.model._model

    @property
    def data(self):
        return self._env.sim.data._data

    @property
    def proprioception(self):
        """Proprioception as run_libero_eval.py gives it to the policy, float32 [8]."""
        from robosuite.utils.transform_utils import quat2axisangle

        seen = self.observation
        turn = quat2axisangle(seen["robot0_eef_quat"])
        parts = [seen["robot0_eef_pos"], turn, seen["robot0_gripper_qpos"]]
        return np.concatenate(parts).astype(np.float32)

    @property
    def images(self):
        """Agent view and wrist, turned upright, uint8 [2, size, size, 3]."""
        names = ("agentview_image", "robot0_eye_in_hand_image")
        return np.stack([self.observation[name][::-1] for name in names])

    def close(self):
        self._env.close()
