"""The pool as Gymnasium's VectorEnv, and as Stable-Baselines3's VecEnv."""

import asyncio

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from probe_envs import FaultyEnv

from siirl.env_server.pool import EnvPool
from siirl.env_server.sb3 import StableBaselines3Steps, stable_baselines3_env
from siirl.env_server.vector_env import PoolVectorEnv
from siirl.errors import ConfigError, SimulationFailed, UnknownNameError


def make_envs(name="probe_envs:WalkEnv", kwargs=None, num_envs=3, **options):
    options.setdefault("observation_entry", "proprioception")
    return PoolVectorEnv(
        EnvPool(name, kwargs or {}, num_envs, 1, cluster="local", deadline_s=600.0), **options
    )


def cartpole(num_envs=3, **options):
    return make_envs(
        "gymnasium", {"id": "CartPole-v1"}, num_envs, **{"observation_entry": None, **options}
    )


def test_a_pool_steps_like_gymnasiums_own_vector_env():
    ours = cartpole()
    theirs = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")
    assert ours.single_observation_space == theirs.single_observation_space
    assert (ours.observation_space, ours.action_space) == (
        theirs.observation_space,
        theirs.action_space,
    )
    assert np.array_equal(ours.reset(seed=5)[0], theirs.reset(seed=5)[0])
    random = np.random.default_rng(0)
    for _ in range(200):
        actions = random.integers(2, size=3)
        got, wanted = ours.step(actions), theirs.step(actions)
        assert np.array_equal(got[0], wanted[0])
        assert all(
            np.array_equal(mine, other) for mine, other in zip(got[1:4], wanted[1:4], strict=True)
        )
        if (got[2] | got[3]).any():
            break
    else:
        raise AssertionError("no episode ended")
    ours.close()


def test_next_step_autoreset_ignores_the_action_after_the_end():
    envs = make_envs(kwargs={"max_episode_steps": 2}, num_envs=1)
    envs.reset(seed=0)
    actions = np.zeros((1, 1), np.float32)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert [bool(envs.step(actions)[3][0]) for _ in range(6)] == [
        False,
        True,
        False,
        False,
        True,
        False,
    ]
    observations, rewards, *_ = envs.step(actions)
    envs.close()
    assert observations[0, 1] == 1.0  # number of steps: the first of the third episode
    # this environment's reward is its position
    assert rewards[0] == pytest.approx(observations[0, 0])


def test_same_step_autoreset_keeps_the_final_observation():
    envs = make_envs(kwargs={"max_episode_steps": 2}, num_envs=2, autoreset_mode="SameStep")
    envs.reset(seed=0)
    envs.step(np.zeros((2, 1), np.float32))
    observations, _, _, truncations, infos = envs.step(np.zeros((2, 1), np.float32))
    envs.close()
    assert truncations.tolist() == [True, True]
    assert [final[1] for final in infos["final_obs"]] == [2.0, 2.0]
    assert infos["final_info"]["task"].tolist() == ["left", "right"]
    assert observations[:, 1].tolist() == [0.0, 0.0]


def test_without_autoreset_ended_episodes_are_reset_by_mask():
    envs = make_envs(
        kwargs={"max_episode_steps": 2}, num_envs=2, autoreset_mode=AutoresetMode.DISABLED
    )
    actions = np.zeros((2, 1), np.float32)
    with pytest.raises(RuntimeError, match="reset_mask"):
        envs.step(actions)
    envs.reset(seed=0)
    envs.step(actions)
    envs.step(actions)
    envs.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(RuntimeError, match=r"environments \[1\]"):
        envs.step(actions)
    with pytest.raises(ValueError, match="reset_mask must be"):
        envs.reset(options={"reset_mask": np.array([1, 0])})
    envs.close()


def test_every_environment_keeps_its_task_and_its_seed():
    envs = make_envs(num_envs=3)
    observations, infos = envs.reset(seed=10)
    again, _ = envs.reset(seed=[10, 11, 12])
    other, _ = envs.reset()
    envs.close()
    assert infos["task"].tolist() == ["left", "right", "left"]
    assert np.array_equal(observations, again)
    assert not np.array_equal(observations, other)
    assert observations[1, 0] == np.float32(np.random.default_rng(11).normal())


def test_seeds_of_later_episodes_follow_from_the_first():
    def observations():
        envs = make_envs(kwargs={"max_episode_steps": 1}, num_envs=2)
        seen = [
            envs.reset(seed=3)[0],
            *(envs.step(np.zeros((2, 1), np.float32))[0] for _ in range(5)),
        ]
        envs.close()
        return np.stack(seen)

    assert np.array_equal(observations(), observations())


class LateEnv(FaultyEnv):
    """Answers a step later than an environment that fails in it."""

    async def step(self, action):
        if self._seed != self._faulty_seed:
            await asyncio.sleep(0.05)
        return await super().step(action)


def test_after_a_failed_step_no_environment_plays_on_beside_the_next_episodes(tmp_path):
    name, kwargs = f"{__name__}:LateEnv", {"fault": "give_up", "ledger": str(tmp_path)}
    actions = np.zeros((2, 1), np.float32)

    def first_steps(envs):
        envs.reset(seed=[5, 6])
        return [envs.step(actions)[0].tolist() for _ in range(3)]

    failed, fresh = (
        make_envs(name, {**kwargs, "at_step": at_step}, 2, autoreset_mode="SameStep")
        for at_step in (40, 41)
    )
    failed.reset(seed=[1, 2])
    for _ in range(39):
        failed.step(actions)
    with pytest.raises(SimulationFailed, match="stuck"):
        failed.step(actions)
    assert first_steps(failed) == first_steps(fresh)
    for envs in (failed, fresh):
        envs.close()


def test_a_dict_observation_can_be_returned_whole():
    envs = make_envs(observation_entry=None, num_envs=2)
    observations, _ = envs.reset(seed=0)
    envs.close()
    assert observations["proprioception"].shape == (2, 2)
    assert observations["instruction"] == ("walk left", "walk right")


def test_an_unknown_entry_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match="Known: instruction, proprioception"):
        make_envs(observation_entry="proprio")


def test_gymnasiums_statistics_wrapper_counts_episodes():
    envs = RecordEpisodeStatistics(make_envs(kwargs={"max_episode_steps": 4}, num_envs=2))
    envs.reset(seed=0)
    lengths = []
    for _ in range(12):
        *_, infos = envs.step(np.zeros((2, 1), np.float32))
        if "episode" in infos:
            lengths += infos["episode"]["l"][infos["_episode"]].tolist()
    envs.close()
    assert lengths == [4, 4, 4, 4]


def test_stable_baselines3_gets_its_own_shape_of_a_step():
    envs = StableBaselines3Steps(
        make_envs(kwargs={"max_episode_steps": 2}, num_envs=2, autoreset_mode="SameStep")
    )
    envs.seed(0)
    first = envs.reset()
    envs.step_async(np.zeros((2, 1), np.float32))
    envs.step_wait()
    envs.step_async(np.zeros((2, 1), np.float32))
    observations, rewards, ended, infos = envs.step_wait()
    envs.close()
    assert first.shape == observations.shape == (2, 2)
    assert (rewards.dtype, ended.tolist()) == (np.float32, [True, True])
    assert infos[0]["terminal_observation"][1] == 2.0 and infos[0]["TimeLimit.truncated"]
    assert observations[0, 1] == 0.0


def test_stable_baselines3_needs_a_reset_within_the_step():
    envs = make_envs(num_envs=1)
    with pytest.raises(ConfigError, match="SameStep"):
        StableBaselines3Steps(envs)
    envs.close()


def test_stable_baselines3_trains_on_the_pool():
    # not at the top: it imports TensorBoard, which the other tests do not need
    import stable_baselines3 as sb3

    envs = stable_baselines3_env(cartpole(4, autoreset_mode="SameStep"))
    trained = sb3.PPO("MlpPolicy", envs, n_steps=32, batch_size=64, n_epochs=1, device="cpu").learn(
        total_timesteps=256
    )
    envs.close()
    assert trained.num_timesteps == 256  # two rollouts of 32 steps in four environments
