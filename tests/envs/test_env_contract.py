"""Every registered environment, a user's class and an adapted class pass `check_env`."""

import asyncio

import pytest
from gymnasium import spaces

from envs.adapter import adapt
from envs.base import EnvSpec
from envs.checker import check_env
from envs.registry import ENVS, asks_questions, make_env

CASES = {
    "metaworld": (
        "metaworld",
        {"tasks": ["button-press", "reach"], "max_episode_steps": 15, "image_size": 16},
    ),
    "libero": (
        "libero",
        {
            "suite": "goal+object",
            "tasks": ["goal/7", "object/1"],
            "assets": "stand_in",
            "max_episode_steps": 15,
            "image_size": 16,
        },
    ),
    "gymnasium: discrete actions": ("gymnasium", {"id": "CartPole-v1"}),
    "gymnasium: continuous actions": ("gymnasium", {"id": "Pendulum-v1"}),
    "gymnasium: discrete observations": ("gymnasium", {"id": "FrozenLake-v1"}),
    "gymnasium: MuJoCo, rendered": ("gymnasium", {"id": "Reacher-v5", "width": 48, "height": 32}),
    "math: one agent": ("math", {"tasks": ["sums-2", "countdown-3"]}),
    "math: three agents": (
        "math",
        {"tasks": ["sums-2", "word-sums-2"], "wording": "words", "num_agents": 3},
    ),
    "tools": ("tools", {"tasks": ["sums-6", "word-sums-2"], "max_turns": 3}),
    "reasoning_gym": ("reasoning_gym", {"dataset": "chain_sum"}),
    "sandbox": ("sandbox", {"tasks": ["numbers-2", "lines-2"]}),
    "a user's own": ("tests_envs_own:CountdownEnv", {"start": 20}),
}


@pytest.mark.parametrize(("name", "arguments"), CASES.values(), ids=CASES.keys())
def test_environment_keeps_the_contract(name, arguments, own_module):
    if name == "reasoning_gym":  # it compiles a dependency, so it is no part of the lock
        pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    check_env(make_env(name, **arguments), seed=3)


def test_every_registered_environment_is_checked_here():
    elsewhere = {"openenv", "verifiers"}  # tests/envs/openenv, test_verifiers_env.py
    assert set(ENVS) <= {name for name, _ in CASES.values()} | elsewhere


@pytest.mark.parametrize("case", ["math: one agent", "tools", "sandbox"])
def test_a_task_of_questions_is_their_data_source(case):
    name, arguments = CASES[case]
    task = arguments["tasks"][1]
    _, info = asyncio.run(make_env(name, **arguments).reset(seed=3, options={"task": task}))
    assert asks_questions(name)
    assert info.get("data_source", info["task"]) == task


def test_checks_import_no_code_of_a_user_to_learn_whether_tasks_are_questions():
    assert not asks_questions("tests_envs_own:CountdownEnv")
    assert not asks_questions("metaworld")


class ThreeValueWalk:
    """A batched environment: one agent walks to 5 by adding 0 or 1."""

    async def reset(self, dp_rank, ddp_world_size, seed=None, options=None):
        self.place = (seed or 0) % 3
        return [self.place]

    async def step(self, actions):
        self.place += actions[0]
        return [min(self.place, 9)], [1.0], [{"done": self.place >= 5, "success": self.place == 5}]


def test_adapted_three_value_class_keeps_the_contract():
    spec = EnvSpec("walk", ("walk",), spaces.Discrete(10), spaces.Discrete(2), max_episode_steps=30)
    check_env(adapt(ThreeValueWalk, spec=spec, batched=True)())
