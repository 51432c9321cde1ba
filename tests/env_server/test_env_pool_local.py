"""The pool with environments in this process: the slot API, faults that need no process, counting."""

import asyncio
import os
import subprocess
import sys

import numpy as np
import pytest
from probe_envs import WalkEnv, answers_around_a_gate, numbers_of, random_steps
from virtual_time import run_in_virtual_time

from envs.base import FrameRequest
from siirl.env_server.pool import EnvPool
from siirl.env_server.server import EnvServer, RaisedError, Request
from siirl.env_server.tally import Tally
from siirl.errors import ConfigError, SimulationFailed
from siirl.occupation import OCCUPATION

WALK = "probe_envs:WalkEnv"


def local_pool(name=WALK, kwargs=None, num_servers=2, envs_per_server=1, **changes):
    return EnvPool(
        name,
        kwargs or {},
        num_servers,
        envs_per_server,
        **{"cluster": "local", "deadline_s": 600.0, **changes},
    )


async def run_episode(pool, seed, *, chunk=4, options=None):
    """One episode with actions drawn from its seed; all of the environment's answers."""
    random = np.random.default_rng(1000 + seed)
    said = []
    async with pool.slot() as slot:
        observation, info = await slot.reset(seed=seed, options=options)
        said.append(
            (observation["proprioception"].tolist(), observation["instruction"], info["task"])
        )
        async for step in random_steps(slot, random, chunk=chunk):
            said.append(numbers_of(step))
    return said


async def run_episodes(pool, seeds, **keywords):
    return await asyncio.gather(
        *(run_episode(pool, seed, **keywords) for seed in seeds), return_exceptions=True
    )


def test_an_episode_is_what_the_environment_alone_would_do():
    async def alone():
        env, random = WalkEnv(), np.random.default_rng(1007)
        observation, info = await env.reset(seed=7)
        said = [(observation["proprioception"].tolist(), observation["instruction"], info["task"])]
        async for step in random_steps(env, random):
            said.append(numbers_of(step))
        return said

    async def through_pool():
        async with local_pool() as pool:
            return await run_episode(pool, 7)

    assert asyncio.run(through_pool()) == asyncio.run(alone())


@pytest.mark.parametrize(
    ("num_servers", "envs_per_server"), [(1, 1), (1, 4), (2, 2), (4, 1), (3, 5)]
)
def test_episodes_are_the_same_from_any_number_of_servers(num_servers, envs_per_server):
    async def episodes(servers, envs):
        async with local_pool(num_servers=servers, envs_per_server=envs) as pool:
            return await run_episodes(pool, range(10))

    assert asyncio.run(episodes(num_servers, envs_per_server)) == asyncio.run(episodes(1, 2))


def test_no_more_episodes_run_than_there_are_slots():
    async def most_at_once():
        async with local_pool(num_servers=2, envs_per_server=2) as pool:
            running, most = 0, 0

            async def episode():
                nonlocal running, most
                async with pool.slot() as slot:
                    running += 1
                    most = max(most, running)
                    await slot.reset(seed=0)
                    await asyncio.sleep(0.001)
                    running -= 1

            await asyncio.gather(*(episode() for _ in range(12)))
            return pool.num_slots, most

    assert asyncio.run(most_at_once()) == (4, 4)


def test_few_episodes_spread_over_all_servers():
    async def supervisors():
        async with (
            local_pool(num_servers=2, envs_per_server=4) as pool,
            pool.slot() as one,
            pool.slot() as other,
        ):
            return one.supervisor is not other.supervisor

    assert asyncio.run(supervisors())


def test_frames_stay_at_the_server_and_come_as_a_whole():
    async def frames():
        async with local_pool() as pool, pool.slot() as slot:
            _, info = await slot.reset(
                seed=0, options={"frames": {"recorder": FrameRequest(every=3, size=4)}}
            )
            assert "frames" not in info
            for _ in range(2):
                *_, info = await slot.step_chunk(np.zeros((4, 1), np.float32))
                assert "frames" not in info
            first, again = await slot.frames("recorder"), await slot.frames("recorder")
            assert first.steps == again.steps
            with pytest.raises(ValueError, match=r"stream 'encoder'.*: recorder"):
                await slot.frames("encoder")
            await slot.reset(seed=0)
            with pytest.raises(ValueError, match="none"):
                await slot.frames("recorder")
            return first

    frames = asyncio.run(frames())
    assert frames.steps == (0, 3, 6)
    assert frames.images.shape == (3, 4, 4, 3)
    assert frames.images[:, 0, 0, 0].tolist() == [0, 3, 6]


@pytest.mark.parametrize(
    "fault",
    ["raise", "hang_awaiting", "nan_observation", "nan_reward", "wrong_shape", "wrong_dtype"],
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


def test_an_episode_between_two_calls_gets_the_reason_of_its_servers_replacement(tmp_path):
    async def episodes():
        kwargs = {"fault": "raise", "ledger": str(tmp_path), "replayable": False}
        async with (
            local_pool("probe_envs:FaultyEnv", kwargs, num_servers=1, envs_per_server=2) as pool,
            pool.slot() as bystander,
        ):
            await bystander.reset(seed=2)
            await run_episodes(pool, [1])
            await bystander.step_chunk([np.zeros(1, np.float32)])

    with pytest.raises(
        SimulationFailed,
        match=r"replayable=False\. Last: raised: server 1 of 1 .*the simulation diverged",
    ):
        asyncio.run(episodes())


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
def test_an_episode_that_failed_at_its_reset_is_started_anew(replayable, tmp_path, caplog):
    """Nothing has happened in it, so there is nothing to replay."""

    async def episode(times):
        kwargs = {
            "fault": "none",
            "ledger": str(tmp_path),
            "times": times,
            "replayable": replayable,
        }
        async with local_pool("probe_envs:FaultyStartEnv", kwargs, num_servers=1) as pool:
            return (await run_episodes(pool, [1]))[0], pool.stats()

    calm, _ = asyncio.run(episode(0))
    said, stats = asyncio.run(episode(2))
    assert said == calm
    assert (stats["env/replays"], stats["env/failures"]) == (0, 0)
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


def test_a_replay_that_deviates_is_reported(tmp_path, caplog):
    async def episode():
        async with local_pool(
            "probe_envs:FlickeringEnv", {"fault": "raise", "ledger": str(tmp_path)}
        ) as pool:
            return (await run_episodes(pool, [1]))[0]

    said = asyncio.run(episode())
    assert isinstance(said, SimulationFailed)
    assert "diverged" in str(said) and "replayable=False" in str(said)
    assert any(
        record.levelname == "ERROR" and "diverged" in record.message for record in caplog.records
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


def test_a_refused_argument_is_an_error_of_the_caller():
    async def mistakes():
        async with local_pool() as pool, pool.slot() as slot:
            with pytest.raises(ValueError, match="Unknown task 'up'"):
                await slot.reset(seed=0, options={"task": "up"})
            await slot.reset(seed=0)
            with pytest.raises(ValueError, match=r"shape \(1,\)"):
                await slot.step_chunk(np.zeros((4, 2), np.float32))
            with pytest.raises(RuntimeError, match="call reset"):
                await slot.step_chunk(np.zeros((4, 1), np.float32))
            return pool.stats()

    stats = asyncio.run(mistakes())
    assert (stats["env/replays"], stats["env/failures"]) == (0, 0)


def test_stepping_without_or_after_an_episode_is_refused():
    async def mistakes():
        async with local_pool(kwargs={"max_episode_steps": 3}) as pool, pool.slot() as slot:
            with pytest.raises(RuntimeError, match="call reset"):
                await slot.step_chunk(np.zeros((4, 1), np.float32))
            await slot.reset(seed=0)
            *_, truncated, info = await slot.step_chunk(np.zeros((4, 1), np.float32))
            assert truncated and info["executed"] == 3
            with pytest.raises(RuntimeError, match="call reset"):
                await slot.step_chunk(np.zeros((4, 1), np.float32))

    asyncio.run(mistakes())


def test_a_cancelled_episode_gives_its_slot_back():
    async def cancelled():
        async with local_pool(kwargs={"max_episode_steps": 1000}, num_servers=1) as pool:
            task = asyncio.create_task(run_episode(pool, 0))
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            async with pool.slot() as slot:
                observation, _ = await slot.reset(seed=3)
            return observation["proprioception"].tolist()

    assert asyncio.run(cancelled()) == [float(np.float32(np.random.default_rng(3).normal())), 0.0]


def test_an_episode_whose_chunk_was_cancelled_does_not_go_on(tmp_path):
    kwargs = {"fault": "hang_awaiting", "ledger": str(tmp_path)}
    chunk = np.zeros((12, 1), np.float32)

    async def cancelled():
        pool = local_pool("probe_envs:FaultyEnv", kwargs, num_servers=1)
        async with pool, pool.slot() as slot:
            await slot.reset(seed=1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await slot.step_chunk(chunk)
            with pytest.raises(RuntimeError, match="call reset"):
                await slot.step_chunk(chunk)

    run_in_virtual_time(cancelled())


def test_stats_are_counted_since_the_last_call():
    async def stats():
        async with local_pool(kwargs={"step_s": 0.002}, num_servers=1) as pool:
            await run_episode(pool, 0)
            return pool.stats(), pool.stats()

    first, second = asyncio.run(stats())
    assert first["env/steps"] == 40
    assert 0.0 < first["env/busy_share"] <= 1.0
    assert first["env/steps_per_s"] < 500
    assert second["env/steps"] == second["env/busy_share"] == 0


def test_a_closed_pool_refuses_and_may_be_closed_again():
    async def closed():
        pool = local_pool()
        async with pool, pool.slot() as slot:
            await slot.reset(seed=0)
            await pool.close()
            with pytest.raises(RuntimeError, match="closed"):
                await slot.step_chunk(np.zeros((1, 1), np.float32))

    asyncio.run(closed())


def test_the_watchdog_knows_a_call_until_its_answer_or_the_servers_replacement(tmp_path):
    kwargs = {"fault": "hang_awaiting", "ledger": str(tmp_path), "times": 1}

    async def episode():
        async with local_pool(
            "probe_envs:FaultyEnv", kwargs, num_servers=1, deadline_s=10.0
        ) as pool:
            playing = asyncio.ensure_future(run_episode(pool, 1))
            await asyncio.sleep(5.0)
            hangs = OCCUPATION.snapshot().text
            await playing
            return hangs

    hangs = run_in_virtual_time(episode())
    assert hangs.startswith("waits for step_chunk of environment server 1 of 1 (probe_envs:Fau")
    assert not OCCUPATION.asked


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_servers": 0}, "num_servers must be positive, got 0"),
        ({"envs_per_server": -1}, "envs_per_server must be positive, got -1"),
        ({"deadline_s": 0.0}, "deadline_s must be positive"),
        ({"max_replays": -1}, "max_replays must be 0 or more, got -1"),
        ({"cluster": "rya"}, "Unknown cluster mode 'rya'. Did you mean 'ray'"),
    ],
)
def test_impossible_settings_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        local_pool(**changes)


def test_an_environment_that_refuses_its_arguments_is_refused():
    with pytest.raises(ValueError, match="max_episode_steps must be positive, got -1"):
        local_pool(kwargs={"max_episode_steps": -1})


def test_ray_is_not_imported_for_a_local_pool():
    program = (
        "import asyncio, sys\n"
        "from siirl.env_server.pool import EnvPool\n"
        "async def main():\n"
        f"    async with EnvPool({WALK!r}, {{}}, 1, cluster='local', deadline_s=300.0) as pool, "
        "pool.slot() as slot:\n"
        "        await slot.reset(seed=0)\n"
        "asyncio.run(main())\n"
        "print('ray' in sys.modules, 'torch' in sys.modules)\n"
    )
    path = os.pathsep.join(
        [os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")]
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "False"]


def test_an_interrupt_is_never_an_answer():
    loop = asyncio.new_event_loop()
    server = EnvServer(env_name="probe_envs:InterruptedEnv", env_kwargs={}, num_envs=1)
    loop.run_until_complete(server.open())
    handling = loop.create_task(server.handle([Request(0, "reset", (7, {}))], print))
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(handling)
    with pytest.raises(KeyboardInterrupt):
        # and not a fault of the environment, for the loop that runs on to close it
        loop.run_until_complete(handling)
    loop.close()


def test_an_environment_that_awaits_delays_no_other_of_its_server(tmp_path):
    gate = tmp_path / "gate"
    pool = local_pool("probe_envs:GatedEnv", {"gate": str(gate)}, num_servers=1, envs_per_server=4)
    assert asyncio.run(answers_around_a_gate(pool, gate)) == [0.0, 1.0]


def test_a_changed_working_directory_is_undone_and_told_once(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    async def episode():
        pool = local_pool("probe_envs:WanderingEnv", num_servers=1)
        async with pool, pool.slot() as slot:
            await slot.reset(seed=1)
            for _ in range(3):
                await slot.step_chunk([np.zeros(1, np.float32)])
                assert os.getcwd() == str(tmp_path)

    asyncio.run(episode())
    assert [record.getMessage() for record in caplog.records] == [
        "Environment 'probe_envs:WanderingEnv' changed the working directory; it was "
        f"reset to {tmp_path}, because with cluster=local the run writes its files relative to it."
    ]
