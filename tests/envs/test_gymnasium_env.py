"""Gymnasium environments behind the contract: their observations, actions, frames and
errors.
"""

import asyncio

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from envs.base import IMAGES, PROPRIOCEPTION, FrameRequest
from envs.gymnasium import GymnasiumEnv
from envs.registry import make_env

GREY = np.arange(12, dtype=np.uint8).reshape(3, 4)


class Toy(gymnasium.Env):
    """Two cameras and a goal; success is reported as robotics environments do."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (3, 4), np.uint8),
            "goal": spaces.Box(-1.0, 1.0, (2,), np.float64),
            "mode": spaces.Discrete(3),
            "wrist": spaces.Box(0, 255, (3, 4, 3), np.uint8),
        }
    )
    action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self, render_mode=None, bad=None):
        self.render_mode, self.bad, self.time = render_mode, bad, 0

    def seen(self):
        goal = np.array([0.25, np.nan if self.bad == "nan" and self.time == 2 else 0.5])
        return {
            "camera": GREY,
            "goal": goal,
            "mode": 1,
            "wrist": np.full((3, 4, 3), self.time, np.uint8),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.seen(), {}

    def step(self, action):
        self.time += 1
        return self.seen(), 0.5, False, False, {"is_success": self.time >= 3}

    def render(self):
        return np.full((20, 40, 3), self.time, np.uint8)


class ManyImages(Toy):
    """Cameras that cannot be stacked."""

    observation_space = spaces.Dict(
        {"a": spaces.Box(0, 255, (3, 4), np.uint8), "b": spaces.Box(0, 255, (5, 4), np.uint8)}
    )


class CountsFromOne(Toy):
    """Actions 1, 2 and 3; the reward is the action's number."""

    action_space = spaces.Discrete(3, start=1)

    def step(self, action):
        return self.seen(), float(action), False, False, {}


class PaysTrue(Toy):
    """Its reward is a boolean of numpy."""

    def step(self, action):
        return self.seen(), np.bool_(action > 0), False, False, {}


class TwoGoals(Toy):
    """Pays a number for each of two goals."""

    def step(self, action):
        self.time += 1
        return self.seen(), np.array([0.5, -1.0]), False, False, {}


class LateSuccess(Toy):
    """Its infos have success from the second step on."""

    def step(self, action):
        result = super().step(action)
        return *result[:4], {} if self.time < 2 else {"success": self.time == 3}


class Words(Toy):
    """Its observation is a text."""

    observation_space = spaces.Text(5)


@pytest.fixture(scope="module", autouse=True)
def registered():
    for env_class in (Toy, ManyImages, CountsFromOne, PaysTrue, TwoGoals, LateSuccess, Words):
        gymnasium.register(f"siirl-test/{env_class.__name__}-v0", env_class, max_episode_steps=5)
    gymnasium.register("siirl-test/Endless-v0", Toy)
    yield
    for name in [name for name in gymnasium.registry if name.startswith("siirl-test/")]:
        del gymnasium.registry[name]


def toy(**kwargs):
    return GymnasiumEnv(id="siirl-test/Toy-v0", **kwargs)


def test_images_become_cameras_and_the_rest_one_vector():
    observation, _ = asyncio.run(toy().reset(seed=0))
    assert observation[IMAGES].shape == (2, 3, 4, 3)
    assert np.array_equal(observation[IMAGES][0], np.repeat(GREY[..., np.newaxis], 3, axis=2))
    assert observation[PROPRIOCEPTION].tolist() == [0.25, 0.5, 0.0, 1.0, 0.0]
    assert observation[PROPRIOCEPTION].dtype == np.float32


def test_success_of_the_infos_is_reported():
    async def play():
        env = toy()
        await env.reset(seed=0)
        return env.spec.reports_success, [
            (await env.step(np.zeros(1, np.float32)))[4]["success"] for _ in range(3)
        ]

    assert asyncio.run(play()) == (True, [False, False, True])


def late_successes(**kwargs):
    """`info["success"]` of three steps of `LateSuccess`."""

    async def play():
        env = GymnasiumEnv(id="siirl-test/LateSuccess-v0", **kwargs)
        await env.reset(seed=0)
        return [(await env.step(np.zeros(1, np.float32)))[4].get("success") for _ in range(3)]

    return asyncio.run(play())


def test_success_that_only_later_infos_have_is_reported_if_the_key_declares_it(caplog):
    assert late_successes(reports_success=True) == [False, False, True]
    assert caplog.messages == []


def test_success_that_is_declared_absent_is_neither_reported_nor_named(caplog):
    assert late_successes(reports_success=False) == [None] * 3
    assert not toy(reports_success=False).spec.reports_success
    assert caplog.messages == []


def test_success_that_only_later_infos_have_is_named_once_in_the_log(caplog):
    assert late_successes() + late_successes() == [None] * 6
    (warning,) = caplog.messages
    assert "returned success, which the info of its first step does not have" in warning
    assert warning.endswith("set env.kwargs.reports_success=true.")


def test_without_a_success_flag_only_the_return_counts():
    env = GymnasiumEnv(id="CartPole-v1")
    _, info = asyncio.run(env.reset(seed=0))
    assert not env.spec.reports_success
    assert "success" not in info


@pytest.mark.parametrize(("action", "reward"), [(1.0, 1.0), (-1.0, 0.0)])
def test_a_reward_that_is_true_or_false_is_1_or_0(action, reward):
    async def play():
        env = GymnasiumEnv(id="siirl-test/PaysTrue-v0")
        await env.reset(seed=0)
        return (await env.step(np.array([action], np.float32)))[1]

    found = asyncio.run(play())
    assert (found, type(found)) == (reward, float)


def test_limit_comes_from_the_registration_or_the_argument():
    assert GymnasiumEnv(id="Pendulum-v1").spec.max_episode_steps == 200
    assert GymnasiumEnv(id="Pendulum-v1", max_episode_steps=7).spec.max_episode_steps == 7


def test_limit_truncates():
    async def play():
        env = GymnasiumEnv(id="Pendulum-v1", max_episode_steps=3)
        await env.reset(seed=0)
        return await env.step_chunk([np.zeros(1, np.float32)] * 5)

    _, _, terminated, truncated, info = asyncio.run(play())
    assert (terminated, truncated, info["executed"]) == (False, True, 3)


def test_frames_are_scaled_into_squares():
    async def play():
        env = toy()
        _, first = await env.reset(
            seed=0, options={"frames": {"video": FrameRequest(every=2, size=10)}}
        )
        *_, info = await env.step_chunk([np.zeros(1, np.float32)] * 5)
        return first["frames"]["video"], info["frames"]["video"]

    first, rest = asyncio.run(play())
    assert (first.steps, rest.steps) == ((0,), (2, 4, 5))
    assert rest.images.shape == (3, 10, 10, 3)
    assert rest.images[0, 5, 5].tolist() == [2, 2, 2]
    assert rest.images[0, 0, 0].tolist() == [0, 0, 0]  # 20x40 fills the middle half


def test_same_episode_as_gymnasium_itself():
    async def play():
        env = GymnasiumEnv(id="Pendulum-v1")
        observation, _ = await env.reset(seed=4)
        (*_,) = [observation[PROPRIOCEPTION]]
        results = [await env.step(np.array([0.5], np.float32)) for _ in range(5)]
        return [observation[PROPRIOCEPTION], *(result[0][PROPRIOCEPTION] for result in results)], [
            result[1] for result in results
        ]

    observations, rewards = asyncio.run(play())
    plain = gymnasium.make("Pendulum-v1")
    expected, _ = plain.reset(seed=4)
    assert np.array_equal(observations[0], expected)
    for seen, reward in zip(observations[1:], rewards, strict=True):
        expected, expected_reward, *_ = plain.step(np.array([0.5], np.float32))
        assert np.array_equal(seen, expected)
        assert reward == expected_reward


def test_unknown_id_is_refused_with_the_nearest():
    with pytest.raises(
        ValueError, match=r"Unknown Gymnasium id 'CartPol-v1'\. Nearest: CartPole-v1"
    ):
        GymnasiumEnv(id="CartPol-v1")


def test_unknown_version_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="CartPole-v1"):
        GymnasiumEnv(id="CartPole-v99")


REGISTERS = """
import gymnasium
from gymnasium.envs.classic_control import PendulumEnv
gymnasium.register("siirl-test/Imported-v0", PendulumEnv, max_episode_steps=6)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes a module that has not been imported yet and returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"registers_{tmp_path.name.replace('-', '_')}"

    def write(text):
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def test_a_package_that_registers_its_environments_is_imported_as_gymnasium_does(package):
    """Since Gymnasium 1.0 installed packages register nothing before they are imported."""
    env = GymnasiumEnv(id=f"{package(REGISTERS)}:siirl-test/Imported-v0")
    assert (env.spec.tasks, env.spec.max_episode_steps) == (("siirl-test/Imported-v0",), 6)


@pytest.mark.parametrize(
    ("text", "wrong", "error", "sentence"),
    [
        ("import gymnasium", "CartPol-v1", ValueError, ":CartPol-v1'. Nearest: CartPole-v1"),
        (
            "import no_such_package",
            "My-v0",
            RuntimeError,
            "needs a package that is not installed: No module named 'no_such_package'",
        ),
        (
            "class Mine: pass",
            "Mine",
            ValueError,
            r":Mine' is a class, not a Gymnasium id: register it in .*, and give the id .*:Mine-v0\.",
        ),
        (
            "import gymnasium\nclass Mine: pass\ngymnasium.register('Own-v3', entry_point=Mine)",
            "Mine",
            ValueError,
            r"not a Gymnasium id: give the id that it is registered by, \w+:Own-v3\.",
        ),
        (
            "from envs.base import Environment\nclass Mine(Environment): pass",
            "Mine",
            ValueError,
            r"not a Gymnasium id: it follows .*, so set env=custom env\.name=\w+:Mine\.",
        ),
    ],
)
def test_missing_ids_and_modules_of_a_package_are_reported(package, text, wrong, error, sentence):
    with pytest.raises(error, match=sentence):
        GymnasiumEnv(id=f"{package(text)}:{wrong}")


def test_a_missing_module_is_reported():
    with pytest.raises(
        ValueError, match="'no_such_module:My-v0': there is no module 'no_such_module' to import"
    ):
        GymnasiumEnv(id="no_such_module:My-v0")


@pytest.mark.parametrize("module", ["./own", "own.py", ".own", "/tmp/own.py"])
def test_the_path_of_a_module_is_refused_with_the_remedy(module):
    remedy = f"'{module}' is not the name of a module: write it with dots and without .py"
    with pytest.raises(ValueError, match=remedy):
        GymnasiumEnv(id=f"{module}:Mine-v0")
    with pytest.raises(ValueError, match=remedy):
        make_env(f"{module}:Mine")


def test_actions_are_counted_from_zero_wherever_the_environment_begins():
    async def play():
        env = GymnasiumEnv(id="siirl-test/CountsFromOne-v0")
        await env.reset(seed=0)
        return env.spec.action_space, [(await env.step(action))[1] for action in range(3)]

    assert asyncio.run(play()) == (spaces.Discrete(3), [1.0, 2.0, 3.0])


def test_unknown_argument_names_the_environment():
    with pytest.raises(
        ValueError, match=r"'Pendulum-v1' does not take these arguments.*image_size"
    ):
        GymnasiumEnv(id="Pendulum-v1", image_size=64)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("ManyImages", "images of several sizes"),
        ("Words", "neither a vector nor an image"),
        ("Endless", r"set env\.max_episode_steps="),
    ],
)
def test_spaces_that_do_not_fit_are_refused(name, sentence):
    with pytest.raises(ValueError, match=sentence):
        GymnasiumEnv(id=f"siirl-test/{name}-v0")


def test_limit_must_be_positive():
    with pytest.raises(ValueError, match="max_episode_steps must be at least 1, got 0"):
        GymnasiumEnv(id="Pendulum-v1", max_episode_steps=0)


def test_observation_that_is_not_finite_fails_the_simulation():
    async def play():
        env = toy(bad="nan")
        await env.reset(seed=0)
        await env.step_chunk([np.zeros(1, np.float32)] * 2)

    with pytest.raises(RuntimeError, match="not finite"):
        asyncio.run(play())


def test_several_rewards_of_a_step_are_refused():
    async def play():
        env = GymnasiumEnv(id="siirl-test/TwoGoals-v0")
        await env.reset(seed=0)
        await env.step(np.zeros(1, np.float32))

    with pytest.raises(
        RuntimeError, match=r"returned 2 rewards, \[ 0.5 -1. \], but a step has one"
    ):
        asyncio.run(play())


def test_missing_package_is_named():
    with pytest.raises(
        RuntimeError, match=r"LunarLander-v3' needs a package that is not installed: .*[Bb]ox2[dD]"
    ):
        GymnasiumEnv(id="LunarLander-v3")


def test_rendering_before_reset_is_refused():
    with pytest.raises(RuntimeError, match="call reset first"):
        toy().render()


def test_an_invalid_id_is_refused_as_an_unknown_one():
    with pytest.raises(ValueError, match="Unknown Gymnasium id 'no good id!'"):
        GymnasiumEnv(id="no good id!")


def test_mujoco_without_an_opengl_library_runs_and_refuses_frames(monkeypatch):
    """Simulates a missing pygame; a backend that cannot draw stands for the missing
    library.
    """
    assert GymnasiumEnv(id="Reacher-v5").spec.renders
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    env = GymnasiumEnv(id="Reacher-v5")
    assert not env.spec.renders
    observation, _ = asyncio.run(env.reset(seed=0))
    assert observation[PROPRIOCEPTION].shape == (10,)
    with pytest.raises(ValueError, match="has no images: ask for no frames"):
        asyncio.run(env.reset(seed=0, options={"frames": {"video": FrameRequest(every=1, size=8)}}))
