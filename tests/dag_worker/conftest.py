"""Lets tests of checkpoints use the tiny policy and the ranks of tests/engine, and configurations
name graphs of this folder.
"""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

METRIC_WORKER = "siirl.dag_worker.metric_worker"

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))


@pytest.fixture(autouse=True)
def every_metric_is_declared(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """siirl's own metrics have declared names and values of the declared kind: a test that logs
    others is marked `odd_metrics`.
    """
    caplog.set_level(logging.INFO, logger=METRIC_WORKER)
    yield
    odd = [
        record.message
        for when in ("setup", "call")
        for record in caplog.get_records(when)
        if record.name == METRIC_WORKER
    ]
    assert odd == [] or request.node.get_closest_marker("odd_metrics")


@pytest.fixture(autouse=True)
def not_deterministic_afterwards() -> Iterator[None]:
    """A run with trainer.deterministic leaves the process as it was."""
    yield
    torch.use_deterministic_algorithms(False)
