"""The device itself: name, driver, stated peak, the share of the peak that a matrix product
reaches, and the cost of a dense mask in attention.
"""

import platform
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from siirl.engine.training.device_peaks import peak_of
from siirl.gpu_checks.check import Trial

DRIVER = Path("/proc/driver/nvidia/version")


def device(trial: Trial) -> None:
    """Record the device, and the speed of square matrix products."""
    trial.note(
        device=torch.cuda.get_device_name(trial.device) if trial.on_gpu else platform.machine(),
        torch=torch.__version__,
        cuda=torch.version.cuda or "none",
        devices=torch.cuda.device_count(),
    )
    if trial.on_gpu:
        properties = torch.cuda.get_device_properties(trial.device)
        trial.note(
            driver=DRIVER.read_text().splitlines()[0] if DRIVER.is_file() else "unknown",
            memory_gb=properties.total_memory / 1e9,
            capability=f"{properties.major}.{properties.minor}",
        )
    side = 8192 if trial.on_gpu else 256
    matrix = torch.randn(side, side, device=trial.device, dtype=trial.dtype)
    seconds = trial.seconds_of(lambda: matrix @ matrix, least_s=1.0 if trial.on_gpu else 0.05)
    found = 2 * side**3 / seconds
    peak = peak_of(trial.device, trial.dtype)
    trial.note(product_tflops=found / 1e12)
    if peak is not None:
        trial.note(peak_tflops=peak / 1e12, share_of_peak=found / peak)


# heads, their size, and tokens of a row: Qwen2.5-7B, and the longest row of trainer=gpus_text
ATTENTION, SMALL_ATTENTION = (28, 128, 4024), (2, 8, 32)
AGREEMENT = {torch.float32: 1e-5, torch.bfloat16: 2e-2}  # rounding of outputs, which are below 4


def masked_attention(trial: Trial) -> None:
    """Forward and backward pass of one layer for a causal row, and the same with a dense mask.

    Text that shares a lane or a prompt has such a mask (`siirl.engine.actor.packing`).
    """
    heads, size, tokens = ATTENTION if trial.on_gpu else SMALL_ATTENTION
    numbers = torch.randn(3, 1, heads, tokens, size, device=trial.device, dtype=trial.dtype)
    query, key, value = (part.clone().requires_grad_() for part in numbers)
    mask = torch.ones(tokens, tokens, dtype=torch.bool, device=trial.device).tril()
    ways: dict[str, dict[str, Any]] = {
        "causal": {"is_causal": True},
        "masked": {"attn_mask": mask},
    }
    seconds: dict[str, float] = {}
    for name, options in ways.items():

        def both(options: dict[str, Any] = options) -> None:
            scaled_dot_product_attention(query, key, value, **options).sum().backward()

        trial.forget_peak()
        seconds[name] = trial.seconds_of(both, least_s=0.5 if trial.on_gpu else 0.01)
        trial.note(**{f"{name}_ms": 1000 * seconds[name], f"{name}_peak_bytes": trial.peak_bytes()})
    trial.note(masked_over_causal=seconds["masked"] / seconds["causal"], mask_bytes=mask.nbytes)
    one, other = (scaled_dot_product_attention(query, key, value, **way) for way in ways.values())
    apart = float((one - other).detach().abs().max())
    trial.require(apart < AGREEMENT[trial.dtype], f"outputs are {apart:.2g} apart")
