"""The two domains of jobs, text and robots, and the names that belong to one of them.

The environment says which domain a job is of: one whose observations are chat messages is text, all
others act.
"""

from collections.abc import Collection

import gymnasium

from envs.base import EnvSpec
from envs.text import MESSAGES

ACTION_ENGINE = "embodied"
VLLM = "vllm"
TEXT_ENGINES = ("hf", VLLM)
SRPO = "embodied_srpo"
REWARD_MODEL = "model"  # siirl.engine.reward_manager.reward_model


def observation_parts(spec: EnvSpec) -> Collection[str]:
    """What an observation consists of."""
    return (
        spec.observation_space.spaces
        if isinstance(spec.observation_space, gymnasium.spaces.Dict)
        else ()
    )


def is_text(spec: EnvSpec) -> bool:
    """Whether the environment is talked to."""
    return MESSAGES in observation_parts(spec)
