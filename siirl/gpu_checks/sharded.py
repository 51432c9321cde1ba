"""Updates of a model that FSDP2 shards over all GPUs, compared with the same update of one rank.

    rank 0 alone    one update of all rows in a group of one rank; its weights go to host memory
    all ranks       the same update, each rank with its share of the rows
                    loss, gradient norm and weights are compared
                    a second update is timed; its peak memory is compared with the plan

One rank also uses FSDP2, so both cast alike, and a micro-batch is one row in both. They then differ
only in the order in which gradients are summed, in float32. On a CPU two gloo ranks do the same.
"""

import gc
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict

from siirl.engine.actor.text_scorer import text_scorer
from siirl.engine.training.collectives import Collectives, GroupOfProcesses
from siirl.engine.training.train_engine import TrainEngine
from siirl.gpu_checks.check import Trial
from siirl.gpu_checks.planned_memory import compare_with_peak, planned_bytes, require_room
from siirl.gpu_checks.rank_processes import first_ranks, ranks_here, run_on_ranks
from siirl.gpu_checks.shapes import QWEN_1_5B, SMALL, texts
from siirl.gpu_checks.updates import engine_of, timed_update, update
from siirl.models.language_model import LanguageModel
from siirl.params.data_args import DataArguments
from siirl.params.model_args import ModelArguments
from siirl.preflight.model_shapes import decoder_shape

ROWS_OF_A_RANK = 2
LARGEST_TOKEN = 200
COMPARED = ("actor/loss", "actor/entropy", "actor/grad_norm")
# Sums in another order: of float32 on a CPU; on a GPU of gradients whose kernels may differ by the
# rounding of bfloat16 if a pass has another shape.
NUMBER_BOUND = {torch.float32: 1e-4, torch.bfloat16: 1e-2}  # share of the number
CHANGE_BOUND = {torch.float32: 1e-2, torch.bfloat16: 1e-1}
"""Share of the norm of the change. Adam's first step is the gradient's sign: a gradient near 0 may
round to the other sign, and its weight then differs by two steps.
"""


@dataclass(frozen=True)
class OfOneRank:
    """An update of one rank."""

    metrics: dict[str, float]
    weights: dict[str, torch.Tensor]
    """In host memory."""
    change: float
    """Norm of the difference to the weights before."""


@dataclass(frozen=True)
class Compared:
    """An update of all ranks beside that of one, as rank 0 saw it."""

    alone: dict[str, float]
    together: dict[str, float]
    distance: float
    """Norm of the difference of the weights over the norm of their change."""
    seconds: float
    """Time of the second update."""
    peak_bytes: int | None
    """Of the rank with the largest peak."""


def sharded_update(trial: Trial) -> None:
    """An update over all ranks equals that of one rank, with the planned memory."""
    ranks = ranks_here(trial)
    require_room(trial, planned(trial, ranks=1), what="one rank alone")
    found = run_on_ranks(trial, work, ranks=ranks, deterministic=True)[0]
    trial.note(ranks=ranks, seconds=found.seconds)
    require_equal(trial, found)
    compare_with_peak(trial, planned(trial, ranks=ranks), peak=found.peak_bytes)


def work(trial: Trial, group: GroupOfProcesses) -> Compared | None:
    """One rank; the result is rank 0's."""
    alone = updated_alone(trial, group)
    return updated_together(trial, group, sharded_engine(trial, group), alone)


def require_equal(trial: Trial, found: Compared) -> None:
    """Record the differences, and fail if rounding does not explain them."""
    for name in COMPARED:
        one, several = found.alone[name], found.together[name]
        apart = abs(several - one) / max(abs(one), 1e-6)
        key = name.removeprefix("actor/")
        trial.note(**{key: several, f"{key}_apart": apart})
        trial.require(
            apart <= NUMBER_BOUND[trial.dtype],
            f"{name} is {several:.6g} on all ranks and {one:.6g} on one",
        )
    trial.note(weights_apart=found.distance)
    trial.require(
        found.distance <= CHANGE_BOUND[trial.dtype],
        f"after one step the weights of all ranks differ from those of one by {found.distance:.2g} "
        "of their change",
    )


def updated_alone(trial: Trial, group: GroupOfProcesses) -> OfOneRank | None:
    """The update of all rows by rank 0, while the others wait; None on those."""
    only = first_ranks(group, 1)
    found = None
    if only is not None:
        engine = sharded_engine(trial, only)
        before = _on_host(engine)
        metrics = update(engine, rows_of_all(trial, group.size))
        after = _on_host(engine)
        change = sum(float((after[name] - before[name]).square().sum()) for name in after)
        found = OfOneRank(metrics, after, change**0.5)
        del engine
        gc.collect()
        trial.forget_peak()
    group.gather_objects(None)
    return found


def updated_together(
    trial: Trial,
    group: GroupOfProcesses,
    engine: TrainEngine[Any],
    alone: OfOneRank | None,
) -> Compared | None:
    """The same update by all ranks, compared on rank 0 with that of one; None on the others."""
    rows = rows_of_all(trial, group.size)[group.rank :: group.size]
    metrics = update(engine, rows)
    squares = 0.0
    for part in engine.weights_in_turn():
        if alone is not None:
            expected = part.of(alone.weights[part.name]).to(part.values.device)
            squares += float((part.values - expected).square().sum())
    seconds = timed_update(trial, engine, rows)
    peaks = group.gather_objects(trial.peak_bytes())
    if alone is None:
        return None
    peak = max((each for each in peaks if each is not None), default=None)
    return Compared(alone.metrics, metrics, squares**0.5 / alone.change, seconds, peak)


def sharded_engine(
    trial: Trial,
    ranks: Collectives,
    *,
    seed: int = 0,
    blocks: int | None = None,
    module: LanguageModel | None = None,
) -> TrainEngine[Any]:
    """An engine that trains all weights of a model over the ranks.

    Args:
        trial: The check, in the process of a rank.
        ranks: The ranks that share the weights.
        seed: See `decoder`.
        blocks: See `decoder`.
        module: The model; None: that of `decoder`.
    """
    return engine_of(
        decoder(trial, seed=seed, blocks=blocks) if module is None else module,
        text_scorer,
        device=trial.device,
        dtype=trial.dtype,
        ranks=ranks,
        micro_batch_size=1,
    )


def decoder(trial: Trial, *, seed: int = 0, blocks: int | None = None) -> LanguageModel:
    """The shape of Qwen2.5-1.5B with a head of its own; small on a CPU.

    Args:
        trial: The check, in the process of a rank.
        seed: Seed of the weights.
        blocks: Number of blocks on a GPU; None: the published one.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = _config(trial)
    if trial.on_gpu and blocks is not None:
        config["num_hidden_layers"] = blocks
    torch.manual_seed(seed)
    with torch.device(trial.device):
        return LanguageModel(Qwen2ForCausalLM(Qwen2Config.from_dict(config)).eval())


def planned(trial: Trial, *, ranks: int) -> float:
    """Planned bytes of a rank in the update of `sharded_engine`."""
    prompt, answer = _lengths(trial)
    return planned_bytes(
        decoder_shape(_config(trial)),
        ModelArguments(dtype=trial.dtype_name, gradient_checkpointing=False),
        data=DataArguments(max_prompt_length=prompt, max_response_length=answer),
        ranks=ranks,
        in_group=True,
    )


def _config(trial: Trial) -> dict[str, Any]:
    shape = QWEN_1_5B if trial.on_gpu else {**SMALL, "vocab_size": 300}
    return {"model_type": "qwen2", **shape, "tie_word_embeddings": False}


def _lengths(trial: Trial) -> tuple[int, int]:
    """Tokens of a prompt and of the longest answer."""
    return (256, 1024) if trial.on_gpu else (6, 8)


def rows_of_all(trial: Trial, ranks: int) -> TensorDict:
    """The rows of all ranks; their answers have different lengths."""
    prompt, answer = _lengths(trial)
    torch.manual_seed(1)
    rows = ROWS_OF_A_RANK * ranks
    lengths = [answer - row * answer // (2 * rows) for row in range(rows)]
    return texts(
        torch.randint(5, LARGEST_TOKEN, (rows, prompt)).tolist(),
        [torch.randint(5, LARGEST_TOKEN, (length,)).tolist() for length in lengths],
    )


def _on_host(engine: TrainEngine[Any]) -> dict[str, torch.Tensor]:
    """A copy of all weights, of a group of one rank."""
    weights = engine.upload_weights()
    return {name: weight.to("cpu", copy=True) for name, weight in weights.items()}
