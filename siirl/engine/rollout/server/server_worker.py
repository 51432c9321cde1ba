"""Worker extension of a vLLM server that a run reaches over HTTP.

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL \
        --worker-extension-cls siirl.engine.rollout.server.server_worker.ServerWorker

The route /collective_rpc calls these methods with texts as arguments. The workers store the label
of the last loaded weights, and lose it with their process. A run can therefore detect that a server
was restarted or has another run's weights.
"""

import json
from typing import Any

import torch

from siirl import __version__
from siirl.engine.rollout.server.handshake import NO_WEIGHTS, PROTOCOL
from siirl.engine.rollout.server.weight_folder import read_bucket
from siirl.engine.rollout.server.weight_group import WeightGroup, join_group
from siirl.engine.rollout.vllm.vllm_worker import WorkerExtension
from siirl.engine.training.weight_buckets import Entry


class ServerWorker(WorkerExtension):
    """Methods that a run calls on every worker of its server."""

    siirl_label = NO_WEIGHTS
    siirl_group: WeightGroup | None = None
    rank: int
    """The worker's number at its server, set by vLLM."""

    def siirl_describe(self) -> dict[str, Any]:
        """Versions, type of the weights, and label of the weights that a run loaded last."""
        return {
            "protocol": PROTOCOL,
            "siirl": __version__,
            "dtype": str(self.model_runner.model_config.dtype).removeprefix("torch."),
            "label": self.siirl_label,
        }

    def siirl_set_temperature(self, temperature: str) -> None:
        """Divide the logits by `temperature`; see `siirl_scale_logits`."""
        self.siirl_scale_logits(1.0 / float(temperature))

    def siirl_begin_weights(self) -> None:
        """See `WorkerExtension`; the old weights are incomplete from then on."""
        self.siirl_label = NO_WEIGHTS
        super().siirl_begin_weights()

    def siirl_take_file(self, file: str, packed: str) -> None:
        """Load the weights of a bucket.

        Args:
            file: Path of the bucket.
            packed: Entries of the bucket as JSON, each from `Entry.packed`.

        Raises:
            OSError: The file cannot be read here.
            ValueError: It is too short.
        """
        entries = [Entry.unpacked(each) for each in json.loads(packed)]
        buffer = read_bucket(file, entries)
        self.siirl_take_weights(entry.rows(buffer) for entry in entries)

    def siirl_join_group(self, host: str, port: str, ranks: str) -> None:
        """Join the group in which a run broadcasts its weights; the run is its first member."""
        self.siirl_group = join_group(host, int(port), rank=1 + self.rank, ranks=int(ranks))

    def siirl_take_broadcast(self, size: str, packed: str) -> None:
        """Load the weights of a bucket of `size` bytes that the run broadcasts."""
        assert self.siirl_group is not None
        buffer = torch.empty(int(size), dtype=torch.uint8)
        self.siirl_group.broadcast(buffer).wait()
        entries = [Entry.unpacked(each) for each in json.loads(packed)]
        self.siirl_take_weights(entry.rows(buffer) for entry in entries)

    def siirl_leave_group(self) -> None:
        """Close the connections to the run."""
        self.siirl_group = None

    def siirl_label_weights(self, label: str) -> None:
        """Name the weights that were loaded."""
        self.siirl_label = label
