"""The pool with real server processes: faults of processes, the same episodes from any number of
them, nothing left running.
"""

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from probe_envs import answers_around_a_gate, numbers_of, random_steps

from siirl.env_server.pool import EnvPool
from siirl.env_server.ray_transport import EnvServerActor, RayTransport, server_environment
from siirl.env_server.transports import TRANSPORTS
from siirl.errors import ConfigError, SimulationFailed

WALK, FAULTY = "probe_envs:WalkEnv", "probe_envs:FaultyEnv"
CAMERA = "probe_envs:CameraEnv"


pytestmark = pytest.mark.usefixtures("ray_in_this_process")
# A sound environment answers within milliseconds; a hang is waited for.
DEADLINE_S = dict.fromkeys(("hang", "stop"), 5.0)


def make_pool(name=WALK, kwargs=None, num_servers=2, envs_per_server=1, **changes):
    return EnvPool(
        name,
        kwargs or {},
        num_servers,
        envs_per_server,
        **{"cluster": "ray", "deadline_s": 600.0, **changes},
    )


async def run_episode(pool, seed, *, after_chunk=None):
    """One episode with actions drawn from its seed; the environment's answers, and the processes of
    the answers.
    """
    random, said, processes = np.random.default_rng(1000 + seed), [], []
    async with pool.slot() as slot:
        observation, _ = await slot.reset(seed=seed)
        said.append(observation["proprioception"].tolist())
        async for step in random_steps(slot, random):
            said.append(numbers_of(step))
            processes.append(step[-1]["pid"])
            if after_chunk is not None:
                after_chunk(len(processes), processes[-1])
    return said, processes


async def run_episodes(pool, seeds):
    return await asyncio.gather(
        *(run_episode(pool, seed) for seed in seeds), return_exceptions=True
    )


def said_locally(seeds):
    async def run():
        async with EnvPool(WALK, {}, 1, 1, cluster="local", deadline_s=600.0) as pool:
            return [said for said, _ in await run_episodes(pool, seeds)]

    return asyncio.run(run())


def is_running(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as status:
            return status.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter: it ended between open and read
        return False


def wait_until_gone(processes: set[int], *, within_s: float = 600.0) -> None:
    waited_until = time.monotonic() + within_s
    while any(map(is_running, processes)):
        assert time.monotonic() < waited_until, "a server is still running"
        time.sleep(0.05)


def test_episodes_from_processes_are_those_from_this_process_and_close_ends_all():
    async def episodes():
        async with make_pool(num_servers=2, envs_per_server=4) as pool:
            return await run_episodes(pool, range(12))

    said, processes = zip(*asyncio.run(episodes()), strict=True)
    assert list(said) == said_locally(range(12))
    servers = {process for each in processes for process in each}
    assert len(servers) == 2 and os.getpid() not in servers
    wait_until_gone(servers)


@pytest.mark.slow
@pytest.mark.parametrize("num_servers", [1, 4])
def test_episodes_are_the_same_from_one_and_from_four_servers(num_servers):
    async def episodes():
        async with make_pool(num_servers=num_servers, envs_per_server=2) as pool:
            return [said for said, _ in await run_episodes(pool, range(12))]

    assert asyncio.run(episodes()) == said_locally(range(12))


def test_a_server_that_is_killed_is_replaced_and_its_episodes_replayed(caplog):
    def kill_server(num_chunks, process):
        if num_chunks == 3:
            os.kill(process, signal.SIGKILL)

    async def episodes():
        async with make_pool(num_servers=1, envs_per_server=3) as pool:
            runs = [
                run_episode(pool, 0, after_chunk=kill_server),
                *(run_episode(pool, seed) for seed in range(1, 6)),
            ]
            return await asyncio.gather(*runs), pool.stats()

    results, stats = asyncio.run(episodes())
    assert [said for said, _ in results] == said_locally(range(6))
    processes = results[0][1]
    assert len(set(processes[:3])) == len(set(processes[3:])) == 1 and processes[0] != processes[-1]
    assert 1 <= stats["env/replays"] <= 3
    assert stats["env/failures"] == 0
    wait_until_gone(set(processes))
    # Ray confirms it
    assert any("is replaced: died (The actor died" in record.message for record in caplog.records)


def test_a_warning_of_a_server_process_begins_like_those_of_the_command(monkeypatch, capsys):
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    draws_on = {"number": 0, "gpus": (), "machine": os.uname().nodename}
    EnvServerActor(env_name=WALK, env_kwargs={}, num_envs=1, secret=b"", draws_on=draws_on)
    record = logging.makeLogRecord({"msg": "no light", "levelno": 30, "levelname": "WARNING"})
    logging.lastResort.handle(record)
    assert capsys.readouterr().err == "Warning: no light\n"


@pytest.mark.parametrize("waits_s", [0.0, 0.3], ids=["at once", "while the next request is read"])
def test_an_interrupt_within_a_process_is_named(waits_s):
    async def episode():
        kwargs = {"waits_s": waits_s}
        async with make_pool(
            "probe_envs:RaisesInterruptEnv", kwargs, num_servers=1, max_replays=0, deadline_s=60.0
        ) as pool:
            return (await run_episodes(pool, [0]))[0]

    failed = asyncio.run(episode())
    assert isinstance(failed, SimulationFailed)
    assert "its process raised KeyboardInterrupt." in str(failed)


SLOW_FAULTS = ("die", "leave", "stop", "unpicklable", "unreadable")


@pytest.mark.parametrize(
    "fault",
    ["hang", "raise", *(pytest.param(fault, marks=pytest.mark.slow) for fault in SLOW_FAULTS)],
)
def test_after_a_fault_in_a_process_the_episodes_end_as_without_it(fault, tmp_path):
    async def episodes():
        kwargs = {"fault": fault, "ledger": str(tmp_path), "times": 1}
        async with make_pool(
            FAULTY,
            kwargs,
            num_servers=1,
            envs_per_server=4,
            deadline_s=DEADLINE_S.get(fault, 600.0),
        ) as pool:
            return await run_episodes(pool, range(5)), pool.stats()

    results, stats = asyncio.run(episodes())
    assert [said for said, _ in results] == said_locally(range(5))
    assert len(list(tmp_path.iterdir())) == 1
    assert stats["env/replays"] >= 1 and stats["env/failures"] == 0
    wait_until_gone({process for _, processes in results for process in processes})


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hang", "die"])
def test_an_episode_that_always_fails_takes_no_other_with_it(fault, tmp_path):
    """All four environments share the server that it kills; from the second time on the pool knows
    which one it is.
    """

    async def episodes():
        kwargs = {"fault": fault, "ledger": str(tmp_path), "times": 99}
        async with make_pool(
            FAULTY,
            kwargs,
            num_servers=1,
            envs_per_server=4,
            deadline_s=DEADLINE_S.get(fault, 600.0),
        ) as pool:
            return await run_episodes(pool, range(8)), pool.stats()

    results, stats = asyncio.run(episodes())
    assert isinstance(results[1], SimulationFailed)
    others = [seed for seed in range(8) if seed != 1]
    assert [results[seed][0] for seed in others] == said_locally(others)
    assert len(list(tmp_path.iterdir())) == 3
    assert stats["env/failures"] == 1


class FarTransport(RayTransport):
    """Treats every server as one on another machine."""

    def _open_area(self, opened):
        return None


def mapped_areas() -> int:
    with open("/proc/self/maps") as maps:
        return maps.read().count("siirl-answers")


async def seen(pool, seed, *, killed_at=None):
    """The images of an episode, all kept until its end."""
    images = []
    async with pool.slot() as slot:
        observation, _ = await slot.reset(seed=seed)
        images.append(observation["images"])
        for number in range(9):
            observation, *_, info = await slot.step_chunk(-np.ones((4, 1), np.float32))
            images.append(observation["images"])
            if (seed, number) == killed_at:
                os.kill(info["pid"], signal.SIGKILL)
    return np.stack(images)


async def seen_by(pool, seeds, **options):
    async with pool:
        both = await asyncio.gather(*(seen(pool, seed, **options) for seed in seeds))
        return both, mapped_areas()


@pytest.mark.parametrize("cluster", ["ray", "far"])
def test_images_come_as_they_were_from_shared_memory_and_from_another_machine(cluster, monkeypatch):
    monkeypatch.setitem(TRANSPORTS, "far", f"{__name__}:FarTransport")
    pool = make_pool(CAMERA, num_servers=2, envs_per_server=3, cluster=cluster)
    images, areas = asyncio.run(seen_by(pool, range(6)))
    expected, _ = asyncio.run(
        seen_by(make_pool(CAMERA, envs_per_server=3, cluster="local"), range(6))
    )
    assert np.array_equal(images, expected)
    assert areas == {"ray": 2, "far": 0}[cluster]
    assert mapped_areas() == 0


def test_two_pools_of_a_process_share_no_memory_with_each_other():
    def of_its_own(seeds):
        return seen_by(make_pool(CAMERA, num_servers=1, envs_per_server=2), seeds)

    async def both():
        return await asyncio.gather(of_its_own((1, 2)), of_its_own((3, 4)))

    local = make_pool(CAMERA, envs_per_server=2, cluster="local")
    expected = asyncio.run(seen_by(local, (1, 2, 3, 4)))
    (first, _), (second, _) = asyncio.run(both())
    assert np.array_equal([*first, *second], expected[0])


def test_a_killed_servers_memory_is_unmapped_and_its_images_come_from_the_next():
    pool = make_pool(CAMERA, num_servers=1, envs_per_server=2)
    images, areas = asyncio.run(seen_by(pool, (1, 2), killed_at=(1, 4)))
    expected, _ = asyncio.run(seen_by(make_pool(CAMERA, cluster="local"), (1, 2)))
    assert np.array_equal(images, expected)
    assert areas == 1 and mapped_areas() == 0


def test_an_abandoned_step_does_not_spoil_the_next_episodes_images():
    async def episodes():
        async with make_pool(CAMERA, {"step_s": 0.05}, num_servers=1) as pool:
            async with pool.slot() as slot:
                await slot.reset(seed=7)
                step = asyncio.create_task(slot.step_chunk(np.ones((4, 1), np.float32)))
                await asyncio.sleep(0.05)
                step.cancel()
            async with pool.slot() as slot:
                observation, _ = await slot.reset(seed=1)
                await asyncio.sleep(0.3)
                return observation["images"]

    images = asyncio.run(episodes())
    assert set(images[0].flat) == {1}


def test_a_server_whose_environment_cannot_be_made_is_an_error_at_start():
    with pytest.raises(SimulationFailed, match=r"could not be made: ImportError: libsimulator\.so"):
        asyncio.run(make_pool("probe_envs:UnbuildableEnv", {"home": os.getpid()}).start())


def test_a_start_that_takes_too_long_is_an_error():
    with pytest.raises(SimulationFailed, match=r"not ready after 0\.01 s"):
        asyncio.run(make_pool(start_deadline_s=0.01).start())


def test_a_pool_can_be_closed_while_an_episode_runs():
    async def closed():
        pool = make_pool(kwargs={"step_s": 0.5}, num_servers=1)
        await pool.start()
        running = asyncio.create_task(run_episode(pool, 0))
        await asyncio.sleep(0.5)
        await pool.close()
        (error,) = await asyncio.gather(running, return_exceptions=True)
        return error

    error = asyncio.run(closed())
    assert isinstance(error, RuntimeError) and "closed" in str(error)


@pytest.mark.parametrize("killed", [False, True])
def test_a_pool_that_is_closed_leaves_no_task_and_no_connection(killed, caplog):
    """The event loop stops for good as soon as the pool is closed, as a caller's may."""

    async def episode():
        pool = make_pool(num_servers=1)
        async with pool, pool.slot() as slot:
            await slot.reset(seed=0)
            *_, info = await slot.step_chunk(np.zeros((1, 1), np.float32))
            if killed:
                os.kill(info["pid"], signal.SIGKILL)
        await pool.close()

    loop = asyncio.new_event_loop()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        loop.run_until_complete(episode())
        assert asyncio.all_tasks(loop) == set()
        loop.close()
        gc.collect()
    assert [str(warning.message) for warning in warned if "transport" in str(warning.message)] == []
    assert caplog.records == []


@pytest.mark.slow  # a separate Ray session
def test_when_ray_is_shut_down_an_episode_ends_with_an_error_and_no_other_ray_starts():
    program = (
        "import asyncio, logging, ray\n"
        "import numpy as np\n"
        "from siirl.env_server.pool import EnvPool\n"
        "logging.disable()\n"
        "class Task(str):\n"  # a class that only this script has
        "    pass\n"
        "ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)\n"
        "async def main():\n"
        f"    pool = EnvPool({WALK!r}, {{'step_s': 5.0}}, 1, cluster='ray', deadline_s=120.0)\n"
        "    async with pool, pool.slot() as slot:\n"
        "        await slot.reset(seed=0, options={'task': Task('left')})\n"
        "        step = asyncio.create_task(slot.step_chunk(np.zeros((8, 1), np.float32)))\n"
        "        await asyncio.sleep(0.5)\n"
        "        ray.shutdown()\n"
        "        error, = await asyncio.gather(step, return_exceptions=True)\n"
        "        print(type(error).__name__, error)\n"
        "    await pool.close()\n"
        "asyncio.run(main())\n"
        "print(ray.is_initialized())\n"
    )
    path = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), os.environ["PYTHONPATH"]])
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[-3].startswith(
        "ConfigError cluster='ray' needs a Ray connection"
    )
    assert done.stdout.split("\n")[-2] == "False"


@pytest.fixture(scope="module")
def in_a_slot():
    """Runs a coroutine function with a slot of one pool, whose server the tests share."""
    with asyncio.Runner() as runner:
        pool = make_pool(num_servers=1)
        runner.run(pool.start())

        def run(episode):
            async def with_slot():
                async with pool.slot() as slot:
                    return await episode(slot)

            return runner.run(with_slot())

        yield run
        runner.run(pool.close())


def test_a_value_that_cannot_be_sent_is_an_error_at_once(in_a_slot):
    async def episode(slot):
        with pytest.raises(TypeError, match="lock"):
            await slot.reset(seed=0, options={"lock": threading.Lock()})
        observation, _ = await slot.reset(seed=3)
        return observation["proprioception"].tolist()

    assert in_a_slot(episode) == said_locally([3])[0][0]


@pytest.mark.slow  # waits for Ray's report that the server is alive
def test_a_server_that_cannot_be_reached_is_reported_with_its_address():
    async def opened():
        transport = RayTransport(env_name=WALK, env_kwargs={}, num_envs=1)
        transport._secret = bytes(32)
        try:
            await transport.open()
        finally:
            transport.kill()

    with pytest.raises(
        ConnectionError,
        match=r"waits at [\d.]+, port \d+, and cannot be reached there \(.*secret\): is that port open",
    ):
        asyncio.run(opened())


def test_objects_of_a_class_that_a_function_defines_are_sent_there_and_back(in_a_slot):
    class Task(str):
        colour = "red"

    async def task(slot):
        _, info = await slot.reset(seed=0, options={"task": Task("right")})
        return info["task"]

    answer = in_a_slot(task)
    assert (answer, answer.colour) == ("right", "red")


@pytest.mark.slow
def test_a_pool_works_inside_of_an_actor():
    import ray

    @ray.remote(
        num_cpus=1, runtime_env={"env_vars": {"PYTHONPATH": server_environment()["PYTHONPATH"]}}
    )
    def worker():
        async def episode():
            async with make_pool(num_servers=2) as pool:
                return await run_episode(pool, 3)

        return asyncio.run(episode())

    said, processes = ray.get(worker.remote())
    assert [said] == said_locally([3])
    wait_until_gone(set(processes))


def test_servers_get_one_thread_and_this_process_view(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    environment = server_environment()
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["MUJOCO_GL"] == "osmesa"
    assert os.path.dirname(os.path.abspath(__file__)) in environment["PYTHONPATH"].split(os.pathsep)


def test_a_lost_connection_is_an_error_at_once(in_a_slot, monkeypatch):
    import ray

    async def episode(slot):
        with monkeypatch.context() as patch:
            patch.setattr(ray, "is_initialized", lambda: False)
            with pytest.raises(RuntimeError, match="close the EnvPool first"):
                await slot.reset(seed=0)

    in_a_slot(episode)


def test_without_a_ray_connection_the_remedy_is_named(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ConfigError, match=r"call ray\.init\(\)"):
        asyncio.run(make_pool().start())


def test_an_environment_that_awaits_delays_no_other_of_its_server(tmp_path):
    gate = tmp_path / "gate"
    pool = make_pool("probe_envs:GatedEnv", {"gate": str(gate)}, num_servers=1, envs_per_server=4)
    assert asyncio.run(answers_around_a_gate(pool, gate)) == [0.0, 1.0]
