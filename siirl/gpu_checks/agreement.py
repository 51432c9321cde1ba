"""Log-probs of acting and of training agree, if one module does both and if a copy acts."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import nn

from siirl.engine.actor.actor import log_prob_gap_bound
from siirl.engine.rollout.acting import ActRequest
from siirl.engine.rollout.generation import GenerationRequest
from siirl.engine.rollout.hf.hf_engine import HFEngine
from siirl.engine.rollout.vla.embodied_engine import EmbodiedEngine
from siirl.engine.training.collectives import Collectives, OneProcess
from siirl.engine.training.sharding import repeated_blocks
from siirl.engine.training.train_engine import TrainEngine
from siirl.engine.training.weight_sync import acting_copy
from siirl.gpu_checks.check import Trial
from siirl.gpu_checks.process_group import group_of_one, lacks_group
from siirl.gpu_checks.shapes import texts
from siirl.gpu_checks.updates import JOBS, TINY_LM, engine_of
from siirl.models.chat import load_chat_tokenizer
from siirl.params import ActorArguments, ActorRolloutRefArguments, ModelArguments
from siirl.params.rollout_args import RolloutArguments

ENGINES = {"grpo": "hf", "srpo": "embodied"}
"""Rollout engine of each job."""


def log_prob_gap(trial: Trial) -> None:
    """Log-probs of acting and of training with the same weights agree in the mean.

    First the trained module acts itself. Then an acting copy does, while FSDP2 trains the module,
    as on several ranks; its blocks, which the shipped robot policy does not have, are compiled.
    """
    for job in JOBS:
        _compare(trial, job, figure=job, ranks=OneProcess())
    lacking = lacks_group(trial)
    if lacking is not None:
        trial.note(copy=lacking)
        return
    trial.note(compiled=trial.compiler is not None)
    for job in JOBS:
        with group_of_one(trial) as ranks:
            _compare(trial, job, figure=f"{job}_copy", ranks=ranks)


def _compare(trial: Trial, job: str, *, figure: str, ranks: Collectives) -> None:
    """Require that log-probs agree as a run does. If `ranks` are a process group, a copy acts, and
    blocks are compiled.
    """
    load, scorer, make_batch = JOBS[job]
    module: nn.Module = load().to(trial.device)
    dtype = None if trial.dtype == torch.float32 else trial.dtype
    acting, compiler = module, None
    if ranks.group is not None:
        acting = acting_copy(module, dtype, device=trial.device)
        compiler = trial.compiler if repeated_blocks(module) else None
    engine = engine_of(
        module, scorer, device=trial.device, dtype=trial.dtype, ranks=ranks, compiler=compiler
    )
    gap = GAPS[job](acting, engine, make_batch())
    settings = ActorRolloutRefArguments(
        model=ModelArguments(dtype=trial.dtype_name),
        actor=ActorArguments(use_torch_compile=compiler is not None),
        rollout=RolloutArguments(name=ENGINES[job]),
    )
    bound = log_prob_gap_bound(settings, on_gpu=trial.on_gpu)
    trial.note(**{figure: gap})
    trial.require(gap <= bound, f"{figure}: mean gap {gap:.2g}, rounding explains {bound:.2g}")


def _text_gap(module: Any, engine: TrainEngine[Any], batch: TensorDict) -> float:
    tokenizer = load_chat_tokenizer(TINY_LM)
    acting = HFEngine(model=module, tokenizer=tokenizer, compute_dtype=engine.compute_dtype)
    prompts = batch["prompts"].tolist()

    async def everybody() -> list[Any]:
        requests = [
            GenerationRequest(str(row), tuple(ids), max_new_tokens=8, seed=(0, row))
            for row, ids in enumerate(prompts)
        ]
        return await asyncio.gather(*(acting.agenerate(request) for request in requests))

    found = asyncio.run(everybody())
    answered = texts(prompts, [response.tokens.tolist() for response in found], pad=256)
    trained_BT = engine.forward(answered, lambda scores, _: scores.log_probs_BT).cpu()
    gaps = [
        np.abs(trained_BT[row, : len(response.tokens)].numpy() - response.log_probs)
        for row, response in enumerate(found)
    ]
    return float(np.concatenate(gaps).mean())


def _policy_gap(module: Any, engine: TrainEngine[Any], batch: TensorDict) -> float:
    acting = EmbodiedEngine(
        policy=module,
        temperature=1.0,
        lockstep=False,
        batch_rows=64,
        compute_dtype=engine.compute_dtype,
    )
    acted_BT, trained_BT = acted_and_trained(acting, engine, batch)
    return float((acted_BT - trained_BT).abs().mean())


GAPS: dict[str, Callable[[Any, TrainEngine[Any], TensorDict], float]] = {
    "grpo": _text_gap,
    "srpo": _policy_gap,
}
"""Mean difference of log-probs of each job."""


def acted_and_trained(
    acting: EmbodiedEngine, engine: TrainEngine[Any], batch: TensorDict
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs [B, T] of the greedy tokens of `batch`: of acting, and of training on them.

    The tokens become the batch's responses.
    """
    found = act_all(acting, requests_of(batch))
    shape = batch["responses"].shape
    batch["responses"] = torch.from_numpy(np.stack([each.choices for each in found])).view(shape)
    acted_BT = torch.from_numpy(np.stack([each.log_probs for each in found])).view(shape)
    return acted_BT, engine.forward(batch, lambda scores, _: scores.log_probs_BT).cpu()


def requests_of(batch: TensorDict) -> list[ActRequest]:
    """A greedy request for each observation of `batch`, in its order."""
    return [
        ActRequest(
            f"{row}-{chunk}",
            batch["pixel_values"][row, chunk].numpy(),
            batch["proprioception"][row, chunk].numpy(),
            batch["instruction_ids"][row].numpy(),
            None,
        )
        for row in range(len(batch))
        for chunk in range(batch["pixel_values"].shape[1])
    ]


def act_all(engine: EmbodiedEngine, requests: list[ActRequest]) -> list[Any]:
    """Responses to all requests, sent at once."""

    async def everybody() -> list[Any]:
        return await asyncio.gather(*(engine.act(request) for request in requests))

    return asyncio.run(everybody())
