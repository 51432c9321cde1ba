"""Faults of environments in a pool that need no process: replays, failed episodes, the log."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from local_pools import local_pool, run_episode, run_episodes
from probe_envs import WalkEnv
from virtual_time import run_in_virtual_time

from envs.base import EpisodeFailed, FrameRequest
from siirl.engine.rollout.workflow import RolloutResult
from siirl.env_server.server import RaisedError
from siirl.env_server.tally import Tally
from siirl.errors import SimulationFailed


@pytest.mark.parametrize(
    "fault",
    ["raise", "hang_awaiting", "nan_observation", "nan_reward"],
)
def test_after_a_fault_the_episode_ends_as_without_it(fault, tmp_path):
    async def episodes(times):
        kwargs = {"fault": fault, "ledger": str(tmp_path), "times": times}
        async with local_pool("probe_envs:FaultyEnv", kwargs, deadline_s=0.3) as pool:
            return await run_episodes(pool, range(4)), pool.stats()

    wanted, calm = run_in_virtual_time(episodes(0))
    got, stats = run_in_virtual_time(episodes(2))
    assert got == wanted
    assert (calm["env/replays"], stats["env/replays"], stats["env/failures"]) == (0, 2, 0)
    assert (
        stats["env/steps"]
        == calm["env/steps"]
        == sum(entry[-1] for episode in wanted for entry in episode[1:])
    )


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("wrong_shape", "is float32 (3,) instead of float32 (2,)"),
        ("wrong_dtype", "is float64 (2,) instead of float32 (2,)"),
    ],
)
def test_a_result_of_the_wrong_form_fails_its_episode_without_a_replay(fault, words, tmp_path):
    async def episodes():
        kwargs = {"fault": fault, "ledger": str(tmp_path), "times": 99}
        async with local_pool("probe_envs:FaultyEnv", kwargs) as pool:
            return await run_episodes(pool, range(4)), pool.stats()

    said, stats = asyncio.run(episodes())
    assert [isinstance(entry, SimulationFailed) for entry in said] == [False, True, False, False]
    assert said[1].culprit == (
        f"step_chunk of environment 'walk': observation['proprioception'] {words}. "
        "Test it alone with envs.checker.check_env."
    )
    assert (stats["env/replays"], stats["env/failures"], len(list(tmp_path.iterdir()))) == (0, 1, 1)


class BreakingEnv(WalkEnv):
    """Its simulator returns nothing in the episodes with the seeds `faulty`; with `breaks`, also in
    every later one, until the environment is made again.
    """

    def __init__(self, faulty, breaks, replayable=True, failing=()):
        super().__init__()
        self.spec = replace(self.spec, replayable=replayable)
        self.faulty, self.breaks, self.broken, self.failing = faulty, breaks, False, failing

    async def step(self, action):
        if self.broken or self._seed in self.faulty:
            self.broken = self.breaks
            return None
        if self._seed in self.failing:
            raise EpisodeFailed("it cannot be scored")
        return await super().step(action)


@pytest.mark.parametrize(
    ("faulty", "left", "kwargs", "failed", "replacements"),
    [
        ((1,), (), {"breaks": True}, {1, 2}, 1),
        ((1, 3), (), {"breaks": False}, {1, 3}, 0),
        ((1, 3), (2,), {"breaks": False}, {1, 3}, 0),
        ((1, 3), (), {"breaks": False, "failing": (2,)}, {1, 2, 3}, 0),
        ((1, 2), (), {"breaks": False}, {1, 2}, 1),
        ((1,), (), {"breaks": True, "replayable": False}, {1, 2, 3, 4}, 0),
    ],
    ids=[
        "broken",
        "two apart",
        "two apart, left between",
        "two apart, another failure between",
        "two in a row",
        "not replayable",
    ],
)
def test_an_environment_with_results_of_a_wrong_form_in_two_episodes_in_a_row_is_made_again(
    faulty, left, kwargs, failed, replacements, caplog
):
    """Unless that would end other episodes of its server, which cannot be replayed."""

    async def episode(pool, seed):
        if seed not in left:
            return (await run_episodes(pool, [seed]))[0]
        async with pool.slot() as slot:
            await slot.reset(seed=seed)
            return await slot.step_chunk([[0.0]])

    async def episodes():
        name = f"{__name__}:BreakingEnv"
        async with local_pool(name, {"faulty": faulty, **kwargs}, num_servers=1) as pool:
            return [await episode(pool, seed) for seed in range(5)], pool.stats()

    said, stats = asyncio.run(episodes())
    assert {seed for seed, entry in enumerate(said) if isinstance(entry, Exception)} == failed
    assert "BreakingEnv.step must return (observation" in said[1].culprit
    assert (stats["env/replays"], stats["env/failures"]) == (0, len(failed))
    replaced = [record for record in caplog.records if "is replaced" in record.message]
    assert len(replaced) == replacements


class CounterEnv(WalkEnv):
    """Its info has a number of its own under the name that is kept for images."""

    def __init__(self, resets=True):
        super().__init__()
        self.resets = resets

    async def reset(self, *, seed, options=None):
        observation, info = await super().reset(seed=seed, options=options)
        return observation, {**info, **({"frames": 0} if self.resets else {})}

    async def step(self, action):
        *result, info = await super().step(action)
        return *result, {**info, "frames": {"count": 1}}


class FlagsEnv(WalkEnv):
    """Tells for two agents whether they have ended, although it has one."""

    async def step(self, action):
        observation, reward, _, _, info = await super().step(action)
        return observation, reward, np.array([False, True]), False, info


@pytest.mark.parametrize(
    ("cls", "kwargs", "words"),
    [
        (CounterEnv, {}, "CounterEnv.reset returned info['frames']=0: return the Frames of each"),
        (CounterEnv, {"resets": False}, "CounterEnv.step returned info['frames']={'count': 1}: "),
        (
            FlagsEnv,
            {},
            "FlagsEnv.step returned terminated=array([False,  True]) and truncated=False",
        ),
    ],
)
def test_frames_and_flags_of_another_form_fail_their_episode_in_a_sentence(cls, kwargs, words):
    async def episode():
        async with local_pool(f"{__name__}:{cls.__name__}", kwargs) as pool:
            return (await run_episodes(pool, [1]))[0], pool.stats()

    failed, stats = asyncio.run(episode())
    assert failed.culprit.startswith(words)
    assert (stats["env/replays"], stats["env/failures"]) == (0, 1)


class NoInfoEnv(WalkEnv):
    """Its `reset` gives no info."""

    async def reset(self, *, seed, options=None):
        observation, _ = await super().reset(seed=seed, options=options)
        return observation, None


class ListInfoEnv(WalkEnv):
    """The info of its `reset` is a list, which names frames."""

    async def reset(self, *, seed, options=None):
        observation, _ = await super().reset(seed=seed, options=options)
        return observation, ["frames"]


@pytest.mark.parametrize(
    ("cls", "info"), [(NoInfoEnv, "NoneType None"), (ListInfoEnv, "list ['frames']")]
)
def test_a_reset_whose_info_is_no_dict_fails_its_episode_without_a_replay(cls, info):
    async def episode():
        async with local_pool(f"{__name__}:{cls.__name__}") as pool:
            return (await run_episodes(pool, [1]))[0], pool.stats()

    failed, stats = asyncio.run(episode())
    assert failed.culprit == (
        f"reset of environment 'walk': info is {info} instead of a dict. "
        "Test it alone with envs.checker.check_env."
    )
    assert (stats["env/replays"], stats["env/failures"]) == (0, 1)


@pytest.mark.parametrize(
    ("max_replays", "replayable", "end"),
    [
        (0, True, "its server failed once, and env.max_replays is 0"),
        (1, True, "its server failed 2 times, and env.max_replays is 1"),
        (1, False, "its server failed, and the environment's spec says replayable=False"),
    ],
)
def test_the_reason_of_an_episode_begins_with_the_fault_and_not_with_the_server(
    max_replays, replayable, end, tmp_path
):
    async def episode():
        kwargs = {"fault": "raise", "ledger": str(tmp_path), "times": 99, "replayable": replayable}
        async with local_pool("probe_envs:FaultyEnv", kwargs, max_replays=max_replays) as pool:
            return (await run_episodes(pool, [1]))[0]

    failed = asyncio.run(episode())
    result = RolloutResult()
    result.add(SimpleNamespace(task="left"), failed)
    (reason,) = result.reasons()
    sentence, _, trace = reason.partition("\n")
    assert sentence == (
        f"step_chunk raised RuntimeError: the simulation diverged; {end} (task 'left', seed 1 and "
        "options {})."
    )
    assert trace.endswith("\nRuntimeError: the simulation diverged")


def test_frames_survive_a_fault(tmp_path):
    async def frames(times):
        kwargs = {"fault": "raise", "ledger": str(tmp_path), "times": times, "at_step": 8}
        async with local_pool("probe_envs:FaultyEnv", kwargs) as pool, pool.slot() as slot:
            await slot.reset(
                seed=1, options={"frames": {"recorder": FrameRequest(every=2, size=4)}}
            )
            for _ in range(3):
                await slot.step_chunk(np.zeros((4, 1), np.float32))
            return await slot.frames("recorder")

    calm, replayed = asyncio.run(frames(0)), asyncio.run(frames(1))
    assert replayed.steps == calm.steps == (0, 2, 4, 6, 8, 10, 12)
    assert np.array_equal(replayed.images, calm.images)


def test_an_episode_that_fails_too_often_is_given_up_and_no_other(tmp_path):
    async def episodes():
        kwargs = {"fault": "raise", "ledger": str(tmp_path), "times": 99}
        async with local_pool(
            "probe_envs:FaultyEnv", kwargs, num_servers=2, envs_per_server=3, max_replays=2
        ) as pool:
            return await run_episodes(pool, range(8)), pool.stats()

    said, stats = asyncio.run(episodes())
    assert [isinstance(entry, SimulationFailed) for entry in said] == [
        seed == 1 for seed in range(8)
    ]
    assert (
        "seed 1" in str(said[1])
        and "failed 3 times" in str(said[1])
        and "the simulation diverged" in str(said[1])
    )
    assert len(list(tmp_path.iterdir())) == 3
    assert stats["env/failures"] == 1


def test_a_slot_can_be_used_again_after_a_failure(tmp_path):
    async def again():
        kwargs = {"fault": "raise", "ledger": str(tmp_path), "times": 1}
        async with local_pool("probe_envs:FaultyEnv", kwargs, num_servers=1, max_replays=0) as pool:
            failed = (await run_episodes(pool, [1]))[0]
            return failed, await run_episode(pool, 1)

    failed, said = asyncio.run(again())
    assert isinstance(failed, SimulationFailed)
    assert said[-1][3]


def test_an_episode_that_cannot_be_replayed_fails_at_once_with_the_reason(tmp_path, caplog):
    async def episode():
        kwargs = {"fault": "raise", "ledger": str(tmp_path), "replayable": False}
        async with local_pool("probe_envs:FaultyEnv", kwargs) as pool:
            return (await run_episodes(pool, [1]))[0], pool.stats()

    said, stats = asyncio.run(episode())
    assert isinstance(said, SimulationFailed)
    assert (
        "replayable=False. Last: raised: server 1 of 2 (probe_envs:FaultyEnv): step_chunk raised "
        "RuntimeError: the sim" in str(said)
    )
    assert str(said).endswith("\nRuntimeError: the simulation diverged")
    assert (stats["env/replays"], stats["env/failures"]) == (0, 1)
    assert not any("is replayed" in record.message for record in caplog.records)


def test_an_error_without_text_is_named_by_its_type():
    said = RaisedError.of(RuntimeError())
    assert (said.summary, said.trace) == ("RuntimeError", "\nRuntimeError\n")


def test_an_episode_that_another_one_took_with_it_says_so_and_none_is_the_culprit(tmp_path):
    """Seed 1 fails in its third chunk; the two others wait for an answer, or are between two
    calls.
    """

    async def episodes():
        kwargs = {"fault": "raise", "ledger": str(tmp_path), "replayable": False}
        async with (
            local_pool("probe_envs:FaultyEnv", kwargs, num_servers=1, envs_per_server=4) as pool,
            pool.slot() as bystander,
        ):
            await bystander.reset(seed=3)
            said = await run_episodes(pool, range(3))
            with pytest.raises(SimulationFailed) as between:
                await bystander.step_chunk([np.zeros(1, np.float32)])
            return [*said, between.value]

    first, culprit, *others = asyncio.run(episodes())
    assert culprit.culprit.startswith(
        "step_chunk raised RuntimeError: the simulation diverged; its"
    )
    assert [innocent.culprit for innocent in (first, *others)] == [
        "another episode of its server failed (raised: server 1 of 1 (probe_envs:FaultyEnv): "
        "step_chunk raised RuntimeError: the simulation diverged), and the environment's spec says "
        "replayable=False."
    ] * 3


def test_an_episode_that_ends_itself_takes_no_other_with_it_though_none_can_be_replayed(tmp_path):
    """Seed 1 fails in its third chunk of four; the others are in the middle of theirs, on the same
    server.
    """

    async def episodes():
        kwargs = {"fault": "give_up", "ledger": str(tmp_path), "replayable": False}
        async with local_pool(
            "probe_envs:FaultyEnv", kwargs, num_servers=1, envs_per_server=4
        ) as pool:
            return await run_episodes(pool, range(4)), pool.stats()

    async def calm():
        async with local_pool(num_servers=1, envs_per_server=4) as pool:
            return await run_episodes(pool, range(4))

    (first, failed, *others), stats = asyncio.run(episodes())
    assert isinstance(
        failed, SimulationFailed
    ) and "could not be simulated: EpisodeFailed: its gripper is stuck." in str(failed)
    wanted = asyncio.run(calm())
    assert [first, *others] == [wanted[0], *wanted[2:]]
    assert (stats["env/replays"], stats["env/failures"]) == (0, 1)


@pytest.mark.parametrize("replayable", [True, False])
def test_an_episode_that_failed_at_its_reset_is_started_anew_and_counted(
    replayable, tmp_path, caplog
):
    """Nothing has happened in it, so it may start again even if it cannot be replayed."""

    async def episode(times):
        kwargs = {
            "fault": "none",
            "ledger": str(tmp_path),
            "times": times,
            "replayable": replayable,
        }
        async with local_pool("probe_envs:FaultyStartEnv", kwargs, num_servers=1) as pool:
            return (await run_episodes(pool, [1]))[0], pool.stats()

    calm, without = asyncio.run(episode(0))
    said, stats = asyncio.run(episode(2))
    assert said == calm
    assert (without["env/replays"], stats["env/replays"], stats["env/failures"]) == (0, 2, 0)
    (first, second) = [record.message for record in caplog.records if record.name.endswith("slot")]
    assert first == "Episode with seed 1 is started again (failure 1, 2 allowed)."
    assert second == "Episode with seed 1 is started again (failure 2, 2 allowed)."


def test_a_reset_that_fails_too_often_is_given_up_with_its_reason(tmp_path):
    async def episode():
        kwargs = {"fault": "none", "ledger": str(tmp_path), "times": 99, "replayable": False}
        async with local_pool(
            "probe_envs:FaultyStartEnv", kwargs, num_servers=1, max_replays=1
        ) as pool:
            return (await run_episodes(pool, [1]))[0]

    said = asyncio.run(episode())
    assert isinstance(said, SimulationFailed)
    assert "failed 2 times, and env.max_replays is 1. Last: raised:" in str(
        said
    ) and "the simulator is not there" in str(said)


def test_a_replay_that_deviates_is_reported_with_the_failure_before_it(tmp_path, caplog):
    async def episode():
        async with local_pool(
            "probe_envs:FlickeringEnv", {"fault": "raise", "ledger": str(tmp_path)}
        ) as pool:
            return (await run_episodes(pool, [1]))[0]

    said = asyncio.run(episode())
    assert isinstance(said, SimulationFailed)
    assert "its replay diverged" in str(said) and "replayable=False" in str(said)
    assert str(said).endswith("\nRuntimeError: the simulation diverged")
    assert any(
        record.levelname == "ERROR" and "its replay diverged" in record.message
        for record in caplog.records
    )


def test_the_first_failure_of_each_cause_is_logged_and_the_others_are_counted(tmp_path, caplog):
    async def steps():
        kwargs = {"fault": "give_up", "ledger": str(tmp_path), "times": 99}
        async with local_pool("probe_envs:FaultyEnv", kwargs, envs_per_server=4) as pool:
            said = []
            for episodes in (8, 2):
                failed = await run_episodes(pool, [1] * episodes)
                assert all(isinstance(failure, SimulationFailed) for failure in failed)
                said.append((pool.stats()["env/failures"], [r.message for r in caplog.records]))
                caplog.clear()
            return said

    reason = "could not be simulated: EpisodeFailed: its gripper is stuck."
    more = "of this step could not be simulated for the same reason: EpisodeFailed: its gripper is"
    first = f"The episode with seed 1 and options {{}} {reason}"
    assert asyncio.run(steps()) == [
        (8, [first, f"And 7 more episodes {more} stuck."]),
        (2, [first, f"And 1 more episode {more} stuck."]),
    ]


def test_of_many_causes_three_are_logged_and_a_pool_that_closes_counts_the_rest(caplog):
    tally = Tally()
    for number in range(9):
        tally.fail(f"cause {number}.", f"episode {number} failed: cause {number}.")
    tally.report_failures()
    tally.report_failures()
    assert [record.message for record in caplog.records] == [
        *(f"episode {number} failed: cause {number}." for number in range(3)),
        "And 6 more episodes of this step could not be simulated for other reasons; the first 3 "
        "are above.",
    ]
    assert tally.failures == 9
