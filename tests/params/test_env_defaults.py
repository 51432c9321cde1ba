"""Defaults of an environment's constructor equal those of its `env=` options."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from envs.metaworld.metaworld_env import DEFAULT_TASKS, MetaWorldEnv
from siirl.errors import ConfigError
from siirl.params.parser import parse_config, to_yaml


def test_the_class_and_the_config_of_metaworld_have_the_same_defaults() -> None:
    of_the_class = {
        name: parameter.default
        for name, parameter in inspect.signature(MetaWorldEnv).parameters.items()
    }
    of_the_config = parse_config(["env=metaworld"]).env.constructor_kwargs()
    assert of_the_class.keys() - of_the_config.keys() == {"perturb", "perturb_strength"}
    assert {name: of_the_class[name] for name in of_the_config} == of_the_config


def test_the_page_on_environments_names_the_same_defaults(repository: Path) -> None:
    page, env = (
        (repository / "docs" / "environments.md").read_text(),
        parse_config(["env=metaworld"]).env,
    )
    (tasks,) = re.findall(r"\*\*Default tasks\*\*: (.*?)\.\s", page)
    (limit,) = re.findall(r"\*\*Limit\*\*: (\d+) steps", page)
    (camera,) = re.findall(r"\*\*Camera\*\* `(\w+)`", page)
    assert (tuple(tasks.split(", ")), int(limit), camera) == (
        DEFAULT_TASKS,
        env.max_episode_steps,
        env.camera,
    )


@pytest.mark.parametrize(
    ("env", "taught", "tasks"),
    [
        ("tools", {"wording": "bare", "announce": False}, ("sums-6",)),
        ("sandbox", {"wording": "bare"}, ("numbers-2", "lists-2")),
    ],
)
def test_a_shipped_model_gets_the_wording_of_its_training_and_others_that_of_the_environment(
    env: str, taught: dict[str, Any], tasks: tuple[str, ...]
) -> None:
    shipped, other = (
        parse_config([f"env={env}", *model]).env for model in ((), ("model=causal_lm",))
    )
    assert (shipped.kwargs, tuple(shipped.tasks or ())) == (taught, tasks)
    assert other.kwargs == {}
    assert set(tasks) <= set(other.tasks or ())


FIVE = ("0", "1", "4", "7", "9")  # of suite object, on which the shipped policy was cloned


@pytest.mark.parametrize(
    ("words", "suite", "tasks"),
    [
        ((), "object", FIVE),
        (("env.suite=goal",), "goal", None),  # all of them
        (("env.suite=object",), "object", None),
        (("env.suite=goal", "env.tasks=[7]"), "goal", ("7",)),
        (("env.tasks=[7]", "env.suite=goal"), "goal", ("7",)),
        (("env.tasks=[7]",), "object", ("7",)),
    ],
)
def test_a_suite_that_is_named_without_tasks_means_all_of_its_tasks(
    words: tuple[str, ...], suite: str, tasks: tuple[str, ...] | None
) -> None:
    env = parse_config(["env=libero", *words]).env
    assert (env.suite, env.tasks) == (suite, tasks)


def test_the_tasks_of_a_file_are_those_of_its_suite_and_not_of_another_one(tmp_path: Path) -> None:
    """A run's config.yaml has both keys, and the command line names another suite."""
    file = tmp_path / "config.yaml"
    file.write_text("env: libero\nenv.suite: spatial\nenv.tasks: ['3']\n")
    assert parse_config(config_file=file).env.tasks == ("3",)
    assert parse_config(["env.suite=goal"], config_file=file).env.tasks is None
    assert parse_config(["env.suite=goal", "env.tasks=[7]"], config_file=file).env.tasks == ("7",)
    file.write_text("env: libero\nenv.suite: spatial\n")
    assert parse_config(config_file=file).env.tasks is None


def test_a_written_configuration_is_read_as_the_same(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for words in (["env=libero"], ["env=libero", "env.suite=90"]):
        config = parse_config(words)
        file.write_text(to_yaml(config))
        assert parse_config(config_file=file).env == config.env


@pytest.mark.parametrize(
    "words",
    [("env=tools",), ("env=gymnasium", "env.id=CartPole-v1", "env.kwargs={max_episode_steps: 3}")],
)
def test_a_groups_own_arguments_and_those_of_a_runs_file_are_given_once(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    config = parse_config(words)
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config))
    assert (
        parse_config(config_file=file).env.constructor_kwargs() == config.env.constructor_kwargs()
    )


@pytest.mark.parametrize(
    ("env", "remedy"),
    [
        ("env=robosuite_lift", "leave it out"),
        ("env=gymnasium", "leave it out"),
        ("env=openenv", r"set it there \(siirl serve env=… env\.perturb=…\)"),
    ],
)
def test_perturbations_of_an_environment_that_has_none_are_refused(env: str, remedy: str) -> None:
    """A constructor might take any key, and the key would do nothing."""
    config = parse_config([env, "env.perturb=[camera,light]"])
    with pytest.raises(
        ConfigError, match=rf"env\.perturb=\[camera,light\] is for env=metaworld and .*{remedy}"
    ):
        config.env.constructor_kwargs()


@pytest.mark.parametrize("preset", ["mujoco_control", "atari_like"])
@pytest.mark.parametrize("last", [True, False])
def test_a_chosen_model_keeps_its_policy_beside_a_preset_with_another(
    preset: str, last: bool
) -> None:
    words = [f"trainer={preset}", "model=tiny_flow_vla"]
    model = parse_config(
        ["env=gymnasium", *(words if last else words[::-1])]
    ).actor_rollout_ref.model
    assert (model.policy, model.options) == ("tiny_flow_vla", {})
    alone = parse_config(["env=gymnasium", words[0]]).actor_rollout_ref.model
    assert alone.policy == "control_policy"
    key = parse_config(["env=gymnasium", *words, "actor_rollout_ref.model.policy=tiny_vla"])
    assert key.actor_rollout_ref.model.policy == "tiny_vla"


def test_a_strength_without_perturbations_is_refused() -> None:
    config = parse_config(["env=metaworld", "env.perturb_strength=0.5"])
    with pytest.raises(ConfigError, match=r"=0\.5 is read with env\.perturb, but it is null: name"):
        config.env.constructor_kwargs()
