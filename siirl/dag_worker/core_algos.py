"""The architecture guide's path of `siirl.compat.core_algos`."""

from siirl.compat.core_algos import *  # noqa: F403
