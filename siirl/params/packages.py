"""Optional packages of a run and their install commands; checked without importing them."""

import importlib.util

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
