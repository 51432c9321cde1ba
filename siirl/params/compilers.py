"""What torch.compile needs beside torch."""

import importlib.util
import os
import shutil


def has_compilers(*, gpu: bool) -> bool:
    """Whether there is a C++ compiler here, and Triton for a GPU."""
    found = shutil.which(os.environ.get("CXX", "g++")) is not None
    return found and (not gpu or importlib.util.find_spec("triton") is not None)
