"""A sandbox with small limits, and a problem that only its right answer solves; `trials` lies on
the path.
"""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from trials import SMALL, problem

from envs.sandbox.sandbox_env import make_sandbox


@pytest.fixture(scope="session")
def small():
    """The walls of this machine. Without bubblewrap tests are skipped; where it is installed, walls
    that do not hold are a failure.
    """
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed (apt-get install bubblewrap)")
    return make_sandbox("bubblewrap", limits=SMALL)


@pytest.fixture(scope="session")
def seven():
    """solve(v) = 7 v + 3."""
    return problem(inputs=[[1], [2], [10]], outputs=[10, 17, 73], function="solve")
