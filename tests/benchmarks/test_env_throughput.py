"""The throughput benchmark's own parts: a wrong contender would give a wrong ratio."""

import asyncio

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from benchmarks.env_throughput import best, markdown
from benchmarks.rate_ratios import summarise_ratios
from benchmarks.throughput_envs import NullEnv, PlainEnv, WaitingEnv, finished, random_chunks

NULL = "benchmarks.throughput_envs:NullEnv"


@pytest.mark.parametrize("chunk", [1, 8])
def test_the_plain_environment_is_one_of_gymnasiums(chunk):
    check_env(PlainEnv(NULL, {}, chunk=chunk, index=0), skip_render_check=True)


def test_a_chunk_of_the_plain_environment_is_cut_at_the_end_of_the_episode():
    env = PlainEnv(NULL, {"max_episode_steps": 10}, chunk=8, index=0)
    env.reset(seed=0)
    actions = np.zeros((8, 4), np.float32)
    assert [env.step(actions)[4]["executed"], env.step(actions)[4]["executed"]] == [8, 2]


@pytest.mark.parametrize(("go_on", "executed"), [(False, [8, 2, 0, 0, 0]), (True, [8, 2, 0, 8, 2])])
def test_after_its_end_a_waiting_environment_rests_or_plays_on(go_on, executed):
    env = WaitingEnv(NULL, {"max_episode_steps": 10}, chunk=8, index=0, go_on=go_on)
    env.reset(seed=0, options={"tasks": ["nothing"]})
    infos = [env.step(np.zeros((8, 4), np.float32))[4] for _ in range(5)]
    assert [info["executed"] for info in infos] == executed
    assert [info["ended"] for info in infos] == [False, True, True, True, True]


def test_the_control_has_the_observations_of_the_default_environment():
    space, like = (
        NullEnv().spec.observation_space,
        PlainEnv("metaworld", {}, chunk=1, index=0).observation_space,
    )
    assert isinstance(like, gymnasium.spaces.Dict)
    assert {name: part.shape for name, part in space.spaces.items()} == {
        name: part.shape for name, part in like.spaces.items()
    }


def test_a_coroutine_that_waits_is_refused():
    with pytest.raises(RuntimeError, match="event loop"):
        finished(asyncio.sleep(1))


def test_ratios_are_taken_within_rounds():
    rates = {"fast": [10.0, 40.0, 30.0], "slow_1": [5.0, 10.0, 10.0], "slow_2": [1.0, 1.0, 1.0]}
    ratio = summarise_ratios(rates, {"gain": ("fast", best(rates, "slow"))})["gain"]
    assert (ratio["to"], ratio["median"], ratio["lowest"], ratio["highest"]) == (
        "slow_1",
        3.0,
        2.0,
        4.0,
    )
    assert "| gain | 3.00 | 2.00 to 4.00 |" in markdown("Title", rates, {"gain": ratio}, "steps/s")


def test_every_contender_takes_the_same_actions():
    first, again = random_chunks(seed=3, chunk=8, size=4), random_chunks(seed=3, chunk=8, size=4)
    assert np.array_equal(np.stack(first), np.stack(again))
    assert np.abs(np.stack(first)).max() <= 1.0
