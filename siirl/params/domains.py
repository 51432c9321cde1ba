"""The two domains of jobs, text and robots, and the names that belong to one of them.

An environment whose observations are chat messages is text; all others are robots.
"""

from collections.abc import Collection

from envs.base import EnvSpec

ACTION_ENGINE = "embodied"
VLLM = "vllm"
SERVER = "server"
TEXT_ENGINES = ("hf", VLLM, SERVER)
SRPO = "embodied_srpo"
REWARD_MODEL = "model"  # siirl.engine.reward_manager.reward_model


def observation_parts(spec: EnvSpec) -> Collection[str]:
    """Names of the parts of an observation."""
    import gymnasium  # GPU checks also run without it

    return (
        spec.observation_space.spaces
        if isinstance(spec.observation_space, gymnasium.spaces.Dict)
        else ()
    )


def is_text(spec: EnvSpec) -> bool:
    """Whether observations are chat messages."""
    from envs.text import MESSAGES  # imports gymnasium

    return MESSAGES in observation_parts(spec)
