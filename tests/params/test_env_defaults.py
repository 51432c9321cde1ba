"""What an environment does without arguments, and what `env=` says of it, are the same."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from envs.mujoco import DEFAULT_TASKS, MetaWorldEnv
from siirl.params.parser import parse_config


def test_the_class_and_the_config_of_mujoco_have_the_same_defaults() -> None:
    of_the_class = {name: parameter.default for name, parameter in inspect.signature(MetaWorldEnv).parameters.items()}
    assert parse_config(["env=mujoco"]).env.constructor_kwargs() == of_the_class


def test_the_page_on_environments_names_the_same_defaults(repository: Path) -> None:
    page, env = (repository / "docs" / "environments.md").read_text(), parse_config(["env=mujoco"]).env
    (tasks,) = re.findall(r"\*\*Default tasks\*\*: (.*)\.\n", page)
    (limit,) = re.findall(r"\*\*Limit\*\*: (\d+) steps", page)
    (camera,) = re.findall(r"\*\*Camera\*\* `(\w+)`", page)
    assert (tuple(tasks.split(", ")), int(limit), camera) == (DEFAULT_TASKS, env.max_episode_steps, env.camera)


@pytest.mark.parametrize(
    ("env", "taught", "tasks"),
    [("tools", {"wording": "bare", "announce": False}, ("sums-6",)), ("sandbox", {"wording": "bare"}, ("numbers-2", "lists-2"))],
)
def test_a_shipped_model_is_asked_as_it_was_taught_and_others_as_the_environment_asks(
    env: str, taught: dict[str, Any], tasks: tuple[str, ...]
) -> None:
    shipped, other = (parse_config([f"env={env}", *model]).env for model in ((), ("model=causal_lm",)))
    assert (shipped.kwargs, tuple(shipped.tasks or ())) == (taught, tasks)
    assert other.kwargs == {}
    assert set(tasks) <= set(other.tasks or ())
