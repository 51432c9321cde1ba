"""Set-up of a rank's process: device, determinism, threads and folder.

Ray shows a rank only its own GPUs (CUDA_VISIBLE_DEVICES), so the first one is the rank's.
"""

import os
import socket
from pathlib import Path

import torch

from siirl.errors import ConfigError, InvariantError
from siirl.params import sizes
from siirl.params.training_args import TrainingArguments

# cuBLAS picks a workspace per stream at run time, and the order of its sums depends on the
# workspace. It is fixed only if set before the cuBLAS handle is made
# (https://docs.nvidia.com/cuda/cublas/#results-reproducibility).
CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FIXED_WORKSPACES = (":4096:8", ":16:8")  # the first is faster and takes 24 MiB


def device_of_rank() -> torch.device:
    """The first visible GPU, by its number; the CPU without one."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def prepare_device(*, deterministic: bool) -> torch.device:
    """The device of this process, prepared; call it before the first CUDA computation.

    By default cuDNN rounds the factors of float32 convolutions to 10 bits (TF32), unlike matrix
    products. This is switched off, so float32 means the same on CPU and GPU.

    Raises:
        InvariantError: See `set_deterministic`.
    """
    set_deterministic(deterministic)
    torch.backends.cudnn.allow_tf32 = False
    return device_of_rank()


def set_deterministic(wanted: bool) -> None:
    """Make PyTorch's kernels deterministic, or not; call it before the first CUDA computation.

    Raises:
        InvariantError: This process has computed on a GPU without a fixed workspace, which can no
            longer be changed.
    """
    if wanted:
        if not _has_computed():
            os.environ.setdefault(CUBLAS_WORKSPACE, FIXED_WORKSPACES[0])
        value = os.environ.get(CUBLAS_WORKSPACE)
        if value not in FIXED_WORKSPACES:
            raise InvariantError(
                f"trainer.deterministic=true needs {CUBLAS_WORKSPACE}={FIXED_WORKSPACES[0]} before "
                f"CUDA computes, but it is {value!r}: set it in the environment of the command."
            )
    torch.use_deterministic_algorithms(wanted)


def _has_computed() -> bool:
    """Whether this process has had a tensor on a GPU. Initialising CUDA does not count: the plan
    does so to read a GPU's memory.
    """
    return torch.cuda.is_initialized() and any(
        torch.cuda.max_memory_allocated(number) > 0 for number in range(torch.cuda.device_count())
    )


def prepare_process(trainer: TrainingArguments) -> torch.device:
    """Set determinism and threads of a rank's process; returns its device."""
    device = prepare_device(deterministic=trainer.deterministic)
    torch.set_num_threads(sizes.threads_of_rank(trainer, cores=len(os.sched_getaffinity(0))))
    return device


def require_run_folder(run_folder: Path, *, rank: int) -> None:
    """Raise ConfigError if this machine does not have the run folder."""
    if run_folder.is_dir():
        return
    raise ConfigError(
        f"Rank {rank} runs on {socket.gethostname()}, which does not have {run_folder}: "
        "with several machines trainer.output_dir= "
        "must be in a folder that they share, for recordings and checkpoints."
    )
