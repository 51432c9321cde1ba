"""One grader per test file."""

from collections.abc import Iterator

import pytest

from envs.math.grading import Grader


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    """A grader whose limit only a hang reaches."""
    grader = Grader(num_workers=1, cpu_s=5.0)
    yield grader
    grader.close()
