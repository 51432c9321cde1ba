"""Images of a LIBERO scene: two cameras from one renderer, drawn upright.

LIBERO's own images are upside down (OpenGL's first row is the lowest), and the published policies
rotate them by 180 degrees, which leaves left and right exchanged; `envs.libero.openvla_conventions`
makes such images from ours. Like LIBERO's, images show the scene at the sensors' last reading
(`envs.libero.libero_simulator`); with render quality `full` they are equal to LIBERO's to the last
bit (tested).
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envs.offscreen import RenderQuality, SceneRenderer
from envs.perturbations import Perturbation
from envs.perturbed_look import Look

if TYPE_CHECKING:  # imports MuJoCo, which looks for OpenGL at once
    from envs.libero.libero_simulator import LiberoSimulator

CAMERAS = {"agentview": "agentview", "wrist": "robot0_eye_in_hand"}
"""Maps our camera names to robosuite's."""


class SceneCameras:
    """Draws the scene of simulators of one task through its cameras."""

    def __init__(self, *, model: Any, context: Any, quality: RenderQuality, size: int) -> None:
        """Upload a copy of `model` into the OpenGL `context`; images start out at `size` pixels."""
        import mujoco

        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._data = mujoco.MjData(model)  # poses that are drawn
        self._ids = {
            name: mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, theirs)
            for name, theirs in CAMERAS.items()
        }
        self._renderer = _LampRenderer(
            model=model, context=context, camera=self._camera, quality=quality, size=size
        )

    def look(self, simulator: "LiberoSimulator", camera: str, perturbation: Perturbation) -> Look:
        """See `Renderer.look`."""
        self._pose(simulator, camera)
        return self._renderer.draw_look(perturbation, simulator.model, self._data)

    def render(
        self, simulator: "LiberoSimulator", size: int, camera: str, look: Look
    ) -> NDArray[np.uint8]:
        """Render the simulator's last sample from `camera`: uint8 [size, size, 3]."""
        self._pose(simulator, camera)
        self._renderer.show_lamps(simulator.sample.lamps)
        return self._renderer.render(self._data, size, look)

    def _pose(self, simulator: "LiberoSimulator", camera: str) -> None:
        """Compute the poses of the last sample, and select the camera."""
        import mujoco

        self._data.qpos[:] = simulator.sample.positions
        for poses in (mujoco.mj_kinematics, mujoco.mj_comPos, mujoco.mj_camlight):
            poses(simulator.model, self._data)
        self._camera.fixedcamid = self._ids[camera]

    def close(self) -> None:
        """Free the model's resources in the OpenGL context."""
        self._renderer.close()


class _LampRenderer(SceneRenderer):
    """Copies the colour of a glowing stove into the renderer's copy of the model."""

    def show_lamps(self, colours: NDArray[np.float32]) -> None:
        self._model.site_rgba[:] = colours
