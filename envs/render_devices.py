"""Selects the GPU that a simulator's process draws on.

EGL numbers its devices in an order of its own and ignores CUDA_VISIBLE_DEVICES. MuJoCo draws on
EGL's first device unless MUJOCO_EGL_DEVICE_ID names another, so all simulators of a machine would
share one. Here they are spread over the GPUs of their rank, or, on another machine, over all GPUs
from the number of the rank's own one on.

EGL says which CUDA device each of its devices is (EGL_NV_device_cuda,
registry.khronos.org/EGL/extensions/NV/EGL_NV_device_cuda.txt). The answer is CUDA's number in the
process that asks, where CUDA_VISIBLE_DEVICES applies; a GPU that the process cannot see has none.
Left out: MIG slices, which have no graphics.
"""

import ctypes
import ctypes.util
import functools
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

EGL_DEVICE = "MUJOCO_EGL_DEVICE_ID"
VISIBLE = "CUDA_VISIBLE_DEVICES"
CUDA_DEVICE = 0x323A  # EGL_CUDA_DEVICE_NV
MOST_DEVICES = 10  # as many as MuJoCo asks for (mujoco/egl/egl_ext.py); it draws on no other
FUNCTIONS = {
    "eglQueryDevicesEXT": ctypes.CFUNCTYPE(
        ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p
    ),
    "eglQueryDeviceAttribEXT": ctypes.CFUNCTYPE(
        ctypes.c_uint, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
    ),
}
ANSWERS_WITHIN_S = 60.0

logger = logging.getLogger(__name__)


def cuda_numbers(egl: Any) -> list[int | None]:
    """CUDA's number of each of EGL's first devices in this process; None if CUDA does not show it.

    Args:
        egl: EGL's library.

    Raises:
        OSError: It lacks the functions that list devices.
    """
    devices, count = (ctypes.c_void_p * MOST_DEVICES)(), ctypes.c_int()
    if not _function(egl, "eglQueryDevicesEXT")(MOST_DEVICES, devices, ctypes.byref(count)):
        return []
    ask, found = _function(egl, "eglQueryDeviceAttribEXT"), []
    for device in devices[: count.value]:
        number = ctypes.c_ssize_t(-1)
        known = ask(ctypes.c_void_p(device), CUDA_DEVICE, ctypes.byref(number))
        found.append(number.value if known and number.value >= 0 else None)
    return found


def own_egl_devices() -> tuple[int, ...]:
    """`egl_devices` of this process."""
    return egl_devices(os.environ.get(VISIBLE))


@functools.cache
def egl_devices(visible: str | None) -> tuple[int, ...]:
    """EGL's numbers of the GPUs that a process may use, in CUDA's order; empty without an NVIDIA
    GPU.

    Another process asks EGL, because the driver may end a process whose GPUs it cannot open.

    Args:
        visible: Its CUDA_VISIBLE_DEVICES; None: it is not set.
    """
    if visible == "" or not any(Path("/dev").glob("nvidia[0-9]*")):
        return ()
    return in_cuda_order(_ask(visible))


def in_cuda_order(numbers: Sequence[int | None]) -> tuple[int, ...]:
    """EGL's numbers of the devices with a CUDA number, by that number; the first one of several
    with the same.
    """
    places: dict[int, int] = {}
    for place, number in enumerate(numbers):
        if number is not None:
            places.setdefault(number, place)
    return tuple(places[number] for number in sorted(places))


def choose_render_device(
    *, number: int, gpus: Sequence[int], machine: str, all_here: Sequence[int] | None = None
) -> None:
    """Set MUJOCO_EGL_DEVICE_ID unless the user has; call it before MuJoCo is imported.

    Args:
        number: Index of the simulator server within its rank.
        gpus: `own_egl_devices` of its rank.
        machine: Name of its rank's machine (`os.uname().nodename`).
        all_here: `egl_devices` of all GPUs of this machine; None: ask.
    """
    own, turn = tuple(gpus), number
    if os.uname().nodename != machine:
        # every rank numbers its servers from 0: without the offset all would begin with GPU 0
        own = tuple(egl_devices(None) if all_here is None else all_here)
        turn = number + next(iter(gpus), 0)
    if own and EGL_DEVICE not in os.environ:
        os.environ[EGL_DEVICE] = str(own[turn % len(own)])


def _function(egl: Any, name: str) -> Callable[..., int]:
    """A function of an extension, which a library need not export."""
    address = egl.eglGetProcAddress(name.encode())
    if not address:
        raise OSError(f"This EGL has no {name}")
    return FUNCTIONS[name](address)


def _ask(visible: str | None) -> list[int | None]:
    """`cuda_numbers` of a process with another CUDA_VISIBLE_DEVICES."""
    environment = {name: value for name, value in os.environ.items() if name != VISIBLE}
    if visible is not None:
        environment[VISIBLE] = visible
    try:
        ended = subprocess.run(
            [sys.executable, "-P", __file__],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWERS_WITHIN_S,
        )
        numbers: list[int | None] = json.loads(ended.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        reason = f"it did not answer within {ANSWERS_WITHIN_S:g} s"
        if isinstance(error, json.JSONDecodeError):
            last = ended.stderr.strip().rpartition("\n")[2]
            reason = last or f"the process that asked ended with {ended.returncode}"
        logger.warning(
            "EGL does not say which of its devices are GPUs (%s). Simulators draw on its first "
            "device; %s names another.",
            reason,
            EGL_DEVICE,
        )
        return []
    return numbers


if __name__ == "__main__":
    library = ctypes.CDLL(ctypes.util.find_library("EGL") or "libEGL.so.1")
    library.eglGetProcAddress.restype = ctypes.c_void_p
    print(json.dumps(cuda_numbers(library)))
