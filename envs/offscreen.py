"""Offscreen images of MuJoCo scenes: one OpenGL context, one renderer per model, any image size.

`mujoco.Renderer` has a fixed size and its own OpenGL context. Images dominate a simulator's cost.
So `fast` always omits shadows, reflections, multisampling, the sky box, and geoms outside the
picture. It also draws coarser spheres and cylinders, and thins large meshes. The physics is
unaffected, because a renderer draws from its own copy of the model.

A context and its renderers belong to one thread.
"""

import copy
import ctypes.util
import os
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from envs.perturbations import Perturbation
from envs.perturbed_look import STANDARD, Look, View, draw_look

RenderQuality = Literal["fast", "full"]
# Value of MUJOCO_GL to the libraries it needs, one from each group. Without an OpenGL library,
# PyOpenGL finds no EGL functions.
BACKENDS = {"egl": (("EGL",), ("OpenGL", "GL")), "osmesa": (("OSMesa",),)}
APT_COMMAND = "apt-get install -y libegl1 libopengl0 libgl1-mesa-dri libosmesa6"
# In Meta-World's scene only parts of the robot have more faces. 8 mm is two thirds of a pixel at
# 64x64 from a metre. Images differ by 0.6 of 255 on average, and drawing takes half as long.
THIN_ABOVE_FACES = 2000
THIN_CELL_M = 0.008
HIDDEN_GROUP = 5  # MuJoCo draws geom groups 0 to 2


def choose_backend() -> str:
    """Return the OpenGL backend: `MUJOCO_GL`, or the first installed one, and set `MUJOCO_GL` to
    it.

    Raises:
        RuntimeError: An unusable `MUJOCO_GL`, or no library; the message says what to install.
    """
    wanted = os.environ.get("MUJOCO_GL")
    if wanted in BACKENDS:
        return wanted
    if wanted is not None:
        raise RuntimeError(
            f"MUJOCO_GL={wanted!r} cannot draw without a window: set it to egl or osmesa, or "
            "unset it."
        )
    for backend, groups in BACKENDS.items():
        if all(any(ctypes.util.find_library(library) for library in group) for group in groups):
            os.environ["MUJOCO_GL"] = backend
            return backend
    raise RuntimeError(
        "No OpenGL library for images was found (looked for EGL and OSMesa). Install: "
        f"{APT_COMMAND}"
    )


def make_context(size: int) -> Any:
    """An OpenGL context for images up to `size` pixels.

    Raises:
        RuntimeError: The library or its driver is missing; the message says what to install.
    """
    backend = choose_backend()
    # Mesa draws in this thread; with one simulator per core, its helper threads would only wait
    os.environ.setdefault("LP_NUM_THREADS", "0")
    try:
        if backend == "egl":
            from mujoco.egl import GLContext
        else:
            from mujoco.osmesa import GLContext
        return GLContext(size, size)
    except (ImportError, AttributeError, OSError, RuntimeError, ValueError) as error:
        # PyOpenGL and the drivers have no common base class
        raise RuntimeError(
            f"MUJOCO_GL={backend} cannot draw: {error} Install the libraries: {APT_COMMAND}"
        ) from error


class SceneRenderer:
    """Draws one model from one camera."""

    def __init__(
        self, *, model: Any, context: Any, camera: Any, quality: RenderQuality, size: int
    ) -> None:
        """Upload a copy of `model` into `context`; `camera` is an `MjvCamera`, `size` in pixels."""
        import mujoco

        self._mujoco = mujoco
        self._gl = context
        self._camera = camera
        self._size = size
        self._fast = quality == "fast"
        self._model = copy.deepcopy(model)
        self._model.vis.global_.offwidth = self._model.vis.global_.offheight = size
        if self._fast:
            _simplify(self._model)
        self._groups = self._model.geom_group.copy()
        self._materials = self._model.geom_matid.copy()
        self._colours = self._model.geom_rgba.copy()
        context.make_current()
        self._context = mujoco.MjrContext(self._model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene = mujoco.MjvScene(self._model, maxgeom=1000)
        self._options = mujoco.MjvOption()
        self._perturb = mujoco.MjvPerturb()
        if self._fast:
            for flag in (
                mujoco.mjtRndFlag.mjRND_SHADOW,
                mujoco.mjtRndFlag.mjRND_REFLECTION,
                mujoco.mjtRndFlag.mjRND_SKYBOX,
            ):
                self._scene.flags[flag] = 0

    def draw_look(self, perturbation: Perturbation, model: Any, data: Any) -> Look:
        """Draw the look of an episode that starts at `data` of the simulator's `model`."""
        self._mujoco.mjv_updateCamera(self._model, data, self._camera, self._scene)
        return draw_look(perturbation, model=model, data=data, view=_view(self._scene))

    def render(self, data: Any, size: int, look: Look = STANDARD) -> NDArray[np.uint8]:
        """Render the scene as `look` changes it: uint8 [size, size, 3]."""
        mujoco = self._mujoco
        self._gl.make_current()
        if size > self._size:
            mujoco.mjr_resizeOffscreen(size, size, self._context)
            self._size = size
        self._model.geom_matid[:] = self._materials
        self._model.geom_rgba[:] = self._colours
        look.colour(self._model)
        if self._fast:
            outside = self._outside(data, look)
            self._model.geom_group[:] = np.where(outside, HIDDEN_GROUP, self._groups)
        category = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(
            self._model, data, self._options, self._perturb, self._camera, category, self._scene
        )
        look.change(self._scene)
        viewport = mujoco.MjrRect(0, 0, size, size)
        pixels = np.empty((size, size, 3), np.uint8)
        # another task's renderer may have bound its own context
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        mujoco.mjr_render(viewport, self._scene, self._context)
        mujoco.mjr_readPixels(pixels, None, viewport, self._context)
        return np.ascontiguousarray(pixels[::-1])  # OpenGL's first row is the lowest

    def close(self) -> None:
        """Free the model's memory in the OpenGL context."""
        self._gl.make_current()
        self._context.free()

    def _outside(self, data: Any, look: Look) -> NDArray[np.bool_]:
        """Mask [geoms] of bounding spheres outside the camera's square pyramid."""
        self._mujoco.mjv_updateCamera(self._model, data, self._camera, self._scene)
        look.move_cameras(self._scene)
        place, forward, up, slope = _view(self._scene)
        offset = data.geom_xpos - place
        depth = offset @ forward
        width = offset @ np.cross(forward, up)
        height = offset @ up
        radius = self._model.geom_rbound
        beside = np.maximum(np.abs(width), np.abs(height)) - slope * depth > radius * np.hypot(
            1.0, slope
        )
        return (beside | (depth < -radius)) & (radius > 0)  # a plane has no radius


def _view(scene: Any) -> View:
    """Pose between the two eyes of an `MjvScene`."""
    left, right = scene.camera
    return View(
        (np.array(left.pos, np.float64) + np.array(right.pos, np.float64)) / 2,
        np.array(left.forward, np.float64),
        np.array(left.up, np.float64),
        left.frustum_top / left.frustum_near,
    )


def _simplify(model: Any) -> None:
    """Changes settings that the OpenGL context reads only at its creation."""
    quality = model.vis.quality
    quality.shadowsize = quality.offsamples = 0
    quality.numslices = 12
    quality.numstacks = 8
    quality.numquads = 1
    for mesh in np.flatnonzero(model.mesh_facenum > THIN_ABOVE_FACES):
        _thin(model, mesh)


def _thin(model: Any, mesh: int) -> None:
    """Merge the vertices in each grid cell, and drop the faces that then have no area."""
    vertices = slice(model.mesh_vertadr[mesh], model.mesh_vertadr[mesh] + model.mesh_vertnum[mesh])
    first_face, num_faces = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
    cells = np.floor(model.mesh_vert[vertices] / THIN_CELL_M).astype(np.int64)
    _, representative, cell_of_vertex = np.unique(
        cells, axis=0, return_index=True, return_inverse=True
    )
    faces = representative[cell_of_vertex.reshape(-1)][
        model.mesh_face[first_face : first_face + num_faces]
    ]
    corners = np.sort(faces, axis=1)
    _, distinct = np.unique(corners, axis=0, return_index=True)
    kept = distinct[
        (corners[distinct, 0] < corners[distinct, 1])
        & (corners[distinct, 1] < corners[distinct, 2])
    ]
    for array, values in (
        (model.mesh_face, faces),
        (model.mesh_facenormal, None),
        (model.mesh_facetexcoord, None),
    ):
        of_mesh = array[first_face : first_face + num_faces] if values is None else values
        array[first_face : first_face + len(kept)] = of_mesh[kept]
    model.mesh_facenum[mesh] = len(kept)
