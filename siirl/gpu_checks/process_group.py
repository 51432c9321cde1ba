"""A process group with this process as its only rank, so that FSDP2 and NCCL run on one GPU."""

import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from siirl.engine.training.collectives import Collectives, join, leave
from siirl.gpu_checks.check import Trial


def lacks_group(trial: Trial) -> str | None:
    """Why no group can be made here; None if one can."""
    if not trial.on_gpu and importlib.util.find_spec("psutil") is None:
        return "not installed: psutil, which finds gloo's open ports"
    return None


@contextmanager
def group_of_one(trial: Trial) -> Iterator[Collectives]:
    """A group with NCCL on a GPU, with gloo on a CPU."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = join(
            rank=0,
            world_size=1,
            init_method=f"file://{folder}/rendezvous",
            device=trial.device,
            backend="nccl" if trial.on_gpu else "gloo",
            force_group=True,
        )
        try:
            yield ranks
        finally:
            leave(ranks)
