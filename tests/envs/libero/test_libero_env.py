"""`env=libero`: observations, success, limits, frames, initial states, and wrong arguments."""

import asyncio
import importlib.util
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

from envs.base import IMAGES, INSTRUCTION, PROPRIOCEPTION, FrameRequest
from envs.libero.libero_env import LiberoEnv
from envs.libero.suites import STEP_LIMITS, choose_tasks, suite_tasks
from envs.seeds import FIRST_TRAINING_SEED
from tests.envs.libero.placing import JOINT_VALUES, fulfil_goal

STILL = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)
STOVE = "turn_on_the_stove"
KETCHUP = "pick_up_the_ketchup_and_place_it_in_the_basket"


@pytest.fixture(scope="module")
def env(stand_ins):
    made = LiberoEnv(
        suite="goal+object", tasks=["goal/7", "object/4"], assets="stand_in", image_size=32
    )
    yield made
    asyncio.run(made.close())


@pytest.fixture(scope="module")
def short_env(stand_ins):
    made = LiberoEnv(
        suite="goal",
        tasks=[7],
        assets="stand_in",
        image_size=16,
        camera="wrist",
        max_episode_steps=5,
    )
    yield made
    asyncio.run(made.close())


def play(env, *, seed=0, options=None, actions=(), chunk=8):
    """All results of an episode, the reset's first."""

    async def coroutine():
        results = [await env.reset(seed=seed, options=options)]
        for start in range(0, len(actions), chunk):
            results.append(await env.step_chunk(actions[start : start + chunk]))
            if results[-1][2] or results[-1][3]:
                break
        return results

    return asyncio.run(coroutine())


def turn_knob(env):
    """Turn the stove on by hand."""
    env.simulator.data.joint("flat_stove_1_button").qpos[0] = JOINT_VALUES["flat_stove", "turnon"]


def test_observation_is_two_images_proprioception_and_instruction(env):
    [(observation, info)] = play(env, options={"task": STOVE})
    assert set(observation) == {IMAGES, PROPRIOCEPTION, INSTRUCTION}
    assert (observation[IMAGES].shape, observation[IMAGES].dtype) == ((2, 32, 32, 3), np.uint8)
    assert (observation[PROPRIOCEPTION].shape, observation[INSTRUCTION]) == (
        (8,),
        "turn on the stove",
    )
    assert (info["task"], info["suite"], info["success"]) == (STOVE, "goal", False)
    assert all(image.std() > 10 for image in observation[IMAGES])  # the images are not blank


def test_stand_ins_are_named_in_spec_and_info(env):
    assert env.spec.name == "libero (stand-in assets)"
    assert play(env)[0][1]["assets"] == "stand-in"


def test_image_is_upright(env):
    [(observation, _)] = play(env, options={"task": KETCHUP})
    agent = observation[IMAGES][0].astype(float)
    # the robot at the far end is at the top, the bare floor in front at the bottom
    assert agent[0].std() > agent[-1].std()


def test_success_ends_the_episode(env):
    async def episode():
        await env.reset(seed=0, options={"task": STOVE})
        turn_knob(env)
        return await env.step_chunk([STILL] * 8)

    _, reward, terminated, truncated, info = asyncio.run(episode())
    assert (reward, terminated, truncated, info["success"], info["executed"]) == (
        1.0,
        True,
        False,
        True,
        1,
    )


def test_stove_glows_in_the_second_image_after_it_was_turned_on(env):
    """Officially too: the image of an action is taken before the stove is lit at the action's end."""
    play(env, options={"task": STOVE})
    turn_knob(env)
    images = [env.render().astype(int)]
    for _ in range(2):
        env.simulator.step(STILL)
        images.append(env.render().astype(int))
    redder = [(change[..., 0] - change[..., 2]).max() for change in np.diff(images, axis=0)]
    assert redder[0] < 10
    assert redder[1] > 50


def test_limit_truncates_without_success(short_env):
    results = play(short_env, actions=[STILL] * 8)
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


def test_step_limits_are_each_suites_own(env):
    assert env.spec.max_episode_steps == STEP_LIMITS["goal"]  # the longest
    limits = {name: env._step_limit(name) for name in env.spec.tasks}
    assert limits == {STOVE: 300, KETCHUP: 280}


def test_stream_of_frames_is_the_first_cameras(short_env):
    results = play(
        short_env,
        options={"frames": {"video": FrameRequest(every=4, size=16)}},
        actions=[STILL] * 8,
        chunk=3,
    )
    assert [
        result[-1]["frames"]["video"].steps for result in results if "video" in result[-1]["frames"]
    ] == [(0,), (4, 5)]
    assert np.array_equal(results[0][1]["frames"]["video"].images[0], results[0][0][IMAGES][0])


def test_seed_chooses_among_held_out_states_and_training_seed_among_the_others(env):
    numbers = [
        play(env, seed=seed)[0][1]["init_state"]
        for seed in (0, 1, FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + 4)
    ]
    assert numbers == [4, 9, 0, 5]


def test_state_by_number_is_the_one_that_its_seed_chooses(env):
    [(one, info)], [(other, _)] = play(env, seed=0), play(env, options={"init_state": 4})
    assert info["init_state"] == 4
    assert np.array_equal(one[IMAGES], other[IMAGES])


def test_cameras_see_different_things(env, short_env):
    [(both, _)] = play(env, options={"task": STOVE})
    assert not np.array_equal(both[IMAGES][0], both[IMAGES][1])
    assert short_env.spec.observation_space[IMAGES].shape == (1, 16, 16, 3)


def test_simulator_is_built_once_per_task_and_kept(env):
    def simulator(task):
        play(env, options={"task": task})
        return env.simulator

    stove, ketchup = simulator(STOVE), simulator(KETCHUP)
    assert stove is not ketchup
    assert simulator(STOVE) is stove


def test_simulator_that_is_not_kept_frees_its_memory(stand_ins):
    made = LiberoEnv(
        suite="goal+object",
        tasks=["goal/7", "object/4"],
        assets="stand_in",
        image_size=16,
        kept_simulators=1,
    )
    [(before, _)] = play(made, options={"task": STOVE})
    stove = weakref.ref(made.simulator)
    play(made, options={"task": KETCHUP})
    assert stove() is None
    [(after, _)] = play(made, options={"task": STOVE})
    assert np.array_equal(before[IMAGES], after[IMAGES])
    asyncio.run(made.close())


def test_environments_of_a_task_draw_with_one_renderer_and_each_stove_glows_by_itself(stand_ins):
    lit, dark = (
        LiberoEnv(suite="goal", tasks=[7], assets="stand_in", image_size=64) for _ in range(2)
    )
    for made in (lit, dark):
        play(made, options={"init_state": 0})
    off = dark.render()
    assert np.array_equal(lit.render(), off)
    assert fulfil_goal(lit.simulator)
    for _ in range(2):
        lit.simulator.step(np.zeros(7, np.float32))
    on = lit.render()
    assert np.array_equal(dark.render(), off)
    assert np.array_equal(lit.render(), on)
    assert lit._renderers[STOVE] is dark._renderers[STOVE]
    glow = lit.simulator.model.site_rgba != dark.simulator.model.site_rgba
    assert glow.any()
    asyncio.run(dark.close())
    lit.simulator.sample.lamps[glow] = 0.0
    assert not np.array_equal(lit.render(), on)  # so the glow is in the picture
    asyncio.run(lit.close())


def test_close_frees_and_a_later_reset_builds_anew(short_env):
    [(before, _)] = play(short_env)
    asyncio.run(short_env.close())
    asyncio.run(short_env.close())
    with pytest.raises(RuntimeError, match="call reset first"):
        short_env.render()
    with pytest.raises(RuntimeError, match="call reset first"):
        _ = short_env.simulator
    [(after, _)] = play(short_env)
    assert np.array_equal(before[IMAGES], after[IMAGES])


def ten_random_tasks():
    everything = choose_tasks("+".join(STEP_LIMITS), None)
    return [
        everything[number]
        for number in np.random.default_rng(0).choice(len(everything), size=10, replace=False)
    ]


@pytest.mark.parametrize("task", ten_random_tasks(), ids=lambda task: f"{task.suite}/{task.number}")
def test_random_task_resets_and_steps(task, stand_ins):
    made = LiberoEnv(
        suite=task.suite, tasks=[task.number], assets="stand_in", image_size=16, camera="agentview"
    )
    results = play(made, seed=3, actions=[STILL] * 2)
    asyncio.run(made.close())
    assert (results[-1][0][INSTRUCTION], results[-1][-1]["executed"]) == (task.instruction, 2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"suite": "gaol"}, r"Unknown LIBERO suite 'gaol'\. Did you mean 'goal'\?"),
        ({"tasks": ["turn_on_the_stov"]}, "Unknown LIBERO task"),
        ({"image_size": 0}, "image_size must be at least 8 pixels, got 0"),
        (
            {"camera": "agentvew"},
            r"Unknown camera 'agentvew'\. Did you mean 'agentview'\? Known: both, agentview, wrist",
        ),
        ({"states": "none"}, r"Unknown states 'none'\. Known: split, all"),
        ({"render_quality": "best"}, r"Unknown render_quality 'best'\. Known: fast, full"),
        ({"max_episode_steps": 0}, "max_episode_steps must be a whole number of at least 1, got 0"),
        ({"kept_simulators": 0}, "kept_simulators must be a whole number of at least 1, got 0"),
        ({"assets": "/no/such/folder"}, r"env\.assets='/no/such/folder' is not a folder"),
    ],
)
def test_wrong_argument_is_refused_before_anything_is_built(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        LiberoEnv(**({"suite": "goal", "assets": "stand_in"} | arguments))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"task": "turn_on_the_stov"},
            r"Unknown task 'turn_on_the_stov'\. Did you mean 'turn_on_the_stove'\?",
        ),
        ({"init_stat": 3}, r"Unknown reset option 'init_stat'\. Did you mean 'init_state'\?"),
        ({"init_state": 50}, r"has no initial state 50: it has 50, numbered from 0"),
        ({"init_state": "first"}, "init_state must be the number of an initial state, got 'first'"),
    ],
)
def test_wrong_reset_is_refused(env, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        play(env, options=options)


def package_files():
    """Every file of the three packages with the time of its last change, and robosuite's own log."""
    folders = [
        importlib.util.find_spec(package).submodule_search_locations[0]
        for package in ("libero", "robosuite", "bddl")
    ]
    files = [path for folder in folders for path in Path(folder).rglob("*") if path.is_file()]
    return {
        path: path.stat().st_mtime_ns
        for path in [*files, Path("/tmp/robosuite.log")]
        if path.exists()
    }


def test_import_asks_nothing_and_writes_only_to_the_cache(repository, tmp_path):
    home, cache = tmp_path / "home", tmp_path / "cache"
    home.mkdir()
    before = package_files()
    code = (
        "import sys; from envs.libero.folders import import_libero; import_libero(); assert "
        "'torch' not in sys.modules"
    )
    environment = {
        "HOME": str(home),
        "SIIRL_CACHE": str(cache),
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=repository,
        env=environment,
        stdin=subprocess.DEVNULL,
        check=True,
    )
    assert list(home.iterdir()) == []
    assert (cache / "libero/config/config.yaml").is_file()
    assert package_files() == before


def test_functions_compiled_for_an_episode_are_kept_in_the_cache_and_not_in_site_packages(env):
    play(env, options={"task": STOVE}, actions=[STILL])
    assert list(Path(os.environ["NUMBA_CACHE_DIR"]).rglob("transform_utils*.nbi"))
    assert not [path for path in package_files() if path.suffix in (".nbi", ".nbc")]


@pytest.mark.parametrize(
    ("backend", "sentence"),
    [
        (
            {},
            "No OpenGL library for images was found (looked for EGL and OSMesa). Install: apt-get "
            "install -y libegl1",
        ),
        (
            {"MUJOCO_GL": "glfw"},
            "MUJOCO_GL='glfw' cannot draw without a window: set it to egl or osmesa",
        ),
    ],
)
def test_missing_opengl_library_is_reported(backend, sentence, repository, tmp_path):
    # The interpreter finds this module at its start: a machine on which the loader knows no OpenGL
    # library.
    (tmp_path / "sitecustomize.py").write_text(
        "import ctypes.util\nctypes.util.find_library = lambda name: None\n"
    )
    code = (
        "import asyncio; from envs.libero.libero_env import LiberoEnv; "
        "asyncio.run(LiberoEnv(assets='stand_in').reset(seed=0))"
    )
    environment = {"PATH": "", "PYTHONPATH": str(tmp_path), "SIIRL_CACHE": str(tmp_path), **backend}
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert f"RuntimeError: {sentence}" in result.stderr


def test_last_state_of_a_task_is_its_fiftieth(env):
    assert (
        play(env, options={"task": suite_tasks("goal")[7].name, "init_state": 49})[0][1][
            "init_state"
        ]
        == 49
    )


@pytest.mark.parametrize("visible", ["GPU-8f2c6a1e-0b5d", "4,5,6,7"])
def test_a_server_draws_on_a_gpu_that_cuda_does_not_show(repository, visible):
    code = (
        "import os; from envs.libero.folders import import_libero; import_libero(); "
        f"assert os.environ['CUDA_VISIBLE_DEVICES'] == {visible!r}"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=repository,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": visible, "MUJOCO_EGL_DEVICE_ID": "3"},
        check=True,
    )
