"""Tools that answer after a random time: `env=tools` with a service behind the calculator.

A call's answer takes a lognormal time with median 0.5 s and 99th percentile 10 s, spent asleep, so
that many calls wait at once on few cores. Each environment of a server has its
own generator, seeded with its number. Left out: latency that depends on load.
"""

import asyncio
import itertools
import math
import random
import statistics
from typing import Any

from envs.base import StepResult
from envs.text import VERDICT
from envs.tools.tool_env import TOOL_CALL, ToolEnv

MEDIAN_S, PERCENTILE_99_S = 0.5, 10.0
NUMBERS = itertools.count()  # of the environments of a process


class SlowToolEnv(ToolEnv):
    """`ToolEnv` whose tools answer late.

    Args:
        median_s: Median time of an answer.
        percentile_99_s: 99th percentile.
        **arguments: Of ToolEnv.
    """

    def __init__(
        self,
        *,
        median_s: float = MEDIAN_S,
        percentile_99_s: float = PERCENTILE_99_S,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        # ln T is normal: its quantile at 0.99 is ln median + 2.33 deviations
        self._mean = math.log(median_s)
        self._deviation = (math.log(percentile_99_s) - self._mean) / (
            statistics.NormalDist().inv_cdf(0.99)
        )
        self._times = random.Random(next(NUMBERS))

    async def step(self, action: Any) -> StepResult:
        """See `ToolEnv.step`; the answer of a turn with calls comes late."""
        result = await super().step(action)
        if result[4][VERDICT] == TOOL_CALL:
            await asyncio.sleep(self._times.lognormvariate(self._mean, self._deviation))
        return result
