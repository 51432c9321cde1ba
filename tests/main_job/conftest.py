"""Lets these tests use `real_run` beside them, and ends what a failing test has left running."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from real_run import RealRun


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[Callable[..., RealRun]]:
    """Starts `python -m siirl.train` with a small job and `words`; processes that are left at the
    end of the test are killed.
    """
    runs: list[RealRun] = []

    def start(*words: str, **arguments: object) -> RealRun:
        runs.append(RealRun(*words, folder=tmp_path, number=len(runs), **arguments))  # type: ignore[arg-type]
        return runs[-1]

    yield start
    for run in runs:
        run.kill_all()
