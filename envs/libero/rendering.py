"""Images of a LIBERO scene: two cameras from one renderer, drawn upright.

LIBERO's own images are upside down (OpenGL's first row is the lowest), and the published policies turn them by 180 degrees, which leaves
left and right exchanged; `envs.libero.openvla` makes such images from ours.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envs.offscreen import RenderQuality, SceneRenderer

if TYPE_CHECKING:  # imports MuJoCo, which looks for OpenGL at once
    from envs.libero.simulator import TaskSimulator

CAMERAS = {"agentview": "agentview", "wrist": "robot0_eye_in_hand"}
"""Our name to robosuite's."""


class SceneCameras:
    """Draws the scene of simulators of one task through its cameras."""

    def __init__(self, *, model: Any, context: Any, quality: RenderQuality, size: int) -> None:
        """Upload a copy of `model` into the OpenGL `context`; images start out at `size` pixels."""
        import mujoco

        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._ids = {name: mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, theirs) for name, theirs in CAMERAS.items()}
        self._renderer = _LampRenderer(model=model, context=context, camera=self._camera, quality=quality, size=size)

    def render(self, simulator: "TaskSimulator", size: int, camera: str) -> NDArray[np.uint8]:
        """The simulator's scene now as `camera` sees it: uint8 [size, size, 3]."""
        self._camera.fixedcamid = self._ids[camera]
        self._renderer.show_lamps(simulator.model)
        return self._renderer.render(simulator.data, size)

    def close(self) -> None:
        """Free what the model took in the OpenGL context."""
        self._renderer.close()


class _LampRenderer(SceneRenderer):
    """A renderer draws from its own copy of the model; a stove that glows changes the simulator's."""

    def show_lamps(self, model: Any) -> None:
        self._model.site_rgba[:] = model.site_rgba
