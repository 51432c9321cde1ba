"""Behaviour cloning of a VLA policy on demonstrations from scripted experts.

RL from a 0/1 reward needs a policy that sometimes succeeds. The demonstrations are few and noisy on
purpose: the shipped weights succeed in 20 to 50 % of held-out episodes, leaving room for RL.
"""

# N observation, B row of an update, K action of a chunk, A action dimension, T = K*A token

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from envs.base import IMAGES, INSTRUCTION, PROPRIOCEPTION, Environment, EpisodeFailed
from envs.mistakes import user_code
from siirl.algos.distributions import ActionDistribution
from siirl.errors import RunFailed
from siirl.imitation.scripted_experts import ScriptedExpert, half_range
from siirl.models.action_tokenizer import ActionTokenizer, ContinuousActions
from siirl.models.policy import Policy

# smallest deviation of a proprioceptive value, a millimetre or milliradian: noise of constant
# values is not amplified
LEAST_DEVIATION = 1e-3


@dataclass(frozen=True)
class Demonstration:
    """One successful expert episode, one row per environment step."""

    task: str
    seed: int
    pixel_values: NDArray[np.uint8]  # [steps, cameras, height, width, 3]
    proprioception: NDArray[np.float32]  # [steps, P]
    instructions: tuple[str, ...]  # one for each step
    # the expert's before noise: [steps, A]; of a discrete action space int64 [steps]
    actions: NDArray[Any]


def collect_demonstration(
    environment: Environment,
    expert: ScriptedExpert,
    *,
    task: str,
    seed: int,
    noise: float,
    generator: np.random.Generator,
) -> Demonstration | None:
    """Run one expert episode with Gaussian action noise, so that it shows recovery; None if it
    failed.
    """

    def fault(raised: str) -> RunFailed:
        return RunFailed(
            f"the environment raised in a demonstration of {task!r} with seed {seed}: {raised}."
        )

    async def episode() -> Demonstration | None:
        with user_code(fault, passed=EpisodeFailed):
            observation, info = await environment.reset(seed=seed, options={"task": task})
        images = []
        proprioception = []
        instructions = []
        actions = []
        terminated = truncated = False
        while not (terminated or truncated):
            wanted = expert.action(environment)
            images.append(observation[IMAGES])
            proprioception.append(observation[PROPRIOCEPTION])
            instructions.append(observation[INSTRUCTION])
            actions.append(wanted)
            disturbed = expert.disturbed(wanted, noise=noise, generator=generator)
            with user_code(fault, passed=EpisodeFailed):
                observation, _, terminated, truncated, info = await environment.step(disturbed)
        if not info.get("success", False):
            return None
        return Demonstration(
            task,
            seed,
            np.stack(images),
            np.stack(proprioception),
            tuple(instructions),
            np.stack(actions),
        )

    try:
        return asyncio.run(episode())
    except EpisodeFailed:
        return None


@dataclass(frozen=True)
class CloningData:
    """Training rows: an observation at any step and the next K expert actions."""

    pixel_values: torch.Tensor  # uint8 [N, cameras, height, width, 3]
    proprioception: torch.Tensor  # float32 [N, P]
    instruction_ids: torch.Tensor  # int64 [N, L]
    actions: torch.Tensor  # float32 [N, K, A]; of a discrete action space int64 [N, K]
    code: ActionTokenizer | ContinuousActions
    """The policy's action coding."""

    @classmethod
    def from_demonstrations(
        cls, demonstrations: list[Demonstration], policy: Policy
    ) -> "CloningData":
        """Cut demonstrations into rows; a chunk past the end repeats the last action."""
        chunks = []
        for demonstration in demonstrations:
            padded = np.concatenate(
                [
                    demonstration.actions,
                    np.repeat(demonstration.actions[-1:], policy.chunk_length - 1, axis=0),
                ]
            )
            chunks += [
                padded[step : step + policy.chunk_length]
                for step in range(len(demonstration.actions))
            ]
        seen = []
        for each in demonstrations:
            for images, state in zip(each.pixel_values, each.proprioception, strict=True):
                seen.append(policy.prepare(images=images, proprioception=state))
        pixel_values, proprioception = (np.stack(part) for part in zip(*seen, strict=True))
        texts = [text for demonstration in demonstrations for text in demonstration.instructions]
        ids = {text: policy.tokenize_instruction(text) for text in set(texts)}
        return cls(
            pixel_values=torch.from_numpy(pixel_values),
            proprioception=torch.from_numpy(proprioception),
            instruction_ids=torch.from_numpy(np.stack([ids[text] for text in texts])),
            actions=torch.from_numpy(np.stack(chunks)),
            code=policy.action_tokenizer,
        )

    def targets(
        self, rows: torch.Tensor, *, noise: float, generator: torch.Generator
    ) -> torch.Tensor:
        """Encoded actions [B, T] of rows, with Gaussian noise of deviation `noise`, in units of
        half the range.
        """
        actions = self.actions[rows]
        if noise > 0:
            half_range_A = half_range(np.asarray(self.code.low), np.asarray(self.code.high))
            actions = actions + noise * torch.from_numpy(half_range_A).float() * torch.randn(
                actions.shape, generator=generator
            )
        return torch.from_numpy(self.code.encode(actions.numpy())).view(len(rows), -1)


@torch.no_grad()
def fit_scale(layer: nn.Linear, values_NP: torch.Tensor) -> None:
    """Standardise the inputs `values_NP` of a new layer: W x + b becomes W (x - mean) / std + b.

    Fingers move by centimetres and arms by decimetres, so a fresh layer that reads metres is almost
    insensitive to them. The change is folded into the weights, so nothing else is computed or
    saved.
    """
    deviation_P = values_NP.std(0, correction=0).clamp(min=LEAST_DEVIATION)
    mean_P = values_NP.mean(0)
    layer.weight.div_(deviation_P)
    layer.bias.sub_(layer.weight @ mean_P)


def clone(
    policy: nn.Module,
    data: CloningData,
    *,
    steps: int,
    batch_rows: int,
    learning_rate: float,
    seed: int,
    target_noise: float = 0.0,
) -> Iterator[dict[str, Any]]:
    """Train `policy` in place by the imitation loss of its distribution; yield step, loss, fit.

    With `target_noise`, each update adds new Gaussian noise of this deviation (in units of half the
    range) to the demonstrated actions. The policy then learns to act around them instead of
    repeating them. Rollouts from one start state end differently, and RL learns from these
    differences.

    `token_accuracy` is the share of demonstrated tokens that are the greedy ones; for continuous
    actions `action_error` is the mean distance of the mode, in units of half the range.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=learning_rate, weight_decay=1e-4)
    rise = 0.1 if steps != 10 else 0.2  # the schedule divides by rise * steps - 1
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=learning_rate, total_steps=steps, pct_start=rise
    )
    for step in range(steps):
        rows = torch.randint(len(data.actions), (batch_rows,), generator=generator)
        distribution = policy(
            pixel_values=data.pixel_values[rows],
            proprioception=data.proprioception[rows],
            instruction_ids=data.instruction_ids[rows],
        )
        values = data.targets(rows, noise=target_noise, generator=generator)
        loss = distribution.imitation_loss(values, generator=generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        yield {"step": step + 1, "loss": loss.item(), **_fit(distribution, values)}


@torch.no_grad()
def _fit(distribution: ActionDistribution, values: torch.Tensor) -> dict[str, float]:
    acted = distribution.values(distribution.mode())
    if values.is_floating_point():
        return {"action_error": (acted - values).abs().mean().item()}
    return {"token_accuracy": (acted == values).float().mean().item()}
