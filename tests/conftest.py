"""What every test runs under: one thread a process, headless OpenGL, no Ray telemetry; set before torch or MuJoCo is imported.

Tests import packages from the checkout (`pythonpath` in pyproject.toml); processes that tests start find them through PYTHONPATH.
"""

import ctypes.util
import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def _headless_opengl() -> str:
    """EGL where its library is installed, else OSMesa; both draw in software."""
    return "egl" if ctypes.util.find_library("EGL") else "osmesa"


def _prepare_environment() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # two OpenMP threads on contended cores collapse
    os.environ.setdefault("MUJOCO_GL", _headless_opengl())
    os.environ.setdefault("PYOPENGL_PLATFORM", os.environ["MUJOCO_GL"])
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["HF_HUB_OFFLINE"] = "1"  # no test may depend on a download
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *([path] if path else [])])


_prepare_environment()


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root folder of the checkout."""
    return REPOSITORY
