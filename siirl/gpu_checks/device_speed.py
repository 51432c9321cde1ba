"""The device itself: name, driver, stated peak, and the share of it in a matrix product."""

import platform
from pathlib import Path

import torch

from siirl.engine.training.device_peaks import peak_of
from siirl.gpu_checks.check import Trial

DRIVER = Path("/proc/driver/nvidia/version")


def device(trial: Trial) -> None:
    """Note the device, and the speed of square matrix products."""
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
