"""The pool with environments in this process: the slot API, counting, refused calls."""

import asyncio
import os
import subprocess
import sys

import numpy as np
import pytest
from local_pools import WALK, local_pool, run_episode, run_episodes
from probe_envs import WalkEnv, answers_around_a_gate, numbers_of, random_steps
from virtual_time import run_in_virtual_time

from envs.base import FrameRequest
from siirl.env_server.server import EnvServer, Request
from siirl.errors import ConfigError
from siirl.occupation import OCCUPATION


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
