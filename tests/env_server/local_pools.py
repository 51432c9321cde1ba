"""Pools with environments in this process, and episodes with random actions."""

import asyncio

import numpy as np
from probe_envs import numbers_of, random_steps

from siirl.env_server.pool import EnvPool

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
