"""The architecture guide's path of `siirl.compat.core_algos`."""

from typing import Any

from siirl.compat import core_algos
from siirl.compat.core_algos import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """An advantage estimator under its documented name, which `siirl.compat.core_algos` looks up."""
    return getattr(core_algos, name)
