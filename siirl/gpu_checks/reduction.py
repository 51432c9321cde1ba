"""Process groups: NCCL on GPUs, gloo on a CPU, FSDP2 on both; one rank, and one for each GPU."""

import torch

from siirl.engine.training.collectives import GroupOfProcesses
from siirl.gpu_checks.check import CheckSkipped, Trial
from siirl.gpu_checks.process_group import lacks_group
from siirl.gpu_checks.rank_processes import RANKS_ON_A_CPU, gpus, run_on_ranks
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
    for ranks in sorted({1, gpus() if trial.on_gpu else RANKS_ON_A_CPU}):
        factor, gradient = run_on_ranks(trial, work, ranks=ranks)[0]
        apart = distance(gradient, alone.gradient)
        trial.note(**{f"factor_{ranks}": factor, f"gradient_{ranks}": apart})
        trial.require(
            apart < GRADIENT_BOUND,
            f"the gradient of {ranks} ranks differs from that of one process by {apart:.2g} of its "
            "norm",
        )


def work(trial: Trial, group: GroupOfProcesses) -> tuple[float, dict[str, torch.Tensor] | None]:
    """One rank's share of the rows, through FSDP2: the factor, and rank 0's gradient."""
    load, scorer, make_batch = JOBS["srpo"]
    torch.manual_seed(0)
    batch = make_batch()
    engine = gradient_engine_of(
        load(), scorer, device=trial.device, dtype=torch.float32, ranks=group
    )
    update(engine, batch[group.rank :: group.size])
    return engine.gradient_factor, engine.gradient if group.rank == 0 else None
