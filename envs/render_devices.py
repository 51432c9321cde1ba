"""Selects the GPU that a simulator's process draws on.

EGL ignores CUDA_VISIBLE_DEVICES and draws on the machine's first GPU unless MUJOCO_EGL_DEVICE_ID
names another. So all simulators of a machine would share one. Here they are spread over the GPUs of
their rank, or, on another machine, over all GPUs from the number of the rank's own one on. EGL's
device numbers are the driver's minor numbers. Left out: MIG slices, which have no graphics.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

EGL_DEVICE = "MUJOCO_EGL_DEVICE_ID"
VISIBLE = "CUDA_VISIBLE_DEVICES"
DRIVER = Path("/proc/driver/nvidia/gpus")  # one folder per GPU, with a file `information`


def gpu_uuids(driver: Path = DRIVER) -> tuple[str, ...]:
    """UUIDs of the GPUs here, in the order of EGL's devices; empty without NVIDIA's driver."""
    found: dict[int, str] = {}
    for file in driver.glob("*/information"):
        lines = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
        found[int(lines["Device Minor"])] = lines["GPU UUID"].strip()
    return tuple(found[minor] for minor in sorted(found))


def rank_gpus(environment: Mapping[str, str], uuids: Sequence[str]) -> tuple[int, ...]:
    """EGL's device numbers of the GPUs that a process may use, from its CUDA_VISIBLE_DEVICES.

    Args:
        environment: Environment variables of the process.
        uuids: `gpu_uuids` of its machine.
    """
    if VISIBLE not in environment:
        return tuple(range(len(uuids)))
    names = [name.strip() for name in environment[VISIBLE].split(",")]
    numbers = [
        int(name) if re.fullmatch(r"\d+", name) else _number_of(name, uuids) for name in names
    ]
    return tuple(number for number in numbers if number is not None and number < len(uuids))


def choose_render_device(
    *, number: int, gpus: Sequence[int], machine: str, uuids: Sequence[str] | None = None
) -> None:
    """Set MUJOCO_EGL_DEVICE_ID unless the user has; call it before MuJoCo is imported.

    Args:
        number: Index of the simulator server within its rank.
        gpus: `rank_gpus` of its rank.
        machine: Name of its rank's machine (`os.uname().nodename`).
        uuids: `gpu_uuids` of this machine; None: read them.
    """
    here = gpu_uuids() if uuids is None else uuids
    own, turn = tuple(gpus), number
    if os.uname().nodename != machine:
        # every rank numbers its servers from 0: without the offset all would begin with GPU 0
        own, turn = tuple(range(len(here))), number + next(iter(gpus), 0)
    if own and EGL_DEVICE not in os.environ:
        os.environ[EGL_DEVICE] = str(own[turn % len(own)])


def _number_of(name: str, uuids: Sequence[str]) -> int | None:
    """Number of the GPU whose UUID begins with `name`, as CUDA reads it; None for a MIG slice."""
    return next((place for place, uuid in enumerate(uuids) if name and uuid.startswith(name)), None)
