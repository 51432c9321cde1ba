"""A vanished `siirl serve`: its clients' environment servers wait for its return, and their episodes
fail with one sentence if it stays away.
"""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from probe_envs import WalkEnv

from envs.base import ServerAway, StepResult
from envs.openenv.description import describe
from siirl.env_server.pool import EnvPool
from siirl.env_server.server import AGAIN_AFTER_S
from siirl.env_server.slot import Slot
from siirl.errors import SimulationFailed
from tests.env_server.openenv_thread import TOKEN, ServerThread

CART_POLE = {"id": "CartPole-v1"}
AWAY_S = 3.0
PATIENCE_S = 1.0


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    (tmp_path / "token").write_text(TOKEN)
    return str(tmp_path / "token")


def client_pool(
    server: ServerThread, *, cluster: str = "local", envs: int = 1, **arguments: Any
) -> EnvPool:
    return EnvPool("openenv", {"url": server.url, **arguments}, 1, envs, cluster=cluster)


def stop(server: ServerThread) -> None:
    """And forget its description, which the next server of a cluster does not have either."""
    server.stop()
    describe.cache_clear()


async def numbers(slot: Slot, *, seed: int, leave: Any = None) -> list[Any]:
    """An episode of six steps; `leave` is called after the third."""
    observation, _ = await slot.reset(seed=seed, options={})
    said = [observation["proprioception"].tolist()]
    for step in range(6):
        if step == 3 and leave is not None:
            await leave()
        observation, reward, *_ = await slot.step_chunk([step % 2])
        said.append([observation["proprioception"].tolist(), reward])
    return said


@pytest.mark.usefixtures("ray_in_this_process")
def test_an_episode_continues_after_the_restart_of_its_server(token_file: str) -> None:
    restarted: list[ServerThread] = []

    async def come_back(server: ServerThread) -> None:
        await asyncio.sleep(AWAY_S)
        restarted.append(ServerThread("gymnasium", at_port=server.port, **CART_POLE))
        await asyncio.to_thread(restarted[0].__enter__)

    async def play(server: ServerThread, *, cluster: str, leaves: bool) -> list[Any]:
        async def leave() -> None:
            await asyncio.to_thread(server.stop)
            returns.append(asyncio.ensure_future(come_back(server)))

        returns: list[Any] = []
        pool = client_pool(server, cluster=cluster, token_file=token_file)
        async with pool, pool.slot() as slot:
            return await numbers(slot, seed=7, leave=leave if leaves else None)

    with ServerThread("gymnasium", **CART_POLE) as server:
        calm = asyncio.run(play(server, cluster="local", leaves=False))
        disturbed = asyncio.run(play(server, cluster="ray", leaves=True))
    restarted[0].stop()
    assert disturbed == calm


def test_episodes_of_a_server_that_stays_away_fail_with_one_sentence(token_file: str) -> None:
    async def play(server: ServerThread) -> list[Any]:
        pool = client_pool(server, envs=2, token_file=token_file, connect_deadline_s=PATIENCE_S)

        async def episode() -> None:
            async with pool.slot() as slot:
                await slot.reset(seed=1, options={})
                await asyncio.to_thread(stop, server)
                while True:
                    await slot.step_chunk([0])

        async with pool:
            return await asyncio.gather(*[episode() for _ in range(3)], return_exceptions=True)

    with ServerThread("gymnasium", **CART_POLE) as server:
        failures = asyncio.run(play(server))
    for failure in failures:
        assert isinstance(failure, SimulationFailed)
        assert "No OpenEnv server can be reached" in str(failure) and "\n" not in str(failure)


def test_a_pool_whose_server_left_after_the_plan_does_not_start(token_file: str) -> None:
    with ServerThread("gymnasium", **CART_POLE) as server:
        pool = client_pool(server, token_file=token_file, connect_deadline_s=PATIENCE_S)
        stop(server)
    begin = time.monotonic()
    with pytest.raises(SimulationFailed, match="No OpenEnv server can be reached") as failed:
        asyncio.run(pool.start())
    assert "\n" not in str(failed.value)
    assert time.monotonic() - begin > PATIENCE_S / 2  # it might have come back


def test_a_server_that_left_before_the_pool_was_made_is_one_sentence(token_file: str) -> None:
    with ServerThread("gymnasium", **CART_POLE) as server:
        url = server.url
    kwargs = {"url": url, "token_file": token_file, "connect_deadline_s": PATIENCE_S}
    with pytest.raises(SimulationFailed, match="No OpenEnv server can be reached") as failed:
        EnvPool("openenv", kwargs)
    assert "\n" not in str(failed.value)


def test_a_pool_waits_for_a_server_that_is_restarted(token_file: str) -> None:
    with ServerThread("gymnasium", **CART_POLE) as server:
        url, port = server.url, server.port
    returned: list[ServerThread] = []

    def come_back() -> None:
        returned.append(ServerThread("gymnasium", at_port=port, **CART_POLE).__enter__())

    timer = threading.Timer(2 * AGAIN_AFTER_S, come_back)
    timer.start()
    try:
        assert EnvPool("openenv", {"url": url, "token_file": token_file}).spec.name
    finally:
        timer.join()
        returned[0].stop()


class LeavingEnv(WalkEnv):
    """Its server leaves at the first step and stays away; `ledger` counts what was made."""

    def __init__(self, ledger: str) -> None:
        super().__init__()
        self._made = Path(ledger)
        self._left = self._made / "left"
        (self._made / f"{time.time_ns()}").touch()
        if self._left.exists():
            raise ServerAway("the server is away")

    async def step(self, action: Any) -> StepResult:
        self._left.touch()
        raise RuntimeError("the server left")


def test_episodes_that_wait_for_the_same_server_wait_once(tmp_path: Path) -> None:
    async def play() -> list[Any]:
        pool = EnvPool(f"{__name__}:LeavingEnv", {"ledger": str(tmp_path)}, 1, 4)

        async def episode(seed: int) -> None:
            async with pool.slot() as slot:
                await slot.reset(seed=seed)
                await slot.step_chunk([gymnasium.spaces.Box(-1.0, 1.0, (1,)).sample()])

        async with pool:
            made.append(len(list(tmp_path.iterdir())))
            return await asyncio.gather(*map(episode, range(4)), return_exceptions=True)

    made: list[int] = []
    failures = asyncio.run(play())
    assert ["the server is away" in str(failure) for failure in failures] == [True] * 4
    assert len(list(tmp_path.iterdir())) == made[0] + 2  # `left`, and one attempt
