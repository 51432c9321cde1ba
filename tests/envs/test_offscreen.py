"""The renderer draws pictures of any size from one context, independent of earlier ones, and
reports missing OpenGL.
"""

import ctypes.util
import subprocess
import sys

import mujoco
import numpy as np
import pytest

from envs.offscreen import (
    APT_COMMAND,
    THIN_ABOVE_FACES,
    SceneRenderer,
    choose_backend,
    make_context,
)
from envs.perturbed_look import STANDARD

SCENE = """
<mujoco>
  <asset><texture name="sky" type="skybox" builtin="flat" rgb1="0 0 1" rgb2="0 0 1" width="8" height="8"/></asset>
  <worldbody>
    <light pos="0 0 3"/>
    <geom name="ball" type="sphere" size="0.3" rgba="1 0 0 1"/>
    <geom name="beside" type="sphere" size="0.3" pos="0 9 0" rgba="0 1 0 1"/>
    <geom name="behind" type="sphere" size="0.3" pos="9 0 0" rgba="0 1 0 1"/>
    <geom name="edge" type="sphere" size="0.3" pos="0 1.0 0" rgba="0 1 0 1"/>
  </worldbody>
</mujoco>
"""


@pytest.fixture(scope="module")
def context():
    made = make_context(32)
    yield made
    made.free()


@pytest.fixture
def scene():
    model = mujoco.MjModel.from_xml_string(SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    camera = mujoco.MjvCamera()
    camera.type, camera.lookat[:] = mujoco.mjtCamera.mjCAMERA_FREE, 0.0
    camera.distance, camera.azimuth, camera.elevation = 2.0, 180.0, 0.0
    return model, data, camera


def renderer(context, scene, quality="fast", size=32):
    model, _, camera = scene
    return SceneRenderer(model=model, context=context, camera=camera, quality=quality, size=size)


def test_middle_of_the_picture_shows_the_ball(context, scene):
    picture = renderer(context, scene).render(scene[1], 32)
    _, middle, most = np.sort(picture[16, 16].astype(int))
    assert picture[16, 16, 0] == most > 2 * middle


def test_sky_is_drawn_in_full_quality_only(context, scene):
    assert renderer(context, scene, "fast").render(scene[1], 32)[0, 16].tolist() == [0, 0, 0]
    assert renderer(context, scene, "full").render(scene[1], 32)[0, 16].tolist() == [0, 0, 255]


def test_first_row_of_the_picture_is_the_top(context, scene):
    model, data, _ = scene
    model.geom_pos[0] = (0, 0, 0.4)
    mujoco.mj_forward(model, data)
    picture = renderer(context, scene).render(data, 32)
    assert picture[:16, :, 0].sum() > picture[16:, :, 0].sum()


def test_what_is_not_in_the_picture_is_not_drawn(context, scene):
    outside = renderer(context, scene)._outside(scene[1], STANDARD)
    assert outside.tolist() == [False, True, True, False]  # the edge of the last one can be seen


def test_leaving_out_what_cannot_be_seen_changes_no_pixel(context, scene, monkeypatch):
    drawn = renderer(context, scene).render(scene[1], 32)
    monkeypatch.setattr(SceneRenderer, "_outside", lambda self, data, look: np.zeros(4, bool))
    assert np.array_equal(renderer(context, scene).render(scene[1], 32), drawn)


def test_sizes_may_come_in_any_order(context, scene):
    one = renderer(context, scene, size=16)
    small = one.render(scene[1], 16)
    assert one.render(scene[1], 64).shape == (64, 64, 3)
    assert np.array_equal(one.render(scene[1], 16), small)


def test_two_renderers_share_a_context(context, scene):
    first, second = renderer(context, scene), renderer(context, scene, size=48)
    alone = first.render(scene[1], 32)
    second.render(scene[1], 48)
    assert np.array_equal(first.render(scene[1], 32), alone)


def test_pictures_are_arrays_of_their_own(context, scene):
    one = renderer(context, scene)
    before = one.render(scene[1], 32)
    kept = before.copy()
    before[:] = 0
    assert np.array_equal(one.render(scene[1], 32), kept)


def test_physics_model_is_left_as_it_was(context, scene):
    model = scene[0]
    before = (model.vis.quality.shadowsize, model.vis.quality.offsamples, model.geom_group.tolist())
    renderer(context, scene).render(scene[1], 32)
    assert (
        model.vis.quality.shadowsize,
        model.vis.quality.offsamples,
        model.geom_group.tolist(),
    ) == before


def test_large_meshes_are_thinned_and_keep_their_shape(context):
    angles, heights = np.meshgrid(
        np.linspace(0, 2 * np.pi, 60, endpoint=False), np.linspace(0, 0.1, 30)
    )
    points = np.stack([0.05 * np.cos(angles), 0.05 * np.sin(angles), heights], axis=-1).reshape(
        -1, 3
    )
    corner = np.arange(29 * 60)
    beside = corner // 60 * 60 + (corner + 1) % 60
    faces = np.concatenate(
        [
            np.stack([corner, beside, beside + 60], 1),
            np.stack([corner, beside + 60, corner + 60], 1),
        ]
    )
    spec = mujoco.MjSpec()
    mesh = spec.add_mesh(name="tube")
    mesh.uservert, mesh.userface = points.ravel().tolist(), faces.ravel().tolist()
    mesh.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname="tube", rgba=[1, 0, 0, 1])
    model = spec.compile()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    camera = mujoco.MjvCamera()
    camera.lookat[:], camera.distance = data.geom_xpos[0], 0.4
    assert model.mesh_facenum[0] > THIN_ABOVE_FACES
    fast, full = (
        SceneRenderer(model=model, context=context, camera=camera, quality=quality, size=64)
        for quality in ("fast", "full")
    )
    assert fast._model.mesh_facenum[0] < model.mesh_facenum[0] / 3
    tube, whole_tube = (one.render(data, 64)[..., 0] > 0 for one in (fast, full))
    assert (tube != whole_tube).mean() < 0.02


def test_first_backend_whose_library_is_there_is_taken(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "")
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.setattr(
        ctypes.util, "find_library", lambda name: "libOSMesa.so" if name == "OSMesa" else None
    )
    assert choose_backend() == "osmesa"


def test_missing_libraries_are_refused_with_the_install_command(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    with pytest.raises(RuntimeError, match=f"looked for EGL and OSMesa.*{APT_COMMAND}"):
        choose_backend()


@pytest.mark.parametrize(
    "broken",
    [
        {"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "osmesa"},
        {"MUJOCO_GL": "egl", "MUJOCO_EGL_DEVICE_ID": "99"},
        {"MUJOCO_GL": "osmesa", "PYOPENGL_PLATFORM": "egl"},
    ],
)
def test_failing_library_is_refused_with_the_install_command(broken, repository):
    code = "from envs.offscreen import make_context; make_context(8)"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(repository), **broken}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 1
    assert f"RuntimeError: MUJOCO_GL={broken['MUJOCO_GL']} cannot draw: " in result.stderr
    assert APT_COMMAND in result.stderr
