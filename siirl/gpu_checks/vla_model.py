"""OpenVLA-OFT at its published size: acting, and updates of adapters and of all weights."""

import torch

from siirl.engine.actor.embodied_scorer import embodied_scorer
from siirl.engine.rollout.vla.embodied_engine import EmbodiedEngine
from siirl.engine.training.device_peaks import peak_of
from siirl.gpu_checks.agreement import act_all, requests_of
from siirl.gpu_checks.check import Trial
from siirl.gpu_checks.planned_memory import compare_with_peak, planned_bytes, require_room
from siirl.gpu_checks.shapes import QUESTION, observations, openvla, openvla_config, trajectories
from siirl.gpu_checks.updates import engine_of, timed_update
from siirl.models.flops import ADAPTERS, TRAINED_WEIGHTS
from siirl.models.openvla_oft import OpenVLAOFT
from siirl.models.openvla_policy import openvla_flops
from siirl.params.model_args import LoraArguments, ModelArguments
from siirl.preflight.model_shapes import openvla_shape

PICTURE = (1, 224, 224, 3)
BATCHES = (1, 4, 16, 64)
RANK = 32  # of OpenVLA-OFT's own fine-tuning (arXiv 2502.19645, appendix)
CHUNKS_OF_ADAPTERS, CHUNKS = 32, 16  # per micro-batch; trainer=gpu_libero_one has the first


def acting(trial: Trial) -> None:
    """Chunks of actions per second, through the engine and by the bare network."""
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
        through_engine = trial.seconds_of(
            lambda: act_all(engine, requests),  # noqa: B023
            least_s=least_s,
        )
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
    lora = LoraArguments(rank=RANK if trial.on_gpu else 2)
    policy = openvla(trial, recompute=True)
    policy.adapt(lora, seed=0)
    chunks = CHUNKS_OF_ADAPTERS if trial.on_gpu else 1
    planned = _planned(trial, lora, chunks=chunks)
    _update(trial, policy, chunks=chunks, passes=ADAPTERS, planned=planned)


def full_update(trial: Trial) -> None:
    """An update of all weights, if it fits by the plan."""
    chunks = CHUNKS if trial.on_gpu else 1
    planned = _planned(trial, LoraArguments(), chunks=chunks)
    require_room(trial, planned)
    policy = openvla(trial, recompute=True)
    _update(trial, policy, chunks=chunks, passes=TRAINED_WEIGHTS, planned=planned)


@torch.inference_mode()
def _forward(policy: OpenVLAOFT, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    state = inputs["proprioception"].to(next(policy.parameters()).dtype)
    return policy(**{**inputs, "proprioception": state}).logits


def _planned(trial: Trial, lora: LoraArguments, *, chunks: int) -> float:
    options = {"question_length": QUESTION, "recompute": True}
    return planned_bytes(
        openvla_shape(openvla_config(trial), images=1),
        ModelArguments(policy="openvla_oft", dtype=trial.dtype_name, options=options, lora=lora),
        episode_steps=chunks * OpenVLAOFT.chunk_length,
        compiled=trial.compiler is not None,
    )


def _update(trial: Trial, policy: OpenVLAOFT, *, chunks: int, passes: int, planned: float) -> None:
    rows = 2
    trial.note(compiled=trial.compiler is not None)
    engine = engine_of(
        policy,
        embodied_scorer,
        device=trial.device,
        dtype=trial.dtype,
        micro_batch_size=1,
        compiler=trial.compiler,
    )
    batch = trajectories(policy, rows=rows, chunks=chunks, shape=PICTURE)
    seconds = timed_update(trial, engine, batch)
    flops = passes * rows * chunks * openvla_flops(policy, question=QUESTION)
    trial.note(chunks_per_s=rows * chunks / seconds, tflops=flops / seconds / 1e12)
    peak = peak_of(trial.device, trial.dtype)
    if peak is not None:
        trial.note(mfu=flops / seconds / peak)
    compare_with_peak(trial, planned)
