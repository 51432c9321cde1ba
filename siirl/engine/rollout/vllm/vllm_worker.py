"""Extension of vLLM's worker: loads new weights and applies the temperature of training.

vLLM mixes this class into its worker (`worker_extension_cls`), in this process or a process of
vLLM. Arguments must therefore be picklable: weights are passed as the path of a safetensors file.
"""

from pathlib import Path
from typing import Any

from siirl.engine.training.checksum import checksum
from siirl.engine.training.port_guard import guard_all_ports
from siirl.engine.training.tensor_files import read_tensors


class WorkerExtension:
    """Methods that `collective_rpc` calls on every worker."""

    model_runner: Any

    def siirl_shut_ports(self) -> None:
        """Shut the ports of this process, a worker of vLLM: those of gloo and of torch's stores."""
        guard_all_ports()

    def siirl_scale_logits(self, factor: float) -> None:
        """Multiply the model's logits, so that vLLM's temperature 1 is the training temperature.

        vLLM's log-probs are then those of the whole distribution under that temperature,
        independent of top-p and top-k.

        Raises:
            AttributeError: The architecture lacks vLLM's logits processor.
        """
        self.model_runner.get_model().logits_processor.scale *= factor

    def siirl_load_weights(self, file: str) -> int:
        """Replace all weights; returns the checksum of the weights read.

        vLLM 0.32 packs the matrices of linear layers for the CPU. `reload_weights` repacks them,
        except for a head that is tied to the embedding: its packed copy silently keeps the old
        weights.
        """
        weights = read_tensors(Path(file))
        self.model_runner.reload_weights(weights_iterator=iter(weights.items()))
        if self.model_runner.device.type == "cpu":
            pack_tied_head(self.model_runner.get_model())
        return checksum(weights)


def pack_tied_head(model: Any) -> None:
    """Repack the head of vLLM's `model`, if it is tied to the embedding."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    if model.config.tie_word_embeddings:
        dispatch_cpu_unquantized_gemm(model.lm_head, remove_weight=False)
