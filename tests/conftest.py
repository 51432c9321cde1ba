"""What every test runs under: one thread a process, headless OpenGL, no Ray telemetry; set before torch or MuJoCo is imported.

Tests import packages from the checkout (`pythonpath` in pyproject.toml); processes that tests start find them through PYTHONPATH.
"""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def _prepare_environment() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # two OpenMP threads on contended cores collapse
    from envs.offscreen import choose_backend  # imports numpy, which reads the number of threads

    choose_backend()  # sets MUJOCO_GL
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["HF_HUB_OFFLINE"] = "1"  # no test may depend on a download
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *([path] if path else [])])


_prepare_environment()


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root folder of the checkout."""
    return REPOSITORY
