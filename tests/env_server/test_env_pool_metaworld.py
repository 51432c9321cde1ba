"""Meta-World through the pool: the same episodes, image for image, from any number of servers and
whatever ran in them before.
"""

import asyncio
import hashlib

import numpy as np
import pytest

from envs.base import FrameRequest
from siirl.env_server.pool import EnvPool

TASKS = ("drawer-open", "door-open", "button-press")


async def episode_digest(pool, seed):
    """Everything that an episode with random actions returned, in one hash; tasks take turns."""
    random, digest = np.random.default_rng(seed), hashlib.sha256()
    async with pool.slot() as slot:
        options = {"task": TASKS[seed % 3], "frames": {"encoder": FrameRequest(every=4, size=32)}}
        observation, info = await slot.reset(seed=seed, options=options)
        ended = False
        while not ended:
            actions = random.uniform(-1, 1, (8, 4)).astype(np.float32)
            observation, reward, terminated, truncated, info = await slot.step_chunk(actions)
            digest.update(
                observation["images"].tobytes()
                + observation["proprioception"].tobytes()
                + observation["instruction"].encode()
            )
            digest.update(
                repr((reward, terminated, truncated, info["executed"], info["success"])).encode()
            )
            ended = terminated or truncated
        frames = await slot.frames("encoder")
        digest.update(frames.images.tobytes() + repr(frames.steps).encode())
    return digest.hexdigest()


def digests(cluster, num_servers, envs_per_server):
    async def run():
        kwargs = {"tasks": TASKS, "image_size": 32, "max_episode_steps": 20}
        async with EnvPool(
            "metaworld", kwargs, num_servers, envs_per_server, cluster=cluster, deadline_s=120.0
        ) as pool:
            return await asyncio.gather(*(episode_digest(pool, seed) for seed in range(9)))

    return asyncio.run(run())


def test_reused_simulators_give_the_episodes_of_fresh_ones():
    from_one = digests("local", 1, 1)
    assert len(set(from_one)) == 9
    assert digests("local", 3, 1) == from_one


@pytest.mark.slow
@pytest.mark.usefixtures("ray_in_this_process")
def test_one_two_and_four_server_processes_give_the_same_episodes():
    wanted = digests("local", 1, 1)
    for num_servers in (1, 2, 4):
        assert digests("ray", num_servers, 2) == wanted
