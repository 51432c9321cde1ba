"""A simulation that diverges behind the pool: counted as a failed simulation,
not as a failed policy; the server continues.
"""

import asyncio

import numpy as np
import pytest

from envs.libero.libero_env import LiberoEnv
from siirl.env_server.pool import EnvPool
from siirl.errors import SimulationFailed

BROKEN_SEED = 7
STILL = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)


class DivergingLiberoEnv(LiberoEnv):
    """The stand-in scene, with a state that is no number in the episodes of one seed."""

    async def reset(self, *, seed=None, options=None):
        observation, info = await super().reset(seed=seed, options=options)
        if seed == BROKEN_SEED:
            self.simulator.data.qvel[:] = np.nan
        return observation, info


@pytest.mark.filterwarnings("ignore::envs.libero.assets.StandInWarning")
def test_diverged_episode_fails_to_simulate_and_the_next_one_is_sound():
    reference = f"{__name__}:DivergingLiberoEnv"
    arguments = {"tasks": [4], "assets": "stand_in", "image_size": 8, "camera": "agentview"}

    async def episodes():
        async with (
            EnvPool(reference, arguments, num_servers=1, cluster="local", deadline_s=120.0) as pool,
            pool.slot() as slot,
        ):
            await slot.reset(seed=BROKEN_SEED)
            with pytest.raises(SimulationFailed, match="diverged"):
                await slot.step_chunk([STILL])
            failures = pool.stats()["env/failures"]
            await slot.reset(seed=BROKEN_SEED + 1)
            *_, info = await slot.step_chunk([STILL, STILL])
            return failures, info["executed"]

    assert asyncio.run(episodes()) == (1.0, 2)
