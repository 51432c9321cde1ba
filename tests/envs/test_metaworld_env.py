"""`env=metaworld`: observations, success, limits, frames, and wrong arguments."""

import asyncio
import subprocess
import sys

import numpy as np
import pytest

from envs.base import IMAGES, INSTRUCTION, PROPRIOCEPTION, FrameRequest
from envs.metaworld.metaworld_env import DEFAULT_TASKS, MetaWorldEnv, expert

STILL = np.zeros(4, np.float32)
RIGHT = np.array([0.5, 0.0, 0.0, -1.0], np.float32)


@pytest.fixture(scope="module")
def env():
    made = MetaWorldEnv(tasks=["button-press", "drawer-open-v3"], image_size=32)
    yield made
    asyncio.run(made.close())


@pytest.fixture(scope="module")
def short_env():
    made = MetaWorldEnv(tasks=["reach"], image_size=16, max_episode_steps=5)
    yield made
    asyncio.run(made.close())


def play(env, *, seed, options=None, actions=(), chunk=8):
    """All results of an episode, the reset's first."""

    async def coroutine():
        results = [await env.reset(seed=seed, options=options)]
        for start in range(0, len(actions), chunk):
            results.append(await env.step_chunk(actions[start : start + chunk]))
            if results[-1][2] or results[-1][3]:
                break
        return results

    return asyncio.run(coroutine())


def test_observation_is_image_proprioception_and_instruction(env):
    [(observation, info)] = play(env, seed=0, options={"task": "drawer-open"})
    assert set(observation) == {IMAGES, PROPRIOCEPTION, INSTRUCTION}
    assert (observation[IMAGES].shape, observation[IMAGES].dtype) == ((1, 32, 32, 3), np.uint8)
    assert observation[INSTRUCTION] == "open the green drawer"
    assert (info["task"], info["success"]) == ("drawer-open", False)
    assert observation[IMAGES].std() > 10  # the image is not blank


def test_proprioception_is_gripper_position_and_opening_only(env):
    [(observation, _)] = play(env, seed=0)
    assert observation[PROPRIOCEPTION].tolist() == env.state[:4].astype(np.float32).tolist()


def test_tasks_are_known_with_and_without_their_version(env):
    assert env.spec.tasks == ("button-press", "drawer-open")
    [(_, info)] = play(env, seed=0, options={"task": "button-press-v3"})
    assert info["task"] == "button-press"


def test_expert_succeeds_and_success_ends_the_episode(env):
    async def episode():
        policy = expert("button-press")
        _, first = await env.reset(seed=2)
        for step in range(1, 121):
            observation, reward, terminated, truncated, info = await env.step(policy(env))
            if terminated or truncated:
                return first, step, reward, terminated, truncated, info, observation

    first, step, reward, terminated, truncated, info, _ = asyncio.run(episode())
    assert 40 < step < 90
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert info["oracle_distance"] < 0.5 * first["oracle_distance"]
    assert env.spec.tasks_with_distance == env.spec.tasks


def test_limit_truncates_without_success(short_env):
    results = play(short_env, seed=0, actions=[STILL] * 8)
    _, reward, terminated, truncated, info = results[-1]
    assert (reward, terminated, truncated, info["executed"], info["success"]) == (
        0.0,
        False,
        True,
        5,
        False,
    )
    with pytest.raises(RuntimeError, match="call reset"):
        asyncio.run(short_env.step(STILL))


def test_instance_that_ran_other_episodes_gives_the_same_episode_and_images(env):
    options = {"task": "button-press", "frames": {"video": FrameRequest(every=3, size=24)}}
    actions = [RIGHT] * 12
    play(env, seed=9, options={"task": "drawer-open"}, actions=actions)
    play(env, seed=8, options=options, actions=actions)
    used = play(env, seed=4, options=options, actions=actions)
    fresh_env = MetaWorldEnv(tasks=["drawer-open", "button-press"], image_size=32)
    fresh = play(fresh_env, seed=4, options=options, actions=actions)
    asyncio.run(fresh_env.close())
    for one, other in zip(used, fresh, strict=True):
        assert np.array_equal(one[0][IMAGES], other[0][IMAGES])
        assert np.array_equal(one[0][PROPRIOCEPTION], other[0][PROPRIOCEPTION])
        assert np.array_equal(
            one[-1]["frames"]["video"].images, other[-1]["frames"]["video"].images
        )
        assert one[-1]["oracle_distance"] == other[-1]["oracle_distance"]


def test_chunk_renders_the_observation_once(env, monkeypatch):
    rendered = []
    image = MetaWorldEnv._image
    monkeypatch.setattr(
        MetaWorldEnv,
        "_image",
        lambda self, size, camera: rendered.append(size) or image(self, size, camera),
    )
    play(env, seed=0, actions=[STILL] * 8)
    assert rendered == [32, 32]  # reset, and the end of the chunk


def test_stream_of_the_observations_size_costs_no_second_rendering(env, monkeypatch):
    rendered = []
    image = MetaWorldEnv._image
    monkeypatch.setattr(
        MetaWorldEnv,
        "_image",
        lambda self, size, camera: rendered.append(size) or image(self, size, camera),
    )
    streams = {
        "encoder": FrameRequest(every=8, size=32),
        "recorder": FrameRequest(every=4, size=48),
        "other": FrameRequest(every=8, size=48),
    }
    results = play(env, seed=0, options={"frames": streams}, actions=[STILL] * 8)
    assert rendered == [32, 48, 48, 32, 48]  # reset; step 4 of the recorder; step 8
    frames = results[1][-1]["frames"]
    assert (frames["encoder"].steps, frames["recorder"].steps, frames["other"].steps) == (
        (8,),
        (4, 8),
        (8,),
    )
    assert np.array_equal(frames["encoder"].images[0], results[1][0][IMAGES][0])


def test_last_frame_is_there_when_the_episode_ends_between_two(short_env):
    results = play(
        short_env,
        seed=0,
        options={"frames": {"video": FrameRequest(every=4, size=16)}},
        actions=[STILL] * 8,
        chunk=3,
    )
    assert [
        result[-1]["frames"]["video"].steps for result in results if "video" in result[-1]["frames"]
    ] == [(0,), (4, 5)]


def test_chunk_without_a_due_frame_has_none(short_env):
    results = play(
        short_env,
        seed=0,
        options={"frames": {"video": FrameRequest(every=8, size=16)}},
        actions=[STILL] * 3,
    )
    assert results[1][-1]["frames"] == {}


def test_close_frees_and_a_later_reset_builds_anew(short_env):
    [(before, _)] = play(short_env, seed=0)
    asyncio.run(short_env.close())
    asyncio.run(short_env.close())
    with pytest.raises(RuntimeError, match="call reset first"):
        short_env.render()
    [(after, _)] = play(short_env, seed=0)
    assert np.array_equal(before[IMAGES], after[IMAGES])


def test_default_tasks_are_in_the_suite():
    assert MetaWorldEnv().spec.tasks == DEFAULT_TASKS


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"tasks": ["drawer-opn"]},
            r"Unknown Meta-World task 'drawer-opn'\. Did you mean 'drawer-open'\? Known: button-press-topdown, ",
        ),
        ({"tasks": []}, "one or more"),
        ({"tasks": "drawer-open"}, "tasks must be a list"),
        ({"tasks": ["push", "push-v3"]}, "has a task twice: push, push-v3"),
        ({"image_size": 0}, "image_size must be at least 8 pixels, got 0"),
        ({"camera": "tabel"}, r"Unknown camera 'tabel'\. Did you mean 'table'\?"),
        ({"render_quality": "best"}, r"Unknown render_quality 'best'\. Known: fast, full"),
        ({"max_episode_steps": 0}, r"must lie in \[1, 500\].*got 0"),
        ({"max_episode_steps": 501}, r"must lie in \[1, 500\].*got 501"),
    ],
)
def test_wrong_argument_is_refused_before_anything_is_built(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        MetaWorldEnv(**arguments)


@pytest.mark.parametrize(
    ("seed", "options", "sentence"),
    [
        (
            0,
            {"task": "drawer-close"},
            r"Unknown task 'drawer-close'\. Did you mean 'drawer-open'\? This environment has: button-press, drawer-open",
        ),
        (0, {"tsk": "drawer-open"}, r"Unknown reset option 'tsk'\. Did you mean 'task'\?"),
        (0, {"frames": {"video": (8, 64)}}, "must be a FrameRequest"),
        (-1, None, "seed must not be negative, got -1"),
    ],
)
def test_wrong_reset_is_refused(env, seed, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        play(env, seed=seed, options=options)


def test_step_before_reset_is_refused():
    with pytest.raises(RuntimeError, match="call reset before step"):
        asyncio.run(MetaWorldEnv().step(STILL))


def test_state_before_reset_is_refused():
    with pytest.raises(RuntimeError, match="call reset first"):
        expert("reach")(MetaWorldEnv(tasks=["reach"]))


def test_metaworlds_own_cameras_see_something_else(env):
    other = MetaWorldEnv(tasks=["button-press"], image_size=32, camera="topview")
    [(seen, _)], [(ours, _)] = play(other, seed=0), play(env, seed=0)
    asyncio.run(other.close())
    assert seen[IMAGES].std() > 5
    assert not np.array_equal(seen[IMAGES], ours[IMAGES])


@pytest.mark.parametrize("backend", ["glfw", "disabled", "direct3d"])
def test_backend_that_cannot_draw_is_refused_before_mujoco_is_imported(backend, repository):
    code = (
        "import asyncio; from envs.metaworld.metaworld_env import MetaWorldEnv; "
        "asyncio.run(MetaWorldEnv().reset(seed=0))"
    )
    environment = {"MUJOCO_GL": backend, "PATH": "", "PYTHONPATH": str(repository)}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 1
    assert (
        f"RuntimeError: MUJOCO_GL='{backend}' cannot draw without a window: set it to egl or osmesa"
        in result.stderr
    )


@pytest.mark.parametrize("package", ["metaworld", "mujoco"])
def test_a_missing_package_is_refused_before_anything_is_built(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python's own mark of a module that cannot be imported
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        RuntimeError,
        match=rf"^env=metaworld needs the package {package}, which is not installed\. Type: python -m pip",
    ):
        MetaWorldEnv()
