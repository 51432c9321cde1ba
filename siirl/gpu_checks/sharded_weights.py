"""Weights that FSDP2 shards over all GPUs: sent to another process and to acting copies, and saved.

A sync is that of a run (`WeightSync`). All ranks gather the weights a few rows at a time, and rank
0 sends them in buckets to a process that receives them as vLLM's workers do. In further syncs each
rank fills an acting copy. What arrived is compared with weights that PyTorch gathers itself. A
checkpoint is that of a run (`CheckpointManager`): every rank writes
its shards; one rank, and half of the ranks, read them.
"""

import gc
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from siirl.dag_worker.checkpoint import CheckpointManager
from siirl.engine.training.collectives import Collectives, GroupOfProcesses, OneProcess
from siirl.engine.training.saved_state import SHARDS, state_tensors
from siirl.engine.training.train_engine import TrainEngine
from siirl.engine.training.weight_buckets import BUCKET_BYTES
from siirl.engine.training.weight_sync import ChecksumPair, WeightSync, acting_copy
from siirl.gpu_checks.arrived_weights import change, gathered, require_arrived
from siirl.gpu_checks.check import Trial
from siirl.gpu_checks.disk_room import require_disk
from siirl.gpu_checks.rank_processes import first_ranks, ranks_here, run_on_ranks
from siirl.gpu_checks.receiving_process import MakeTransport, ReceivingProcess, mapped
from siirl.gpu_checks.sharded import decoder, rows_of_all, sharded_engine
from siirl.gpu_checks.updates import update
from siirl.models.checksum import RunningChecksum
from siirl.models.weight_rows import Rows, in_rows

BLOCKS = 4  # of a checkpoint on GPUs: 0.65 billion weights
CHECKPOINT_BYTES = 11e9  # weights and moments in float32, and the whole weights once more
SMALL_BUCKET = 4096  # on a CPU, so that the small model takes several


class NoReceiver:
    """Place of an engine on a rank that only helps to gather weights."""

    def __init__(self, dtype: torch.dtype, names: Iterable[str]) -> None:
        self.weight_dtypes = dict.fromkeys(names, dtype)

    def has_weights(self) -> bool:
        """See `ActingWeights`."""
        return True

    def take_weights(self, weights: Iterable[Rows]) -> list[ChecksumPair] | None:
        """Consume them; see `siirl.engine.training.weight_sync.ActingWeights`."""
        for _ in weights:
            pass
        return None

    def update_weights(self, version: int) -> None:
        """See `siirl.engine.training.weight_sync.VersionedEngine`."""


def sharded_sync(trial: Trial, *, transport: MakeTransport = mapped) -> None:
    """Weights of all ranks reach another process and the acting copies, bit for bit."""
    ranks = ranks_here(trial)
    found = run_on_ranks(trial, send_from_shards, transport, ranks=ranks)
    trial.note(ranks=ranks, **found[0])


def send_from_shards(
    trial: Trial, group: GroupOfProcesses, transport: MakeTransport
) -> dict[str, float]:
    """One rank: figures of the second of two syncs to a process, and to the acting copies.

    Raises:
        InvariantError: Other weights arrived.
        CheckFailed: The same, found without the checksums of the sync.
    """
    module = decoder(trial)
    copied = acting_copy(module, trial.dtype, device=trial.device)
    engine = sharded_engine(trial, group, module=module)
    names = engine.module.state_dict().keys()
    with ExitStack() as stack:
        receiver: Any = NoReceiver(trial.dtype, names)
        if group.rank == 0:
            receiver = stack.enter_context(
                ReceivingProcess(
                    trial.device,
                    bucket_bytes=BUCKET_BYTES if trial.on_gpu else SMALL_BUCKET,
                    weight_dtypes=dict.fromkeys(names, trial.dtype),
                    transport=transport,
                )
            )
        sync = WeightSync(trained=engine, acting=receiver, engine=receiver, ranks=group)
        for _ in range(2):
            figures = _timed_sync(trial, sync)
            expected = _checksum_by_torch(engine, trial.dtype)
            if group.rank == 0:
                trial.require(
                    receiver.arrived == expected,
                    f"the shards have the checksum {expected}, but {receiver.arrived} arrived",
                )
                figures["buckets"] = receiver.buckets / 2
    engine_of_copy = NoReceiver(trial.dtype, ())
    sync = WeightSync(trained=engine, acting=copied, engine=engine_of_copy, ranks=group)
    for _ in range(2):  # the second one leaves out what the copy has
        to_copy = _timed_sync(trial, sync)
        require_arrived(engine.module, copied)
    return figures | {f"copy_{name}": value for name, value in to_copy.items()}


def sharded_checkpoint(trial: Trial) -> None:
    """A checkpoint of all ranks has the same bits when one rank, or half of them, has read it."""
    ranks = ranks_here(trial)
    with tempfile.TemporaryDirectory(prefix="siirl-checkpoint-") as folder:
        require_disk(Path(folder), CHECKPOINT_BYTES if trial.on_gpu else 0.0)
        found = run_on_ranks(trial, save_and_read, Path(folder), ranks=ranks)[0]
    saved = found.pop("saved")
    sums = {name: found.pop(name) for name in [*found] if name.startswith("read_by_")}
    trial.note(ranks=ranks, **found)
    for name, checksum in sums.items():
        trial.require(
            checksum == saved,
            f"{ranks} ranks saved the checksum {saved}, but it is {checksum} when {name}",
        )


def save_and_read(trial: Trial, group: GroupOfProcesses, folder: Path) -> dict[str, Any]:
    """One rank: checksums of the saved and of the read state, and the speed of both, on rank 0."""
    engine = sharded_engine(trial, group, blocks=BLOCKS)
    update(engine, rows_of_all(trial, group.size)[group.rank :: group.size])
    manager = CheckpointManager(folder=folder, engines={"actor": engine}, ranks=group)
    begin = time.perf_counter()
    place = manager.save(step=1, state={})
    seconds = time.perf_counter() - begin
    written = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    found = {
        "saved": state_checksum(engine),
        "bytes": written,
        "save_seconds": seconds,
        "save_gb_per_s": written / seconds / 1e9,
    }
    del engine, manager
    for number in sorted({1, max(1, group.size // 2)}):
        _free(trial)
        some: Collectives | None = first_ranks(group, number)
        if number == 1 and some is not None:
            some = OneProcess()  # as a run on one GPU reads it
        if some is not None:
            found |= _read(trial, some, folder)
        group.gather_objects(None)  # the others wait
    return found


def _read(trial: Trial, ranks: Collectives, folder: Path) -> dict[str, Any]:
    """Read the newest checkpoint on some ranks, into weights of another seed."""
    engine = sharded_engine(trial, ranks, seed=1, blocks=BLOCKS)
    manager = CheckpointManager(folder=folder, engines={"actor": engine}, ranks=ranks)
    begin = time.perf_counter()
    place = manager.load().folder
    seconds = time.perf_counter() - begin
    size = sum(file.stat().st_size for file in (place / "actor" / SHARDS).iterdir())
    return {
        f"read_by_{ranks.size}": state_checksum(engine),
        f"load_{ranks.size}_seconds": seconds,
        f"load_{ranks.size}_gb_per_s": size / seconds / 1e9,
    }


def state_checksum(engine: TrainEngine[Any]) -> int:
    """Checksum of weights, moments and steps; every rank of the engine calls it."""
    state = state_tensors(engine.module, engine.optimizer, steps=engine.steps)
    return RunningChecksum(in_rows(state.items())).value


def _timed_sync(trial: Trial, sync: WeightSync) -> dict[str, float]:
    """Bytes and speed of a sync after a change of all weights."""
    change(sync.trained.module)
    trial.wait_for_device()
    begin = time.perf_counter()
    sync.sync()
    trial.wait_for_device()
    seconds = time.perf_counter() - begin
    size = float(sync.transferred_bytes)
    return {"bytes": size, "seconds": seconds, "gb_per_s": size / seconds / 1e9}


def _checksum_by_torch(engine: TrainEngine[Any], dtype: torch.dtype) -> int:
    """Checksum of the weights as PyTorch gathers them, one whole weight at a time."""
    digest = RunningChecksum()
    for name, tensor in engine.module.state_dict().items():
        whole = gathered(tensor)
        digest.add(Rows(name, whole.to(dtype), tuple(whole.shape)))
    return digest.value


def _free(trial: Trial) -> None:
    gc.collect()
    trial.forget_peak()
