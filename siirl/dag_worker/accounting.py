"""Accounting of a step on this rank: throughput over the whole step, waiting times, memory by
owner.

Recorded after every training step. Like verl's `perf/throughput`, throughput covers the whole step,
waiting included, and is divided by all GPUs of the job; each rank adds the rollouts that it
reports. MFU covers only the actor's update, waiting included, and is divided by all GPUs of the
rank; those that only vLLM uses are idle in the update. Memory of a rollout (keys and values, the
encoder, vLLM's own processes) comes with its counts (`RolloutEngine.take_memory`), that of a
rollout rank with its reports. Activations and the reward model are only in the part of a GPU's peak
that is not held between steps.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from siirl.dag_worker.context import StageContext
from siirl.engine.actor.actor import Actor
from siirl.engine.training.device_peaks import TERA, peak_of
from siirl.engine.training.train_engine import TrainEngine
from siirl.engine.training.weight_sync import ActingModule
from siirl.host_peak import peak_bytes, reset_peak
from siirl.models.stored_tensors import local_part
from siirl.occupation import OCCUPATION, Occupation
from siirl.reporting.metrics import AGENT_PREFIX, Value, Weighted

GPU_PEAK = "memory/gpu_peak_bytes"
HELD = ("_weights_bytes", "_moments_bytes", "_copy_bytes")  # names of what stays between steps
HELD_ELSEWHERE = "memory/rollout_weights_bytes"  # by rollout ranks, whose reports a rank records
HOST_PEAK = "memory/host_peak_bytes"
HOST_PEAK_OF_RUN = "memory/host_peak_of_run_bytes"
PROMPT = "rollout/avg_prompt_length"
TOKENS = (PROMPT, "rollout/avg_response_length")


class MemoryPeaks:
    """Peaks of memory of this process, since it was made or since `begin`.

    Args:
        device: Device of this rank.
        reset: Begins a new peak of host memory; False if the kernel refuses.
    """

    def __init__(self, device: torch.device, *, reset: Callable[[], bool] = reset_peak) -> None:
        self._device = device
        self._reset = reset
        if device.type == "cuda":
            torch.cuda.init()  # the peak cannot be reset in a process that has not used CUDA
        self.begin()

    def begin(self) -> None:
        """Begin new peaks."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._begun = self._reset()

    def of_gpu(self) -> int | None:
        """Peak of tensors on the GPU; None on a CPU."""
        if self._device.type != "cuda":
            return None
        return torch.cuda.max_memory_allocated(self._device)

    def metrics(self, *, held: float) -> dict[str, Value]:
        """The peaks, of which `held` bytes are what the rank keeps on its device."""
        found: dict[str, Value] = {HOST_PEAK if self._begun else HOST_PEAK_OF_RUN: peak_bytes()}
        peak = self.of_gpu()
        if peak is not None:
            found |= {GPU_PEAK: peak, "memory/gpu_beyond_held_bytes": peak - held}
        return found


class StepAccount:
    """Times one step at a time.

    Args:
        device: Device of this rank.
        gpus_of_job: Number of GPUs of all ranks; on CPUs, of ranks.
        occupation: Reports how long this process has waited for other ranks.
        clock: Monotonic clock in seconds.
        reset: Begins a new peak of host memory; False if the kernel refuses.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        gpus_of_job: int = 1,
        occupation: Occupation = OCCUPATION,
        clock: Callable[[], float] = time.perf_counter,
        reset: Callable[[], bool] = reset_peak,
    ) -> None:
        self._gpus_of_job = gpus_of_job
        self._occupation = occupation
        self._clock = clock
        self._peaks = MemoryPeaks(device, reset=reset)
        self._began, self._waited = clock(), occupation.waited_s

    def begin(self) -> None:
        """Start timing a step, and reset the peaks of memory."""
        self._began, self._waited = self._clock(), self._occupation.waited_s
        self._peaks.begin()

    def loading(self) -> dict[str, Value]:
        """Peak of GPU memory since this account was made, to be recorded before the first step."""
        peak = self._peaks.of_gpu()
        return {} if peak is None else {"memory/gpu_loading_peak_bytes": peak}

    def metrics(self, records: Sequence[dict[str, Value]]) -> dict[str, Value]:
        """Metrics of the step that ends now.

        Args:
            records: What this rank has recorded during the step.
        """
        seconds = self._clock() - self._began
        idle = (self._occupation.waited_s - self._waited) / seconds
        found: dict[str, Value] = {
            "time/step_s": seconds,
            "perf/idle_share": idle,
            "perf/largest_idle_share": idle,
            "perf/env_steps_per_s": _sum(records, "env/steps") / seconds / self._gpus_of_job,
        }
        if any(AGENT_PREFIX.sub("", name) == PROMPT for record in records for name in record):
            tokens = sum(_sum(records, name) for name in TOKENS)
            found["perf/throughput"] = tokens / seconds / self._gpus_of_job
        held = sum(
            _sum(records, name)
            for name in {AGENT_PREFIX.sub("", key) for record in records for key in record}
            if name.startswith("memory/") and name.endswith(HELD) and name != HELD_ELSEWHERE
        )
        return found | self._peaks.metrics(held=held)


@contextlib.contextmanager
def work_of_update(
    engine: TrainEngine[Any],
    *,
    gpus: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[dict[str, float]]:
    """Fill the yielded metrics with the speed of the update inside the `with` block.

    `perf/mfu` is the achieved FLOP/s divided by the vendor's peak for the compute dtype
    (PaLM, arXiv 2204.02311, appendix B). It is absent for a device without a stated peak.

    Args:
        engine: Engine of the update.
        gpus: Number of GPUs of this rank; 1 on a CPU.
        clock: Monotonic clock in seconds.
    """
    before, began = engine.flops, clock()
    found: dict[str, float] = {}
    yield found
    if before is None or engine.flops is None or engine.flops == before:
        return
    speed = (engine.flops - before) / (clock() - began) / gpus
    found["perf/update_tflops_per_s"] = speed / TERA
    peak = peak_of(engine.device, engine.compute_dtype or torch.float32)
    if peak is not None:
        found["perf/mfu"] = speed / peak


def held_bytes(context: StageContext) -> dict[str, Value]:
    """Bytes that this rank holds on its device between steps, by owner, and those of gradients at
    an optimiser's step. A sharded tensor counts its local shard; an offloaded one nothing.
    """
    engines: dict[str, TrainEngine] = {"actor": context.actor.engine}
    if context.critic is not None:
        engines["critic"] = context.critic.engine
    held: dict[str, Value] = {}
    for name, engine in engines.items():
        weights = list(engine.module.parameters())
        held[f"memory/{name}_weights_bytes"] = _bytes(weights)
        # a gradient has the type and the shard of its weight
        held[f"memory/{name}_gradients_bytes"] = _bytes(
            weight for weight in weights if weight.requires_grad
        )
        state = {} if engine.optimizer is None else engine.optimizer.state
        moments = [tensor for of_weight in state.values() for tensor in of_weight.values()]
        held[f"memory/{name}_moments_bytes"] = _bytes(moments)
    if isinstance(context.reference, Actor):  # its own weights
        held["memory/reference_weights_bytes"] = _bytes(
            context.reference.engine.module.parameters()
        )
    acting = context.weights.acting
    if isinstance(acting, ActingModule):
        held["memory/acting_copy_bytes"] = (
            _bytes(acting.module.parameters()) if acting.is_copy else 0.0
        )
    return held


def _bytes(tensors: Iterable[object]) -> float:
    """Bytes of the tensors that have storage; a sharded tensor counts its local shard."""
    local = (local_part(each) for each in tensors if isinstance(each, torch.Tensor))
    return float(sum(each.nbytes for each in local if each.untyped_storage().nbytes()))


def _sum(records: Sequence[dict[str, Value]], name: str) -> float:
    """Sum of a count, or of a weighted mean times its weight, over records and agent groups."""
    total = 0.0
    for record in records:
        for found, value in record.items():
            if AGENT_PREFIX.sub("", found) != name:
                continue
            if isinstance(value, Weighted):
                total += value.value * value.weight
            elif isinstance(value, int | float):
                total += value
    return total
