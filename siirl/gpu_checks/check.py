"""A check, its context, and its result row.

A check is a function of `Trial`. It records figures while it runs, so that those of a killed check
are kept. It raises `CheckFailed` with a message, or `CheckSkipped` if this machine cannot run it;
any other error is a failure too.
"""

import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from siirl.engine.training.compiled_blocks import COMPILER
from siirl.params.packages import has_compilers

Status = Literal["OK", "failed", "skipped"]
FORCE_GROUP = "--force-group"


class CheckFailed(Exception):
    """The check's own verdict, a sentence with the numbers that disagree."""


class CheckSkipped(Exception):
    """This machine lacks something; a sentence that names it."""


def late(who: str, name: str, seconds: float) -> str:
    """The reason of a check that took too long, with a command line that allows twice the time.

    Args:
        who: What did not end, with a space behind it; empty for the whole check.
        name: Name of the check.
        seconds: Its time limit.
    """
    minutes = math.ceil(2 * seconds / 60)
    return (
        f"{who}did not end within {seconds:.0f} s. It hangs, or this machine is slow: give it more "
        f"time with --only {name} --minutes {minutes}"
    )


@dataclass(frozen=True)
class Check:
    """An entry of the catalogue."""

    name: str
    what: str
    function: str
    """`module:name`, imported only in the check's process."""
    at_most_s: float
    """Its share of a budget of eight minutes; unused time goes to later checks."""
    needs: tuple[str, ...] = ()
    """Packages beyond the minimal installation."""
    shares_memory: bool = False
    """Whether another process maps its GPU memory (CUDA IPC)."""


@dataclass
class Row:
    """Result of a check."""

    name: str
    what: str
    status: Status
    reason: str = ""
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass
class Trial:
    """One run of a check.

    Attributes:
        device: The first GPU, or the CPU; that of the rank in a rank's process.
        ends_at: `time.monotonic()` at which the process is killed.
        file: File for the figures.
        force_group: Whether checks over all GPUs run on a single one too, as a group of one rank.
    """

    device: torch.device
    ends_at: float
    file: Path
    figures: dict[str, Any] = field(default_factory=dict)
    force_group: bool = False

    @property
    def on_gpu(self) -> bool:
        """Whether to use published shapes; a CPU uses small ones."""
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """Type of the passes: bfloat16 on a GPU, float32 on a CPU."""
        return torch.bfloat16 if self.on_gpu else torch.float32

    @property
    def dtype_name(self) -> str:
        """Configuration name of `dtype`."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def compiler(self) -> str | None:
        """Compiler of a model's blocks, as in the one-GPU preset; None: they are not compiled."""
        return COMPILER if self.on_gpu and has_compilers(gpu=True) else None

    @property
    def name(self) -> str:
        """The check's name, also in the process of a rank."""
        return self.file.name.split(".")[0]

    def left_s(self) -> float:
        """Seconds until the process is killed."""
        return self.ends_at - time.monotonic()

    def note(self, **figures: Any) -> None:
        """Record figures; they are kept even if the process dies."""
        self.figures |= figures
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps({"figures": self.figures}))
        new.replace(self.file)

    def require(self, holds: bool, sentence: str) -> None:
        """Fail the check with `sentence` unless `holds`."""
        if not holds:
            raise CheckFailed(sentence)

    def wait_for_device(self) -> None:
        """Wait until the device has finished its work, for timings."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def seconds_of(self, work: Any, *, least_s: float = 1.0, most: int = 50) -> float:
        """Mean seconds of a call after one warm-up call; repeats it for `least_s`, at least
        once.
        """
        work()
        self.wait_for_device()
        begin, calls = time.perf_counter(), 0
        while calls == 0 or (
            time.perf_counter() - begin < least_s and calls < most and self.left_s() > 5
        ):
            work()
            self.wait_for_device()
            calls += 1
        return (time.perf_counter() - begin) / calls

    def free_bytes(self) -> float:
        """Memory of the device that no process holds; infinite on a CPU."""
        return torch.cuda.mem_get_info(self.device)[0] if self.on_gpu else float("inf")

    def peak_bytes(self) -> int | None:
        """Peak memory of the device's tensors since `forget_peak`; None on a CPU."""
        return torch.cuda.max_memory_allocated(self.device) if self.on_gpu else None

    def forget_peak(self) -> None:
        """Start the next peak."""
        if self.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
