"""Device of a rank, and process settings that must precede its first CUDA call.

Ray shows a rank only its own GPUs (CUDA_VISIBLE_DEVICES), so the first one is the rank's.
"""

import os

import torch

from siirl.errors import InvariantError

# cuBLAS picks a workspace per stream at run time, and sums in another order with another one,
# unless it has a fixed one when its handle is made
# (https://docs.nvidia.com/cuda/cublas/#results-reproducibility).
CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FIXED_WORKSPACES = (":4096:8", ":16:8")  # the first is faster and takes 24 MiB


def device_of_rank() -> torch.device:
    """The first visible GPU, by its number; the CPU without one."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def prepare_device(*, deterministic: bool) -> torch.device:
    """The device of this process, prepared; call it before the first CUDA computation.

    cuDNN would round the factors of float32 convolutions to 10 bits (TF32), which matrix products
    do not: float32 means the same on both devices.

    Raises:
        InvariantError: See `set_deterministic`.
    """
    set_deterministic(deterministic)
    torch.backends.cudnn.allow_tf32 = False
    return device_of_rank()


def set_deterministic(wanted: bool) -> None:
    """Make PyTorch's kernels deterministic, or not; call it before the first CUDA computation.

    Raises:
        InvariantError: CUDA has started without a fixed workspace, which can no longer be changed.
    """
    if wanted:
        started = torch.cuda.is_initialized()
        value = (
            os.environ.setdefault(CUBLAS_WORKSPACE, FIXED_WORKSPACES[0])
            if not started
            else (os.environ.get(CUBLAS_WORKSPACE))
        )
        if value not in FIXED_WORKSPACES:
            raise InvariantError(
                f"trainer.deterministic=true needs {CUBLAS_WORKSPACE}={FIXED_WORKSPACES[0]} before "
                f"CUDA starts, and it is {value!r}: set it in the environment of the command."
            )
    torch.use_deterministic_algorithms(wanted)
