"""Extension of vLLM's worker: loads new weights and applies the temperature of training.

vLLM mixes this class into its worker (`worker_extension_cls`), in this process or a process of
vLLM. Weights arrive in buckets of memory that both processes map
(`siirl.engine.training.weight_buckets`), or one by one in the same process, and go into the memory
of the old ones (`siirl.engine.rollout.vllm.weight_places`).
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from siirl.engine.rollout.vllm.weight_places import WeightPlaces, weight_places
from siirl.engine.training.port_guard import guard_all_ports
from siirl.engine.training.weight_buckets import Entry, MappedBuffers
from siirl.host_peak import peak_bytes, reset_peak
from siirl.models.checksum import RunningChecksum
from siirl.models.weight_rows import Rows


class WorkerExtension:
    """Methods that `collective_rpc` calls on every worker."""

    model_runner: Any
    siirl_buffers: MappedBuffers
    siirl_digest: RunningChecksum
    siirl_places: WeightPlaces | None = None
    siirl_own_scale: float | None = None
    """The model's own factor of the logits."""

    def siirl_shut_ports(self) -> None:
        """Shut the ports of this process, a worker of vLLM: those of gloo and of torch's stores."""
        guard_all_ports()

    def siirl_take_peaks(self) -> dict[str, float]:
        """Peaks of this process since the last call: of its resident memory, and of the tensors on
        its GPU.
        """
        device, peaks = self.model_runner.device, {"vllm_host_peak": float(peak_bytes())}
        reset_peak()  # where the kernel refuses, the peak is that of the run
        if device.type == "cuda":
            peaks["vllm_gpu_peak"] = float(torch.cuda.max_memory_allocated(device))
            torch.cuda.reset_peak_memory_stats(device)
        return peaks

    def siirl_scale_logits(self, factor: float) -> None:
        """Multiply the model's logits, so that vLLM's temperature 1 is the training temperature.

        vLLM's log-probs are then those of the whole distribution under that temperature,
        independent of top-p and top-k. A later call replaces the factor.

        Raises:
            AttributeError: The architecture lacks vLLM's logits processor.
        """
        processor = self.model_runner.get_model().logits_processor
        if self.siirl_own_scale is None:
            self.siirl_own_scale = processor.scale
        processor.scale = self.siirl_own_scale * factor

    def siirl_begin_weights(self) -> None:
        """Prepare for new weights; `siirl_take_bucket` then loads some at a time."""
        runner = self.model_runner
        self.siirl_buffers = MappedBuffers()
        self.siirl_digest = RunningChecksum()
        if self.siirl_places is None:
            config = runner.vllm_config.model_config
            self.siirl_places = weight_places(runner.get_model(), config)
        self.siirl_places.begin()

    def siirl_take_bucket(self, handle: Any, packed: Sequence[Any]) -> None:
        """Load the weights of a bucket.

        Args:
            handle: Handle of the bucket's memory, for `MappedBuffers.open`.
            packed: Entries of the bucket, each from `Entry.packed`.
        """
        buffer = self.siirl_buffers.open(handle, device=self.model_runner.device)
        self.siirl_take_weights(Entry.unpacked(each).rows(buffer) for each in packed)
        if buffer.is_cuda:
            torch.cuda.synchronize(buffer.device)  # the sender overwrites the bucket next

    def siirl_take_weights(self, weights: Iterable[Rows]) -> None:
        """Load some weights, on any device."""
        assert self.siirl_places is not None
        for rows in weights:
            here = rows.with_values(rows.values.to(self.model_runner.device))
            self.siirl_digest.add(here)
            self.siirl_places.take(here)

    def siirl_finish_weights(self) -> int:
        """Let the new weights act; returns the checksum of all weights that arrived."""
        assert self.siirl_places is not None
        self.siirl_buffers.close()
        self.siirl_places.finish()
        return self.siirl_digest.value
