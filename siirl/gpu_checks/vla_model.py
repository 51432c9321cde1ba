"""OpenVLA-OFT at its published size: acting, and updates by adapters and of all weights."""

import torch

from siirl.engine.actor.embodied_scorer import embodied_scorer
from siirl.engine.rollout.vla.embodied_engine import EmbodiedEngine
from siirl.engine.training.device_peaks import peak_of
from siirl.gpu_checks.check import CheckSkipped, Trial
from siirl.gpu_checks.shapes import (
    QUESTION,
    observations,
    openvla,
    trajectories,
)
from siirl.gpu_checks.updates import act_all, engine_of, requests_of, timed_update
from siirl.models.flops import ADAPTERS, TRAINED_WEIGHTS
from siirl.models.openvla_oft import OpenVLAOFT
from siirl.models.openvla_policy import openvla_flops
from siirl.params.model_args import LoraArguments

PICTURE = (1, 224, 224, 3)
BATCHES = (1, 4, 16, 64)
RANK = 32  # of OpenVLA-OFT's own fine-tuning (arXiv 2502.19645, appendix)
# float32 weight, gradient and two moments; a frozen weight only itself
TRAINED_BYTES, FROZEN_BYTES = 16, 4


def acting(trial: Trial) -> None:
    """Chunks of actions a second through the engine, and by the network alone."""
    policy = openvla(trial).to(trial.dtype)
    for rows in BATCHES if trial.on_gpu else (1, 2):
        engine = EmbodiedEngine(
            policy=policy,
            temperature=1.0,
            lockstep=False,
            batch_rows=rows,
            compute_dtype=None if trial.dtype == torch.float32 else trial.dtype,
        )
        requests = requests_of(trajectories(policy, rows=rows, chunks=1, shape=PICTURE))
        least_s = 1.0 if trial.on_gpu else 0.02
        through_engine = trial.seconds_of(lambda: act_all(engine, requests), least_s=least_s)  # noqa: B023
        inputs = {
            name: column.to(trial.device)
            for name, column in observations(policy, rows, shape=PICTURE).items()
        }
        bare = trial.seconds_of(lambda: _forward(policy, inputs), least_s=least_s)  # noqa: B023
        trial.note(
            **{
                f"act_per_s_{rows}": rows / through_engine,
                f"over_bare_{rows}": through_engine / bare,
            }
        )


def lora_update(trial: Trial) -> None:
    """An update of adapters, on one GPU."""
    policy = openvla(trial, recompute=True)
    policy.adapt(LoraArguments(rank=RANK if trial.on_gpu else 2), seed=0)
    _update(trial, policy, passes=ADAPTERS)


def full_update(trial: Trial) -> None:
    """An update of all weights, where weights, gradients and moments fit."""
    if trial.on_gpu:
        needed = 7.6e9 * TRAINED_BYTES
        free, _ = torch.cuda.mem_get_info(trial.device)
        if needed > free:
            raise CheckSkipped(
                f"weights, gradients and moments take {needed / 1e9:.0f} GB, and "
                f"{free / 1e9:.0f} GB are free"
            )
    _update(trial, openvla(trial, recompute=True), passes=TRAINED_WEIGHTS)


@torch.inference_mode()
def _forward(policy: OpenVLAOFT, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    state = inputs["proprioception"].to(next(policy.parameters()).dtype)
    return policy(**{**inputs, "proprioception": state}).logits


def _update(trial: Trial, policy: OpenVLAOFT, *, passes: int) -> None:
    rows, chunks = (2, 8) if trial.on_gpu else (2, 1)
    engine = engine_of(
        policy, embodied_scorer, device=trial.device, dtype=trial.dtype, micro_batch_size=1
    )
    batch = trajectories(policy, rows=rows, chunks=chunks, shape=PICTURE)
    metrics, seconds = timed_update(trial, engine, batch)
    forward = openvla_flops(policy, question=QUESTION)
    flops = passes * rows * chunks * forward
    trained = sum(weight.numel() for weight in policy.parameters() if weight.requires_grad)
    frozen = sum(weight.numel() for weight in policy.parameters()) - trained
    trial.note(
        chunks_per_s=rows * chunks / seconds,
        tflops=flops / seconds / 1e12,
        states_gb=(trained * TRAINED_BYTES + frozen * FROZEN_BYTES) / 1e9,
    )
    peak_bytes, peak = trial.peak_bytes(), peak_of(trial.device, trial.dtype)
    if peak_bytes is not None:
        trial.note(peak_gb=peak_bytes / 1e9)
    if peak is not None:
        trial.note(mfu=flops / seconds / peak)
    trial.require(metrics["actor/updates"] == 1, f"the update was skipped: {metrics}")
