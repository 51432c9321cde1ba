"""One rank of `benchmarks.model_sizes`: loads, saves, resumes and syncs a model; prints the memory.

    python benchmarks/model_sizes_rank.py JOB.json RANK

It runs on the checkout that PYTHONPATH names, also an older one, so it uses only interfaces of both
revisions. The moments are filled by hand: a backward pass would need more memory than what is
measured.
"""

import importlib
import importlib.util
import inspect
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, os.environ["BENCHMARKS"])  # the meter, whatever siirl is measured

import psutil
import torch
from memory_meter import peak_bytes, reset_peak, resident_bytes

POLL_S = 0.02


def main() -> None:
    """Measure what the job asks for and write the result beside it."""
    place = Path(sys.argv[1])
    job: dict[str, Any] = json.loads(place.read_text())
    rank = int(sys.argv[2])
    torch.set_num_threads(1)
    measure = sync_to_vllm if job["vllm"] else shard_and_save
    found = measure(job, rank=rank, folder=place.parent)
    (place.parent / f"rank_{rank}.json").write_text(json.dumps(found))


def shard_and_save(job: dict[str, Any], *, rank: int, folder: Path) -> dict[str, float]:
    """Bytes above what was there: of loading, saving, resuming and a sync through the ranks."""
    from siirl.engine.training.collectives import join, leave

    ranks = join(rank=rank, world_size=job["ranks"], init_method=f"file://{folder}/meet")
    _rehearse(_engine(folder / "warm", ranks), folder / "warm_saved")

    before = resident_bytes()
    engine, load = _peak_of(lambda: _engine(Path(job["model"]), ranks), before)
    held = resident_bytes() - before
    _fill_moments(engine)
    saved = folder / "saved"
    here = resident_bytes()
    _, save = _peak_of(lambda: engine.save(saved), here)
    engine.optimizer.state.clear()  # as a new process has it
    here = resident_bytes()
    _, resume = _peak_of(lambda: engine.load(saved), here)
    here = resident_bytes()
    _, gather = _peak_of(lambda: _consume(engine), here)
    sync = _sync_to_acting_copy(Path(job["model"]), engine)
    leave(ranks)
    return {
        **{"load": load, "held": held, "save": save, "resume": resume},
        **{"gather": gather, "sync": sync},
    }


def _sync_to_acting_copy(folder: Path, engine: Any) -> int:
    """Bytes of a sync to the whole copy with which a rank acts, beyond the copy."""
    from siirl.engine.training.weight_sync import WeightSync, acting_copy
    from siirl.models.language_model import load_language_model

    copied = acting_copy(load_language_model(folder, weights=False), torch.bfloat16)
    sync = WeightSync(
        trained=engine, acting=copied, engine=_PlaceholderEngine(), ranks=engine.ranks
    )
    sync.sync()  # the copy's pages, and what is made once
    here = resident_bytes()
    return _peak_of(sync.sync, here)[1]


class _PlaceholderEngine:
    """Stands for the engine whose version follows the weights."""

    def update_weights(self, version: int) -> None:
        self.version = version


def _engine(folder: Path, ranks: Any) -> Any:
    from siirl.engine.actor.text_scorer import text_scorer
    from siirl.engine.training.train_engine import TrainEngine
    from siirl.models.language_model import load_language_model
    from siirl.params import OptimizerArguments

    by_parts = "weights" in inspect.signature(load_language_model).parameters
    model = load_language_model(folder, **({"weights": False} if by_parts else {}))
    engine = TrainEngine(
        module=model,
        scorer=text_scorer,
        ranks=ranks,
        optim=OptimizerArguments(lr=1e-4, scheduler="constant"),
    )
    return engine.initialize()


def _fill_moments(engine: Any) -> None:
    for weight in engine.module.parameters():
        engine.optimizer.state[weight] = {
            "exp_avg": torch.zeros_like(weight).fill_(0.5).detach(),
            "exp_avg_sq": torch.zeros_like(weight).fill_(0.5).detach(),
            "step": torch.tensor(1.0),
        }
    engine.steps = 1


def _rehearse(engine: Any, folder: Path) -> None:
    """Everything once on a small model, so that what is made or imported once is not measured."""
    _fill_moments(engine)
    engine.save(folder)
    engine.load(folder)
    _consume(engine)


def _consume(engine: Any) -> None:
    """Hand all whole weights on, as a sync does, to a reader that keeps none."""
    if not hasattr(engine, "weights_in_turn"):  # an older checkout, which has them all at once
        engine.upload_weights()
        return
    for part in engine.weights_in_turn():
        (
            part[1] if isinstance(part, tuple) else part.values
        ).sum()  # an older one has whole tensors


def _peak_of(work: Callable[[], Any], before: int) -> tuple[Any, int]:
    reset_peak()
    result = work()
    return result, peak_bytes() - before


def sync_to_vllm(job: dict[str, Any], *, rank: int, folder: Path) -> dict[str, float]:
    """Bytes of this process, its children and their files during a sync to vLLM, beyond before."""
    from siirl.models.chat import load_chat_tokenizer
    from siirl.models.language_model import load_language_model

    spool = folder / "spool"
    spool.mkdir()
    tempfile.tempdir = str(spool)
    model = load_language_model(Path(job["model"]))
    engine = _engine_class(job["vllm"])(
        model=model,
        tokenizer=load_chat_tokenizer("assets/tiny_lm"),
        temperature=1.0,
        max_running=4,
        lockstep=False,
        kv_cache_gib=0.05,
        **job["options"],
    )
    try:
        engine.take_weights(_weights(model, engine))  # what is made once
        time.sleep(1.0)
        with _Watch(spool) as watch:
            began = time.perf_counter()
            engine.take_weights(_weights(model, engine))
            seconds = time.perf_counter() - began
    finally:
        engine.close()
    return {"extra": watch.peak - watch.before, "seconds": seconds}


def _engine_class(name: str) -> Any:
    """The class in its own module; an older checkout has all in one."""
    place = "siirl.engine.rollout.vllm"
    apart = name.startswith("Async") and importlib.util.find_spec(f"{place}.async_vllm_engine")
    module = "async_vllm_engine" if apart else "vllm_engine"
    return getattr(importlib.import_module(f"{place}.{module}"), name)


def _weights(model: Any, engine: Any) -> Any:
    """The weights of a sync, as the checkout that is measured takes them."""
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if "state" in inspect.signature(engine.take_weights).parameters:
        return state
    if importlib.util.find_spec("siirl.models.weight_rows") is None:
        return state.items()
    return importlib.import_module("siirl.models.weight_rows").in_rows(state.items())


class _Watch:
    """The largest memory of this process and its children, shared pages counted once, and files."""

    def __init__(self, spool: Path) -> None:
        self.spool = spool
        self.before = self._now()
        self.peak = self.before
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._ended.wait(POLL_S):
            self.peak = max(self.peak, self._now())

    def _now(self) -> int:
        own = psutil.Process()
        total = 0
        for process in (own, *own.children(recursive=True)):
            try:
                total += process.memory_full_info().pss
            except psutil.NoSuchProcess:
                continue  # it ended meanwhile
        return total + sum(file.stat().st_size for file in self.spool.rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
