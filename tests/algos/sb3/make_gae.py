"""Makes gae.json beside this file, with the rollout buffer of Stable-Baselines3 itself.

    .venv/bin/python tests/algos/sb3/make_gae.py        # stable-baselines3 2.9.2

Three environments take twelve steps. Episodes terminate, are truncated, and are cut by the end of
the rollout. As `OnPolicyAlgorithm.collect_rollouts` does, `gamma * V` of the last observation is
added to the reward of a truncated step, and the buffer gets V of the state behind the rollout.
"""

import json
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer

STEPS, ENVIRONMENTS = 12, 3
GAMMA, LAM = 0.9, 0.8
TERMINATED = ((4, 0), (9, 0), (2, 2))  # step, environment
TRUNCATED = ((6, 1), (7, 2), (11, 2))


def main() -> None:
    """Write the buffer's inputs and its results."""
    draw = np.random.default_rng(0)
    rewards, values, behind = (draw.normal(size=(STEPS, ENVIRONMENTS)).round(3) for _ in range(3))
    terminated, truncated = (np.zeros((STEPS, ENVIRONMENTS), bool) for _ in range(2))
    for ends, places in ((terminated, TERMINATED), (truncated, TRUNCATED)):
        for place in places:
            ends[place] = True
    done = terminated | truncated
    buffer = RolloutBuffer(
        STEPS,
        spaces.Box(-1, 1, (1,)),
        spaces.Discrete(2),
        gae_lambda=LAM,
        gamma=GAMMA,
        n_envs=ENVIRONMENTS,
    )
    begins = np.ones(ENVIRONMENTS, bool)
    zeros = np.zeros((ENVIRONMENTS, 1))
    for step in range(STEPS):
        buffer.add(
            zeros,
            zeros,
            rewards[step] + GAMMA * truncated[step] * behind[step],
            begins,
            torch.tensor(values[step]),
            torch.zeros(ENVIRONMENTS),
        )
        begins = done[step]
    buffer.compute_returns_and_advantage(torch.tensor(behind[-1]), done[-1])
    content = {
        "gamma": GAMMA,
        "lam": LAM,
        "rewards": rewards.tolist(),
        "values": values.tolist(),
        "values_behind": behind.tolist(),
        "terminated": terminated.tolist(),
        "truncated": truncated.tolist(),
        "advantages": buffer.advantages.tolist(),
        "returns": buffer.returns.tolist(),
    }
    (Path(__file__).parent / "gae.json").write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
