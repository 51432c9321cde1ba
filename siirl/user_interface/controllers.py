"""RolloutController and TrainController: engines in several processes, called as one object.

    with processes(), RolloutController(make_rollout, processes=2) as rollout, \
            TrainController(make_actor, processes=2) as actor:
        rollout.update_weights(actor.upload_weights()).result()
        result = rollout.rollout_batch(questions, workflow)
        metrics = actor.update(batch)

They serve scripts with a single controller, as in AReaLite's design document; method names are
those of `InferenceEngine` and `Actor`. Rows pass through the script's process, so batches must fit
into its memory. Left out: replacing a dead process (it ends the script with an error); rows that
stay where they were made, placement, and both with a graph (`siirl.train`).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any, Self, cast

import torch
from tensordict import TensorDict

from siirl.algos.log_probs import TokenScores
from siirl.engine.actor.actor import Actor, Metrics
from siirl.engine.rollout.inference_engine import InferenceEngine
from siirl.engine.rollout.workflow import RolloutResult, RolloutWorkflow
from siirl.engine.training.collectives import Collectives, join
from siirl.engine.training.rank_device import prepare_device
from siirl.engine.training.weight_sync import checksum, receive_weights
from siirl.execution.scheduler.launch import MeetingPoint
from siirl.execution.scheduler.placement import machines
from siirl.execution.scheduler.process_group_manager import choose_backend
from siirl.execution.scheduler.ray_session import ClusterSettings, ray_session
from siirl.jobs.threads import short_waits

MakeRollout = Callable[[], InferenceEngine]
"""Called in each rollout process to make its engine; the acting module is `engine.engine.model`."""
MakeActor = Callable[[Collectives], Actor]
"""Called in each training process to make its actor; its engine shards the model over the ranks."""


@dataclass(frozen=True)
class UploadedWeights:
    """Whole weights of one version, in the object store."""

    version: int
    """Number of optimiser steps."""
    checksum: int
    """Checksum over their bits."""
    reference: Any


def processes(address: str | None = None) -> AbstractContextManager[None]:
    """Ray for the script: a private one, or the cluster at `address` (HOST:PORT)."""
    return ray_session(ClusterSettings(address, {"OMP_NUM_THREADS": "1", **short_waits()}))


class _Processes:
    """Objects in separate processes that are called together.

    Args:
        make: Their class.
        arguments: Arguments of each object.
        gpus: GPUs of each.
    """

    def __init__(self, make: type, arguments: Sequence[tuple[Any, ...]], *, gpus: float) -> None:
        import ray  # not before `processes` has set the environment that Ray reads

        remote: Any = ray.remote(num_cpus=0, num_gpus=gpus)(make)
        self.actors: list[Any] = [remote.remote(*each) for each in arguments]

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """The results of all, with the same arguments."""
        return self.results(self.start(method, [arguments] * len(self.actors)))

    def start(self, method: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """References of the results of all, each with a share of the arguments."""
        return [
            getattr(actor, method).remote(*share)
            for actor, share in zip(self.actors, shares, strict=True)
        ]

    @staticmethod
    def results(references: Sequence[Any]) -> list[Any]:
        """Wait for what `start` has started."""
        import ray

        found: list[Any] = ray.get(list(references))
        return found

    def end(self) -> None:
        """End the processes."""
        import ray

        for actor in self.actors:
            ray.kill(actor)


class RolloutController:
    """Inference engines in `processes` processes; each rolls out its share of a batch.

    Args:
        make: Makes an engine; picklable.
        processes: Number of processes.
        gpus: GPUs of each.
    """

    def __init__(self, make: MakeRollout, *, processes: int = 1, gpus: float = 0) -> None:
        self._processes = _Processes(_RolloutProcess, [(make,)] * processes, gpus=gpus)
        self._ahead: list[Any] = []

    def rollout_batch(self, data: Sequence[Any], workflow: RolloutWorkflow) -> RolloutResult:
        """Run an episode for each entry of `data`; the result has the order of `data`."""
        return _merged(self._processes.results(self._start(data, workflow)))

    def prepare_batch(
        self, dataloader: Iterator[Any], workflow: RolloutWorkflow, *, count: int
    ) -> RolloutResult:
        """Return the batch begun by the last call, and begin the next `count` episodes. These run
        while the caller trains, with the weights of this call.
        """
        if not self._ahead:
            self._ahead = self._start(list(islice(dataloader, count)), workflow)
        found = _merged(self._processes.results(self._ahead))
        self._ahead = self._start(list(islice(dataloader, count)), workflow)
        return found

    def update_weights(self, weights: UploadedWeights) -> "Future[None]":
        """Let all engines act with `weights` after the running episodes; does not wait."""
        arguments = (weights.version, weights.checksum, weights.reference)
        shares = [arguments] * len(self._processes.actors)
        return _all_done(self._processes.start("update_weights", shares))

    def __enter__(self) -> Self:
        self._processes.call("ready")
        return self

    def __exit__(self, *exception: object) -> None:
        self._processes.end()

    def _start(self, data: Sequence[Any], workflow: RolloutWorkflow) -> list[Any]:
        sizes = _sizes(len(data), len(self._processes.actors))
        entries = iter(data)
        shares = [(list(islice(entries, size)), workflow) for size in sizes]
        return self._processes.start("rollout_batch", shares)


class TrainController:
    """An actor over `processes` ranks, which train one model together.

    Args:
        make: Makes the actor of a rank; picklable.
        processes: Number of ranks.
        gpus: GPUs of each.
    """

    def __init__(self, make: MakeActor, *, processes: int = 1, gpus: float = 0) -> None:
        ranks = [(rank, processes) for rank in range(processes)]
        self._processes = _Processes(_TrainProcess, ranks, gpus=gpus)
        self._make = make

    def update(self, batch: TensorDict) -> Metrics:
        """`Actor.update` on the rows of `batch`; each rank takes a share."""
        started = self._processes.start("update", self._shares(batch))
        metrics: Metrics = self._processes.results(started)[0]
        return metrics

    def compute_log_prob(self, batch: TensorDict) -> TokenScores:
        """`Actor.compute_log_prob` [B, T], in the order of `batch`."""
        started = self._processes.start("compute_log_prob", self._shares(batch))
        parts = self._processes.results(started)
        return TokenScores(
            log_probs_BT=torch.cat([part.log_probs_BT for part in parts]),
            entropy_BT=torch.cat([part.entropy_BT for part in parts]),
        )

    def upload_weights(self) -> UploadedWeights:
        """Put the current weights into the object store, for `RolloutController.update_weights`."""
        [uploaded, *_] = self._processes.call("upload_weights")
        return UploadedWeights(*uploaded)

    def save(self, folder: Path) -> None:
        """`TrainEngine.save`, by all ranks."""
        self._processes.call("save", folder)

    def load(self, folder: Path) -> None:
        """`TrainEngine.load`, by all ranks."""
        self._processes.call("load", folder)

    def __enter__(self) -> Self:
        [place, *_] = self._processes.call("meeting_point")
        self._processes.call("build", self._make, place)
        return self

    def __exit__(self, *exception: object) -> None:
        self._processes.end()

    def _shares(self, batch: TensorDict) -> list[tuple[TensorDict]]:
        ends = list(accumulate(_sizes(len(batch), len(self._processes.actors))))
        # clone, because a view would be sent with its whole storage
        return [(batch[begin:end].clone(),) for begin, end in pairwise([0, *ends])]


class _RolloutProcess:
    """One inference engine, in a Ray actor."""

    def __init__(self, make: MakeRollout) -> None:
        torch.set_num_threads(1)
        self.inference = make().initialize()

    def ready(self) -> None:
        """Answer when the engine is made."""

    def rollout_batch(self, data: Sequence[Any], workflow: RolloutWorkflow) -> RolloutResult:
        return self.inference.rollout_batch(data, workflow)

    def update_weights(self, version: int, sent: int, weights: dict[str, torch.Tensor]) -> None:
        module = cast(Any, self.inference.engine).model
        receive_weights(module, weights, sent=sent)
        self.inference.update_weights(version).result()


class _TrainProcess:
    """One training rank, in a Ray actor."""

    def __init__(self, rank: int, size: int) -> None:
        torch.set_num_threads(1)
        self.rank, self.size = rank, size

    def meeting_point(self) -> str:
        """Rendezvous address of the ranks, at rank 0."""
        self.meeting = MeetingPoint(several_machines=len(machines()) > 1)
        return self.meeting.place

    def build(self, make: MakeActor, place: str) -> None:
        device = prepare_device(deterministic=False)
        backend = choose_backend(self.size, device_type=device.type)
        ranks = join(
            rank=self.rank, world_size=self.size, init_method=place, device=device, backend=backend
        )
        self.actor = make(ranks)

    def update(self, batch: TensorDict) -> Metrics:
        return self.actor.update(batch)

    def compute_log_prob(self, batch: TensorDict) -> TokenScores:
        return self.actor.compute_log_prob(batch)

    def upload_weights(self) -> tuple[int, int, Any] | None:
        weights = self.actor.engine.upload_weights()
        if self.rank > 0:
            return None
        weights = {name: tensor.cpu() for name, tensor in weights.items()}
        import ray

        return self.actor.engine.steps, checksum(weights), ray.put(weights)

    def save(self, folder: Path) -> None:
        self.actor.engine.save(folder)

    def load(self, folder: Path) -> None:
        self.actor.engine.load(folder)


def _sizes(count: int, parts: int) -> list[int]:
    """`count` divided into parts that differ by one at most."""
    each, rest = divmod(count, parts)
    return [each + (part < rest) for part in range(parts)]


def _merged(results: Sequence[RolloutResult]) -> RolloutResult:
    merged = RolloutResult(broken_off=max(result.broken_off for result in results))
    for result in results:
        merged.trajectories.extend(result.trajectories)
        merged.failed.extend(result.failed)
        merged.rejected.extend(result.rejected)
    return merged


def _all_done(references: Sequence[Any]) -> "Future[None]":
    """A future that is done when all are; its error is the first error."""
    done: Future[None] = Future()
    left, lock = [len(references)], threading.Lock()

    def one_done(future: "Future[Any]") -> None:
        with lock:
            left[0] -= 1
            error = future.exception()
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            elif left[0] == 0:
                done.set_result(None)

    for reference in references:
        reference.future().add_done_callback(one_done)
    return done
