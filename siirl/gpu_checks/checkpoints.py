"""Checkpoints that are written while training goes on, and runs that resume from them."""

import importlib.util
import tempfile
from contextlib import nullcontext
from pathlib import Path

from siirl.dag_worker.checkpoint import CheckpointManager
from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.training.collectives import Collectives, OneProcess
from siirl.engine.training.rank_device import set_deterministic
from siirl.gpu_checks.check import Trial
from siirl.gpu_checks.process_group import group_of_one, lacks_group
from siirl.gpu_checks.updates import TINY_LM, engine_of, text_batch, update
from siirl.models.checksum import checksum
from siirl.models.language_model import load_language_model
from siirl.models.weight_rows import full_tensor
from siirl.params.model_args import LoraArguments


def resumed(trial: Trial) -> None:
    """A resumed run reaches the weights of one that went on while its checkpoint was written.

    Of all weights in one process and through FSDP2, and of adapters, whose frozen weights are in a
    file of their own.
    """
    set_deterministic(True)
    adapters = LoraArguments(rank=2)
    jobs = {"alone": (False, None), "fsdp": (True, None), "adapters": (True, adapters)}
    for name, (grouped, lora) in jobs.items():
        lacking = lacks_group(trial) if grouped else None
        if lora is not None and importlib.util.find_spec("peft") is None:
            lacking = "not installed: peft"
        if lacking is not None:
            trial.note(**{name: lacking})
            continue
        with group_of_one(trial) if grouped else nullcontext(OneProcess()) as ranks:
            went_on, again = _both(trial, ranks, lora)
        trial.note(**{name: went_on})
        trial.require(went_on == again, f"{name}: checksums {went_on} and, resumed, {again}")


def _both(trial: Trial, ranks: Collectives, lora: LoraArguments | None) -> tuple[int, int]:
    """Checksums of the weights after two updates, without and with a checkpoint between them."""
    batch, sums = text_batch(), []
    with tempfile.TemporaryDirectory() as folder:
        for resumes in (False, True):
            engine = engine_of(
                load_language_model(TINY_LM, lora=lora),
                text_scorer,
                device=trial.device,
                dtype=trial.dtype,
                ranks=ranks,
            )
            checkpoints = CheckpointManager(
                folder=Path(folder), engines={"actor": engine}, ranks=ranks
            )
            if resumes:
                checkpoints.load()
            else:
                update(engine, batch)
                checkpoints.start_saving(step=1, state={})
            update(engine, batch)
            checkpoints.wait()
            weights = engine.module.state_dict()
            sums.append(checksum({name: full_tensor(weights[name]) for name in weights}))
    return sums[0], sums[1]
