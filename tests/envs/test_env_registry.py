"""Environments by name, by `module:Class` and by decorator, and messages for wrong names."""

import subprocess
import sys

import pytest

from envs.base import Environment
from envs.registry import ENVS, env_class, env_spec, make_env, register_env


def test_registered_names_resolve_to_environments():
    assert all(issubclass(env_class(name), Environment) for name in ENVS)


def test_module_and_class_name_an_environment(own_module):
    assert make_env("tests_envs_own:CountdownEnv", start=3).start == 3


def test_decorator_registers_a_name(own_module, monkeypatch):
    monkeypatch.setattr("envs.registry.ENVS", dict(ENVS))
    register_env("countdown")(own_module.CountdownEnv)
    assert make_env("countdown").spec.name == "countdown"


def test_name_that_is_taken_is_refused(own_module):
    reference = r"'metaworld' is already registered for envs\.metaworld\.metaworld_env:MetaWorldEnv"
    with pytest.raises(ValueError, match=reference):
        register_env("metaworld")(own_module.CountdownEnv)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "metawold",
            r"Unknown environment 'metawold'\. Did you mean 'metaworld'\? Known: .*gymnasium, .*metaworld, .*; or give module:Class",
        ),
        ("no_such_module:Env", r"there is no module 'no_such_module'"),
        ("envs.no_such_module:Env", r"there is no module 'envs\.no_such_module'"),
        ("envs.base:NoSuchClass", r"has no attribute 'NoSuchClass'"),
        ("envs.base:EnvSpec", r"not a subclass of envs\.base\.Environment.*envs\.adapter\.adapt"),
    ],
)
def test_wrong_name_is_refused_with_its_mistake(name, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_env(name)


def test_unknown_argument_is_refused_with_the_nearest():
    with pytest.raises(
        ValueError, match=r"'metaworld' has no argument 'imagesize'\. Did you mean 'image_size'\?"
    ):
        make_env("metaworld", imagesize=64)


def test_an_argument_that_is_needed_is_named_with_its_key():
    with pytest.raises(ValueError, match=r"'openenv' needs its argument 'url': set env\.url, or"):
        env_spec("openenv")


def test_module_that_misses_a_package_says_which(tmp_path, monkeypatch):
    (tmp_path / "needs_a_package.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        make_env("needs_a_package:Env")


def test_spec_needs_neither_mujoco_nor_metaworld(repository):
    code = (
        "import sys; from envs.registry import env_spec; env_spec('metaworld'); assert not "
        "{'mujoco', 'metaworld'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=repository, check=True)


def test_spec_is_the_environments_own():
    assert env_spec("metaworld", tasks=["reach-v3"], max_episode_steps=9).tasks == ("reach",)
