"""Re-exports `siirl.compat.core_algos` under its documented import path."""

from typing import Any

from siirl.compat import core_algos
from siirl.compat.core_algos import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Look up an advantage estimator by its documented name."""
    return getattr(core_algos, name)
