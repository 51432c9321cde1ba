"""Lets tests of checkpoints use the tiny policy and the ranks of tests/engine, and configurations name graphs of this folder."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))


@pytest.fixture(autouse=True)
def not_deterministic_afterwards() -> Iterator[None]:
    """A run with trainer.deterministic leaves the process as it was."""
    yield
    torch.use_deterministic_algorithms(False)
