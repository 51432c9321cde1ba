"""What vLLM's worker is taught, beside the model: new weights, and the temperature that training
divides by.

vLLM mixes this class into its worker (`worker_extension_cls`), in our process or in one of its own,
so everything here goes through arguments that can be pickled: weights come as the path of a
safetensors file.
"""

from pathlib import Path
from typing import Any

from siirl.engine.training.checksum import checksum
from siirl.engine.training.port_guard import guard_all_ports
from siirl.engine.training.tensor_files import read_tensors


class WorkerExtension:
    """Methods that are called on every worker by `collective_rpc`."""

    model_runner: Any

    def siirl_shut_ports(self) -> None:
        """Turn deaf the ports of this process, a worker of vLLM's own: gloo's, and those of torch's
        stores.
        """
        guard_all_ports()

    def siirl_scale_logits(self, factor: float) -> None:
        """Multiply the model's logits, so that what vLLM takes for temperature 1 is ours.

        Its log-probs are then those of the whole distribution under our temperature, whatever top-p
        and top-k leave of it.

        Raises:
            AttributeError: An architecture without vLLM's logits processor.
        """
        self.model_runner.get_model().logits_processor.scale *= factor

    def siirl_load_weights(self, file: str) -> int:
        """Replace all weights; returns the checksum of what was read.

        vLLM 0.32 packs the matrices of linear layers for the CPU. `reload_weights` undoes and
        redoes that, except for a head that is tied to the embedding: its packed copy stays that of
        the old weights, without a word.
        """
        weights = read_tensors(Path(file))
        self.model_runner.reload_weights(weights_iterator=iter(weights.items()))
        if self.model_runner.device.type == "cpu":
            pack_tied_head(self.model_runner.get_model())
        return checksum(weights)


def pack_tied_head(model: Any) -> None:
    """Pack the head of vLLM's `model` again, if it is tied to the embedding."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    if model.config.tie_word_embeddings:
        dispatch_cpu_unquantized_gemm(model.lm_head, remove_weight=False)
