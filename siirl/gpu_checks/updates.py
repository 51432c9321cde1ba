"""Updates of the shipped models: equal to the CPU's, and repeatable."""

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import nn

from siirl.algos.sampling import Sampling, draw
from siirl.engine.actor.actor import Actor
from siirl.engine.actor.embodied_scorer import embodied_scorer
from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.training.batch_loss import BatchLoss, TrainStep
from siirl.engine.training.optimizer import trained_parameters
from siirl.engine.training.rank_device import set_deterministic
from siirl.engine.training.train_engine import TrainEngine
from siirl.files.paths import find
from siirl.gpu_checks.check import CheckFailed, Trial
from siirl.gpu_checks.shapes import texts, trajectories
from siirl.models.checksum import checksum
from siirl.models.language_model import load_language_model
from siirl.models.stored_tensors import local_part
from siirl.models.tiny_vla import load_policy
from siirl.models.weight_rows import full_tensor
from siirl.params import ActorArguments, OptimizerArguments

TINY_LM, TINY_VLA = "assets/tiny_lm", "assets/tiny_vla"
FLOAT32_BOUND = 1e-3  # of a gradient's norm: allows for another order of sums
LEARNING_RATE = 1e-4


class GradientEngine(TrainEngine[Any]):
    """Keeps the whole gradient of its last step."""

    gradient: dict[str, torch.Tensor]

    def apply_gradient(self, batch_loss: BatchLoss) -> TrainStep:
        """See TrainEngine."""
        self.gradient = {
            name: full_tensor(weight.grad).detach().cpu().float()
            for name, weight in self.module.named_parameters()
            if weight.grad is not None
        }
        return super().apply_gradient(batch_loss)


def engine_of(module: nn.Module, scorer: Any, **options: Any) -> TrainEngine[Any]:
    """An initialised engine; options are those of `_settings`."""
    return TrainEngine(module=module, scorer=scorer, **_settings(**options)).initialize()


def gradient_engine_of(module: nn.Module, scorer: Any, **options: Any) -> GradientEngine:
    """The same, but keeps its gradients. Only for comparisons, because copies to the host are
    slow.
    """
    return GradientEngine(module=module, scorer=scorer, **_settings(**options)).initialize()


def _settings(*, device: torch.device, dtype: torch.dtype | None, **options: Any) -> dict[str, Any]:
    """Settings of an engine with a constant learning rate."""
    optim = OptimizerArguments(lr=LEARNING_RATE, scheduler="constant")
    compute_dtype = None if dtype == torch.float32 else dtype
    return {"optim": optim, "device": device, "compute_dtype": compute_dtype, **options}


def update(engine: TrainEngine[Any], batch: TensorDict) -> dict[str, float]:
    """One optimiser step on all rows, on the policy's own samples.

    Raises:
        CheckFailed: The step was skipped, or it changed no weight.
    """
    before = _trained_checksums(engine)
    actor = _actor(engine)
    metrics = actor.update(_own_samples(actor, batch))
    _require_change(engine, before, metrics)
    return metrics


def _trained_checksums(engine: TrainEngine[Any]) -> list[int]:
    """Checksum of the trained weights of each rank, in their own type (float32)."""
    weights = {name: local_part(weight) for name, weight in trained_parameters(engine.module)}
    return engine.ranks.gather_objects(checksum(weights))


def _require_change(engine: TrainEngine[Any], before: list[int], metrics: dict[str, float]) -> None:
    """Fail unless the weights differ from those with the checksums `before`."""
    if metrics["actor/updates"] != 1:
        raise CheckFailed(f"the update was skipped: {metrics}")
    if _trained_checksums(engine) == before:
        raise CheckFailed(
            f"the optimiser stepped with the gradient norm {metrics['actor/grad_norm']:g}, but no "
            "trained weight changed: their checksum is that of before the step"
        )


def _actor(engine: TrainEngine[Any]) -> Actor:
    """Takes one optimiser step per update."""
    config = ActorArguments(ppo_mini_batch_size=10_000)
    return Actor(engine=engine, config=config, rollouts_per_prompt=1)


def _own_samples(actor: Actor, batch: TensorDict) -> TensorDict:
    """`batch` as if the current weights had generated it."""
    rows = batch.clone(recurse=False)
    rows["old_log_probs"] = actor.compute_log_prob(batch).log_probs_BT
    return rows


def timed_update(trial: Trial, engine: TrainEngine[Any], batch: TensorDict) -> float:
    """Seconds of the second of two updates; the peak memory is that update's.

    Raises:
        CheckFailed: See `update`.
    """
    update(engine, batch)
    before = _trained_checksums(engine)
    actor = _actor(engine)
    rows = _own_samples(actor, batch)
    trial.wait_for_device()
    trial.forget_peak()
    begin = time.perf_counter()
    metrics = actor.update(rows)
    trial.wait_for_device()
    seconds = time.perf_counter() - begin
    _require_change(engine, before, metrics)
    return seconds


def text_batch() -> TensorDict:
    """Answers to sums, as in the shipped model's GRPO job."""
    numbers = np.random.default_rng(0).integers(10, 100, (16, 2))
    prompts = [list(f"{a}+{b}=".encode()) for a, b in numbers]
    return texts(prompts, [list(str(a + b).encode()) for a, b in numbers], pad=256)


def policy_batch() -> TensorDict:
    """Episodes of the shipped policy's size, as in its SRPO job."""
    policy = load_policy(find(TINY_VLA))
    cameras, height, width = policy.config.image_shape or (1, 64, 64)
    return trajectories(
        policy,
        rows=6,
        chunks=4,
        shape=(cameras, height, width, 3),
        numbers=policy.config.proprioception_size,
    )


JOBS: dict[str, tuple[Callable[[], Any], Any, Callable[[], TensorDict]]] = {
    "grpo": (functools.partial(load_language_model, TINY_LM), text_scorer, text_batch),
    "srpo": (lambda: load_policy(find(TINY_VLA)), embodied_scorer, policy_batch),
}
"""Model, scorer and batch of each job."""


def as_on_cpu(trial: Trial) -> None:
    """Gradients on the device equal the CPU's: in float32, and in bfloat16 as closely as the CPU's
    own bfloat16.
    """
    for name, (load, scorer, make_batch) in JOBS.items():
        torch.manual_seed(0)
        batch = make_batch()
        found = {}
        cpu = torch.device("cpu")
        for device, dtype in (
            (cpu, torch.float32),
            (cpu, torch.bfloat16),
            (trial.device, torch.float32),
            (trial.device, torch.bfloat16),
        ):
            engine = gradient_engine_of(load(), scorer, device=device, dtype=dtype)
            update(engine, batch)
            found[device.type, dtype] = engine.gradient
        exact = found["cpu", torch.float32]
        rounding = distance(found["cpu", torch.bfloat16], exact)
        apart = distance(found[trial.device.type, torch.float32], exact)
        rounded = distance(found[trial.device.type, torch.bfloat16], exact)
        trial.note(**{f"{name}_float32": apart, f"{name}_bfloat16": rounded})
        trial.note(**{f"{name}_cpu_bfloat16": rounding})
        trial.require(
            apart < FLOAT32_BOUND,
            f"the {name} gradient in float32 differs from the CPU's by {apart:.2g} of its norm",
        )
        trial.require(
            rounded < 2 * rounding + FLOAT32_BOUND,
            f"the {name} gradient in bfloat16 differs from the CPU's in float32 by {rounded:.2g} "
            f"of its norm; the CPU's own in bfloat16 by {rounding:.2g}",
        )


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Norm of the difference of two gradients over the norm of `other`."""
    difference = sum(float((one[name] - other[name]).square().sum()) for name in other)
    return float(difference / sum(float(each.square().sum()) for each in other.values())) ** 0.5


def twice(trial: Trial) -> None:
    """The same update from the same weights gives the same bits, and equal random numbers draw
    equal tokens.
    """
    set_deterministic(True)
    for name, (load, scorer, make_batch) in JOBS.items():
        sums = []
        for _ in range(2):
            torch.manual_seed(0)
            engine = engine_of(load(), scorer, device=trial.device, dtype=trial.dtype)
            update(engine, make_batch())
            sums.append(checksum(dict(engine.module.state_dict())))
        trial.note(**{name: sums[0]})
        trial.require(
            sums[0] == sums[1], f"{name}: checksums {sums[0]} and {sums[1]} after one update"
        )
    probabilities_NV = torch.rand(8, 1000, device=trial.device).softmax(-1)
    uniforms_N = torch.rand(8, device=trial.device)
    tokens = [draw(probabilities_NV, uniforms_N, sampling=Sampling(top_p=0.9)) for _ in range(2)]
    trial.require(torch.equal(*tokens), f"the same numbers drew {tokens[0]} and {tokens[1]}")
