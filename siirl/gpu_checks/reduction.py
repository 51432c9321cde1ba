"""Process groups: NCCL on GPUs, gloo on a CPU, FSDP2 on both; one rank, and one for each GPU."""

import pickle
import tempfile
from pathlib import Path

import torch
from torch import multiprocessing

from siirl.engine.training.collectives import GroupOfProcesses, join, leave
from siirl.engine.training.rank_device import prepare_device
from siirl.gpu_checks.check import CheckSkipped, Trial
from siirl.gpu_checks.process_group import lacks_group
from siirl.gpu_checks.updates import JOBS, distance, gradient_engine_of, update

GRADIENT_BOUND = 1e-4  # share of the norm, in float32: allows for another order of sums


def reduction(trial: Trial) -> None:
    """A forced group of one rank, and all ranks, train as a single process does."""
    lacking = lacks_group(trial)
    if lacking is not None:
        raise CheckSkipped(lacking)
    load, scorer, make_batch = JOBS["srpo"]
    torch.manual_seed(0)
    batch = make_batch()
    alone = gradient_engine_of(load(), scorer, device=trial.device, dtype=torch.float32)
    update(alone, batch)
    for ranks in sorted({1, max(1, torch.cuda.device_count())}):
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(work, args=(ranks, folder), nprocs=ranks)
            factor, gradient = pickle.loads((Path(folder) / "result").read_bytes())
        apart = distance(gradient, alone.gradient)
        trial.note(**{f"factor_{ranks}": factor, f"gradient_{ranks}": apart})
        trial.require(
            apart < GRADIENT_BOUND,
            f"the gradient of {ranks} ranks differs from that of one process by {apart:.2g} of its "
            "norm",
        )


def work(rank: int, ranks: int, folder: str) -> None:
    """One rank: its share of the rows, through FSDP2; rank 0 writes the result."""
    on_gpu = prepare_device(deterministic=False).type == "cuda"
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    group = join(
        rank=rank,
        world_size=ranks,
        init_method=f"file://{folder}/rendezvous",
        device=device,
        backend="nccl" if on_gpu else "gloo",
        force_group=True,
    )
    assert isinstance(group, GroupOfProcesses)
    load, scorer, make_batch = JOBS["srpo"]
    torch.manual_seed(0)
    batch = make_batch()
    engine = gradient_engine_of(load(), scorer, device=device, dtype=torch.float32, ranks=group)
    update(engine, batch[rank::ranks])
    if rank == 0:
        found = (engine.gradient_factor, engine.gradient)
        (Path(folder) / "result").write_bytes(pickle.dumps(found))
    leave(group)
