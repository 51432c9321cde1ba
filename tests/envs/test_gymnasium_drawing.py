"""Pictures of robots that Gymnasium's own MuJoCo base class does not make, without a display."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envs.gymnasium import GymnasiumEnv

REPOSITORY = Path(__file__).resolve().parents[2]
ARM = '''
import os

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces
from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer

AT_IMPORT = os.environ.get("MUJOCO_GL")
SCENE = """<mujoco><visual><global offwidth="64" offheight="64"/></visual>
<worldbody><light pos="0 0 3"/><geom name="ball" size="1"/></worldbody></mujoco>"""


class Arm(gymnasium.Env):
    """Draws as gymnasium-robotics does: with Gymnasium's renderer, and without its `MujocoEnv`."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space = spaces.Box(-1.0, 1.0, (1,))
    action_space = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.model = mujoco.MjModel.from_xml_string(SCENE)
        self.data = mujoco.MjData(self.model)
        self.renderer = MujocoRenderer(self.model, self.data, width=64, height=64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        mujoco.mj_forward(self.model, self.data)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def render(self):
        return self.renderer.render(self.render_mode)


gymnasium.register("siirl-test/Arm-v0", Arm, max_episode_steps=3)
'''
DRAW = """
import asyncio
from envs.base import FrameRequest
from envs.gymnasium import GymnasiumEnv

env = GymnasiumEnv(id="arm_without_display:siirl-test/Arm-v0")
streams = {"video": FrameRequest(every=1, size=32)}
_, info = asyncio.run(env.reset(seed=0, options={"frames": streams}))
print(info["frames"]["video"].images.max() > 0)
"""


@pytest.fixture
def arm(tmp_path):
    (tmp_path / "arm_without_display.py").write_text(ARM)
    return tmp_path


def run(program, folder):
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DISPLAY", "MUJOCO_GL", "PYOPENGL_PLATFORM")
    }
    environment["PYTHONPATH"] = f"{folder}:{REPOSITORY}"
    command = [sys.executable, "-W", "ignore", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_a_robot_of_another_package_is_drawn_without_a_display(arm):
    drawn = run(DRAW, arm)
    assert drawn.stdout.split() == ["True"], drawn.stderr[-2000:]


def test_the_renderer_is_chosen_before_a_package_imports_mujoco(arm):
    program = (
        "from envs.gymnasium import GymnasiumEnv\n"
        "GymnasiumEnv(id='arm_without_display:siirl-test/Arm-v0')\n"
        "import arm_without_display\n"
        "print(arm_without_display.AT_IMPORT)\n"
    )
    assert run(program, arm).stdout.strip() in ("egl", "osmesa")


def test_a_robot_of_another_package_runs_without_frames_where_it_cannot_draw(arm, monkeypatch):
    monkeypatch.syspath_prepend(str(arm))
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    assert not GymnasiumEnv(id="arm_without_display:siirl-test/Arm-v0").spec.renders
