"""Checks for the compilers that torch.compile needs."""

import importlib.util
import os
import shutil


def has_compilers(*, gpu: bool) -> bool:
    """Whether a C++ compiler and, for a GPU, Triton are installed."""
    found = shutil.which(os.environ.get("CXX", "g++")) is not None
    return found and (not gpu or importlib.util.find_spec("triton") is not None)
