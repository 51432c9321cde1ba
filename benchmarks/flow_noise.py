"""Measures which noise of Flow-Noise moves the arm: the first one, or that of a step.

    python -m benchmarks.flow_noise

A log-prob with `noise: learnt` has one term a step, each of the same weight. The gradient of an
action's advantage is carried by those steps whose noise moved the action, and the terms of the
others are noise. For observations of Meta-World's tasks, along episodes of the shipped weights, the
sampled actions are regressed on all their normal numbers; a source's share is its part of the
action's variance. What is missing to 1 is not linear. Takes half a minute.
"""

import asyncio
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measured_on import describe_machine
from envs.base import IMAGES, INSTRUCTION, PROPRIOCEPTION
from envs.registry import make_env
from siirl.algos.distributions import standard_normal
from siirl.models.flow_noise import LEARNT
from siirl.models.tiny_flow_vla import TinyFlowVLA, make_tiny_flow_vla

RESULTS = Path(__file__).parent / "results" / "flow_noise.json"
WEIGHTS = "assets/tiny_flow_vla"
CAMERA = {
    "image_size": 64,
    "camera": "table",
    "render_quality": "fast",
}  # configs/env/metaworld.yaml
STEPS = (1, 2, 4)
CHUNKS = 4  # observations of a task
SAMPLES = 2000
SEED = 500_000


def main() -> None:
    """Measure, write, print."""
    torch.set_num_threads(1)
    shares = asyncio.run(_measure())
    results = {"samples": SAMPLES, "steps": shares, "machine": describe_machine()}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(shares, indent=1))


async def _measure() -> dict[str, Any]:
    environment = make_env("metaworld", max_episode_steps=120, **CAMERA)
    policies = {
        steps: make_tiny_flow_vla(environment.spec, WEIGHTS, steps=steps, noise=LEARNT)
        for steps in STEPS
    }
    found: dict[int, list[list[float]]] = {steps: [] for steps in STEPS}
    for task in environment.spec.tasks:
        observation, _ = await environment.reset(seed=SEED, options={"task": task})
        for _ in range(CHUNKS):
            for steps, policy in policies.items():
                shares, chunk = _shares(policy, observation)
                found[steps].append(shares)
            for action in chunk:
                observation, *_ = await environment.step(action)
    await environment.close()
    return {
        str(steps): dict(
            zip(
                ["first noise", *[f"step {step + 1}" for step in range(steps)], "deviation"],
                [round(statistics.fmean(values), 3) for values in zip(*rows, strict=True)],
                strict=True,
            )
        )
        for steps, rows in found.items()
    }


@torch.no_grad()
def _shares(policy: TinyFlowVLA, observation: Any) -> tuple[list[float], np.ndarray]:
    """Shares of the sources and the deviation of an action; and a sampled chunk."""
    images, state = policy.prepare(
        images=observation[IMAGES], proprioception=observation[PROPRIOCEPTION]
    )
    words = policy.tokenize_instruction(observation[INSTRUCTION])
    distribution = policy(
        pixel_values=torch.as_tensor(images)[None],
        proprioception=torch.as_tensor(state)[None],
        instruction_ids=torch.as_tensor(words)[None],
    )
    distribution.context = distribution.context.expand(SAMPLES, -1)
    distribution.log_std = distribution.log_std.expand(SAMPLES, -1, -1)
    generator = torch.Generator().manual_seed(SEED)
    uniforms = torch.rand((SAMPLES, policy.uniforms_per_chunk), generator=generator)
    actions_ST = distribution.values(distribution.sample(uniforms))
    normal = standard_normal(uniforms)
    effect = torch.linalg.lstsq(normal - normal.mean(0), actions_ST - actions_ST.mean(0)).solution
    of_source = effect.unflatten(0, (-1, policy.tokens_per_chunk)).square().sum(1)
    shares = (of_source / actions_ST.var(0)).mean(1).tolist()
    deviation = float(actions_ST.std(0).mean())
    return [*shares, deviation], policy.action_tokenizer.decode(actions_ST[0].numpy())


if __name__ == "__main__":
    main()
