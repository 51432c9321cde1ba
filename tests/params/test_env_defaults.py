"""What an environment does without arguments, and what `env=` says of it, are the same."""

import inspect

from envs.mujoco import MetaWorldEnv
from siirl.params.parser import parse_config


def test_the_class_and_the_config_of_mujoco_have_the_same_defaults() -> None:
    of_the_class = {name: parameter.default for name, parameter in inspect.signature(MetaWorldEnv).parameters.items()}
    assert parse_config(["env=mujoco"]).env.constructor_kwargs() == of_the_class
