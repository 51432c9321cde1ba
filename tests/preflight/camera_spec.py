"""Specs for numbers that can be checked by hand: of an environment with two tasks and a camera, as
`env=metaworld` has one, and of one that asks questions in text.
"""

import dataclasses

import gymnasium
import numpy as np

from envs.base import IMAGES, EnvSpec
from envs.metaworld.metaworld_env import MEMORY
from envs.text import MESSAGES

SPEC = EnvSpec(
    name="metaworld",
    tasks=("a", "b"),
    observation_space=gymnasium.spaces.Dict(
        {IMAGES: gymnasium.spaces.Box(0, 255, (1, 64, 64, 3), np.uint8)}
    ),
    action_space=gymnasium.spaces.Box(-1, 1, (4,), np.float32),
    max_episode_steps=100,
    memory=MEMORY,
)

QUESTIONS = dataclasses.replace(
    SPEC,
    name="math",
    observation_space=gymnasium.spaces.Dict(
        {MESSAGES: gymnasium.spaces.Sequence(gymnasium.spaces.Text(1))}
    ),
    max_episode_steps=1,
)
