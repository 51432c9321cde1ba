"""Extension of vLLM's worker: loads new weights and applies the temperature of training.

vLLM mixes this class into its worker (`worker_extension_cls`), in this process or a process of
vLLM. Weights arrive in buckets of memory that both processes map
(`siirl.engine.training.weight_buckets`), or one by one in the same process. vLLM loads layer after
layer and keeps the memory of the old weights, so only a bucket and a layer exist twice.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from siirl.engine.training.checksum import RunningChecksum
from siirl.engine.training.port_guard import guard_all_ports
from siirl.engine.training.weight_buckets import Entry, MappedBuffers, tensors_of


class WorkerExtension:
    """Methods that `collective_rpc` calls on every worker."""

    model_runner: Any
    siirl_buffers: MappedBuffers
    siirl_digest: RunningChecksum
    siirl_own_scale: float | None = None
    """Factor of the logits that the model itself has."""

    def siirl_shut_ports(self) -> None:
        """Shut the ports of this process, a worker of vLLM: those of gloo and of torch's stores."""
        guard_all_ports()

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
        """Prepare for new weights, of which `siirl_take_bucket` brings some at a time."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        self.siirl_buffers = MappedBuffers()
        self.siirl_digest = RunningChecksum()
        initialize_layerwise_reload(self.model_runner.get_model())

    def siirl_take_bucket(self, handle: Any, packed: Sequence[Any]) -> None:
        """Load the weights of a bucket.

        Args:
            handle: Its memory, see `MappedBuffers.open`.
            packed: Its entries, as from `Entry.packed`.
        """
        buffer = self.siirl_buffers.open(handle, device=self.model_runner.device)
        entries = [Entry.unpacked(each) for each in packed]
        # vLLM holds weights until their layer is complete; the next bucket overwrites this memory
        self.siirl_take_weights((name, t.clone()) for name, t in tensors_of(entries, buffer))

    def siirl_take_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load some weights, which nothing overwrites."""
        self.model_runner.get_model().load_weights(self._counted(weights))

    def siirl_finish_weights(self) -> int:
        """Put the last layers in place; returns the checksum of all weights that arrived.

        vLLM 0.32 packs the matrices of linear layers for the CPU. The layerwise reload repacks
        them, except for a head that is tied to the embedding: its packed copy silently keeps the
        old weights.
        """
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        self.siirl_buffers.close()
        runner = self.model_runner
        finalize_layerwise_reload(runner.get_model(), runner.vllm_config.model_config)
        runner.reset_lora_state()
        if runner.device.type == "cpu":
            pack_tied_head(runner.get_model())
        return self.siirl_digest.value

    def _counted(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterable[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            self.siirl_digest.add(tensor)
            yield name, tensor


def pack_tied_head(model: Any) -> None:
    """Repack the head of vLLM's `model`, if it is tied to the embedding."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    if model.config.tie_word_embeddings:
        dispatch_cpu_unquantized_gemm(model.lm_head, remove_weight=False)
