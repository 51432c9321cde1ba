"""Images of a MuJoCo scene: equal bytes twice, and frames/s of many processes."""

import hashlib
import os
import time
from multiprocessing import get_context
from typing import Any

from envs.offscreen import SceneRenderer, choose_backend, make_context
from envs.render_devices import choose_render_device, own_egl_devices
from siirl.gpu_checks.check import Trial

SCENE = """
<mujoco><worldbody>
 <light pos="0 0 3"/><camera name="eye" pos="0 -2 1.2" xyaxes="1 0 0 0 0.5 1"/>
 <geom type="plane" size="2 2 .1" rgba=".4 .5 .6 1"/>
 <body pos="0 0 .5"><freejoint/><geom type="box" size=".2 .2 .2" rgba=".8 .2 .2 1"/></body>
</worldbody></mujoco>
"""
SIZE = 256
STEPS_A_FRAME = 20
SECONDS = 2.0


def frames(trial: Trial) -> None:
    """Frames/s, physics included, of 1 to 16 simulators; the first image's hash.

    Only EGL draws on a GPU; with MUJOCO_GL=osmesa this measures the CPU.
    """
    backend = choose_backend()
    trial.note(backend=backend)
    if backend == "egl":
        devices = own_egl_devices()
        trial.note(egl_devices=len(devices))
        trial.require(
            bool(devices) or not trial.on_gpu,
            "EGL has no device for this GPU. In a container, NVIDIA_DRIVER_CAPABILITIES must "
            "include graphics; MUJOCO_GL=osmesa draws on the CPU",
        )
    counts = (1, 2, 4, 8, 16) if trial.on_gpu else (1,)
    seconds = SECONDS if trial.on_gpu else 0.2
    for count in counts:
        if trial.left_s() < 15 and count > 1:
            break
        with get_context("spawn").Pool(count) as pool:
            found = pool.starmap(simulate, [(number, seconds) for number in range(count)])
        hashes = {digest for digest, _ in found}
        trial.note(**{f"frames_per_s_{count}": sum(rate for _, rate in found)})
        trial.note(picture=sorted(hashes)[0][:16])
        trial.require(len(hashes) == 1, f"{count} processes drew {len(hashes)} different images")


def simulate(number: int, seconds: float) -> tuple[str, float]:
    """Hash of the first image, and frames/s, of one process."""
    gpus = own_egl_devices()
    choose_render_device(number=number, gpus=gpus, machine=os.uname().nodename)
    context: Any = make_context(SIZE)
    import mujoco

    model = mujoco.MjModel.from_xml_string(SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    camera = mujoco.MjvCamera()
    camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, 0
    renderer = SceneRenderer(model=model, context=context, camera=camera, quality="full", size=SIZE)
    digest = hashlib.sha256(renderer.render(data, SIZE).tobytes()).hexdigest()
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        mujoco.mj_step(model, data, STEPS_A_FRAME)
        renderer.render(data, SIZE)
        count += 1
    rate = count / (time.perf_counter() - begin)
    renderer.close()
    return digest, rate
