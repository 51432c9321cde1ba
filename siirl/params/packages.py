"""Optional packages and compilers: whether they are installed, without importing them."""

import importlib.util
import os
import shutil

from siirl.errors import ConfigError

INSTALL_VLLM = "make vllm"


def require_vllm() -> None:
    """Check that vLLM is installed.

    Raises:
        ConfigError: It is not; the message has the command.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            f"actor_rollout_ref.rollout.name=vllm, but vLLM is not installed. Type: {INSTALL_VLLM} "
            "  or choose rollout=hf."
        )


def has_compilers(*, gpu: bool) -> bool:
    """Whether torch.compile finds what it needs: a C++ compiler and, for a GPU, Triton."""
    found = shutil.which(os.environ.get("CXX", "g++")) is not None
    return found and (not gpu or importlib.util.find_spec("triton") is not None)
